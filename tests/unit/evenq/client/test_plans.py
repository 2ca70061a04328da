"""A consumer's arguments are judged before anything starts."""

from inspect import signature
from typing import Any

import pytest

import evenq
from evenq import aio
from evenq.allocation import MachineRoom
from evenq.client.options import PullOptions, PushOptions
from evenq.client.plans import pull_plan, push_plan, reset_target
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
        ({"strategy": "STICKY"}, BadRequest),
        ({"strategy": "STICKY", "assignment": "auto"}, BadRequest),
        ({"strategy": "MACHINE_ROOM_NEARBY-STICKY"}, BadRequest),
        ({"strategy": "CONFIG"}, BadRequest),
        ({"strategy": "CONFIG", "assignment": "server"}, BadRequest),
        ({"strategy": "MACHINE_ROOM"}, BadRequest),
        ({"consume_threads": 0}, BadRequest),
        ({"start_from": "MIDDLE"}, BadRequest),
    ],
)
def test_bad_arguments_have_their_own_errors(change: dict[str, Any], error: type[Error]) -> None:
    with pytest.raises(error):
        push_plan(**(GOOD | change))


def test_a_strategy_by_name_that_would_read_nothing_says_what_it_needs() -> None:
    with pytest.raises(BadRequest, match=r"strategy=Config\(\(MessageQueue"):
        push_plan(**(GOOD | {"strategy": "CONFIG"}))
    with pytest.raises(BadRequest, match=r"MachineRoom\(frozenset\(\{'room-1'\}\)\)"):
        push_plan(**(GOOD | {"strategy": "MACHINE_ROOM"}))
    given = MachineRoom(frozenset({"r1"}))
    assert push_plan(**(GOOD | {"strategy": given})).strategy == given
    assert push_plan(**(GOOD | {"strategy": "MACHINE_ROOM", "assignment": "server"})).strategy.name == "MACHINE_ROOM"


@pytest.mark.parametrize(("given", "asks"), [("auto", None), ("client", False), ("server", True)])
def test_who_decides_is_the_groups_business_unless_told(given: str, asks: bool | None) -> None:
    assert push_plan(**(GOOD | {"assignment": given})).ask_server is asks


def test_the_faces_leave_it_to_the_group() -> None:
    for face in (evenq.PushConsumer, evenq.PullConsumer, aio.PushConsumer, aio.PullConsumer):
        assert signature(face).parameters["assignment"].default == "auto"


def test_a_member_that_asks_the_server_divides_by_avg_where_sticky_cannot_be() -> None:
    assert push_plan(**(GOOD | {"strategy": "STICKY", "assignment": "server"})).strategy.name == "AVG"


@pytest.mark.parametrize(
    ("result", "target"),
    [
        (("earliest", None, None, ""), ("EARLIEST", 0)),
        (("latest", None, None, ""), ("LATEST", 0)),
        ((7, None, None, ""), ("OFFSET", 7)),
        (("latest", 10**12, None, ""), ("TIMESTAMP", 10**12)),
        (("latest", 0, None, ""), ("TIMESTAMP", 0)),
        (("latest", None, 3, ""), ("SKIP", 3)),
        (("latest", None, None, "other"), ("LIKE_GROUP", 0)),
    ],
)
def test_a_reset_has_one_target(result: Any, target: tuple[str, int]) -> None:
    assert reset_target(*result) == target


@pytest.mark.parametrize("result", [("soon", None, None, ""), ("latest", 1, 1, ""), ("latest", None, 1, "other")])
def test_no_target_or_two_are_refused(result: Any) -> None:
    with pytest.raises(BadRequest):
        reset_target(*result)


def test_the_retry_topic_is_read_where_retries_come_through_it() -> None:
    """RD-2; an ordered consumer keeps its failed messages in place (OC-15)."""
    assert push_plan(**GOOD).retry_topic
    assert not push_plan(**GOOD, ordered=True).retry_topic
    assert not push_plan(**(GOOD | {"options": PushOptions(retry="local")})).retry_topic


def test_a_pull_consumer_without_subscriptions_reads_chosen_queues() -> None:
    """RB-49."""
    reported = {key: value for key, value in GOOD.items() if key not in {"consume_threads", "options"}}
    plan = pull_plan(**reported, options=PullOptions(auto_commit=False))
    assert (plan.chosen, plan.auto_commit, plan.retry_topic) == (False, False, False)
    assert pull_plan(**(reported | {"subscriptions": {}}), options=None).chosen


def test_only_chosen_queues_are_read_from_any_copy() -> None:
    """HA-10: who shares a group's queues holds locks, which only their leader knows."""
    reported = {key: value for key, value in GOOD.items() if key not in {"consume_threads", "options"}}
    anywhere = PullOptions(read_from="any")
    assert pull_plan(**(reported | {"subscriptions": {}}), options=anywhere).any_copy
    assert not pull_plan(**(reported | {"subscriptions": {}}), options=PullOptions()).any_copy
    with pytest.raises(BadRequest, match="assign"):
        pull_plan(**reported, options=anywhere)
    with pytest.raises(BadRequest, match="'leader' or 'any'"):
        PullOptions(read_from="follower")


def test_a_start_time_may_be_a_text() -> None:
    """RB-45."""
    plan = push_plan(**(GOOD | {"start_from": "CONSUME_FROM_TIMESTAMP", "start_timestamp_ms": "20240229143000"}))
    assert plan.start_from == "TIMESTAMP"
    assert 1_709_000_000_000 < plan.start_timestamp_ms < 1_709_400_000_000


def test_a_time_in_seconds_is_refused_where_ms_are_meant() -> None:
    """It would be a time in 1970, before the first message."""
    with pytest.raises(BadRequest, match=r"start_timestamp_ms is 1800000000, .* may be in seconds"):
        push_plan(**(GOOD | {"start_from": "TIMESTAMP", "start_timestamp_ms": 1_800_000_000}))
    with pytest.raises(BadRequest, match="timestamp_ms is 1800000000"):
        reset_target("earliest", 1_800_000_000, None, "")
