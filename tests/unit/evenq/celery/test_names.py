"""Names of topics for queues of Celery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.celery.names import BROADCAST, QueueNames, broadcast_tag, escape
from evenq.errors import IllegalTopic
from evenq.model.names import group_problem, topic_problem

NAMES = QueueNames("celery-")


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery-celery"),
        ("team.urgent", "celery-team%2Eurgent"),
        ("w1@host", "celery-w1%40host"),
        ("50%", "celery-50%25"),
        ("straße", "celery-stra%C3%9Fe"),
        ("a~b", "celery-a%7Eb"),
    ],
)
def test_other_characters_are_escaped(queue: str, topic: str) -> None:
    assert NAMES.topic_of(queue) == topic


@given(st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable()))
def test_every_queue_has_a_legal_topic_and_can_be_read_back(queue: str) -> None:
    topic = QueueNames("").topic_of(queue)
    assert topic_problem(topic) is None
    assert group_problem(topic) is None
    assert QueueNames("").queue_of(topic) == queue


def test_no_queue_has_the_topic_of_broadcasts() -> None:
    assert not NAMES.topic_of(BROADCAST).endswith(BROADCAST)
    assert NAMES.queue_of(NAMES.broadcasts) is None
    assert NAMES.queue_of("orders") is None


def test_a_name_that_is_too_long_is_refused_with_its_limit() -> None:
    assert len(NAMES.topic_of("q" * 113)) == 120
    with pytest.raises(IllegalTopic, match="needs a topic name of 121 characters, the range is 8 to 120"):
        NAMES.topic_of("q" * 114)
    with pytest.raises(IllegalTopic):
        NAMES.topic_of("")


def test_an_illegal_prefix_is_refused() -> None:
    with pytest.raises(IllegalTopic, match="topic_prefix"):
        QueueNames("a.b")


def test_tags_tell_exchanges_and_routing_keys_apart() -> None:
    tags = {broadcast_tag("a", None), broadcast_tag("a", ""), broadcast_tag("a", "b"), broadcast_tag("ab", None)}
    assert len(tags) == 4
    assert all(escape(tag) == tag for tag in tags)
