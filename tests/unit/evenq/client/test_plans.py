"""A consumer's arguments are judged before anything starts."""

from typing import Any

import pytest

from evenq.client.plans import push_plan
from evenq.errors import BadRequest, Error, IllegalFilterExpression, IllegalGroup, IllegalTopic

GOOD: dict[str, Any] = {
    "group": "g",
    "subscriptions": {"t": "a || b"},
    "model": "CLUSTERING",
    "assignment": "client",
    "strategy": "AVG",
    "consume_threads": 20,
    "start_from": None,
    "start_timestamp_ms": 0,
    "options": None,
}


def test_texts_become_a_plan() -> None:
    plan = push_plan(**GOOD)
    assert plan.subscriptions["t"].tags == frozenset({"a", "b"})
    assert plan.strategy.name == "AVG"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group": "no/slash"}, IllegalGroup),
        ({"subscriptions": {}}, BadRequest),
        ({"subscriptions": {"no/slash": "*"}}, IllegalTopic),
        ({"subscriptions": {"t": " "}}, IllegalFilterExpression),
        ({"model": "EVERYTHING"}, BadRequest),
        ({"assignment": "nobody"}, BadRequest),
        ({"strategy": "BEST"}, BadRequest),
        ({"consume_threads": 0}, BadRequest),
        ({"start_from": "MIDDLE"}, BadRequest),
    ],
)
def test_bad_arguments_have_their_own_errors(change: dict[str, Any], error: type[Error]) -> None:
    with pytest.raises(error):
        push_plan(**(GOOD | change))
