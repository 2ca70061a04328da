"""The count of what was left out."""

from __future__ import annotations

import logging

import pytest
from pyspark_evenq.plan.losses import LossCount, named

from evenq.model.queue import MessageQueue


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("flights", broker, number)


def test_each_loss_is_one_line_that_ends_with_the_sums(caplog: pytest.LogCaptureFixture) -> None:
    count = LossCount()
    with caplog.at_level(logging.WARNING):
        count.lost(queue(0), 30, "trimmed")
        count.lost(queue(0), 5, "trimmed again")
        count.left_out({queue(1): 7, queue(2): 0}, "broker-a is gone")
    assert (count.messages, len(count.queues), len(count.unavailable)) == (42, 1, 2)
    assert caplog.messages[0].startswith("evenq: lost messages=30 of flights@broker-a:0: trimmed; ")
    assert caplog.messages[2] == (
        "evenq: left out queues=2 messages=7: flights on broker-a (queues 1, 2): broker-a is gone; "
        "in this process so far messages=42 queues=1 unavailable=2"
    )


def test_queues_are_named_by_topic_and_broker_and_not_without_end() -> None:
    assert (
        named([queue(1), queue(0), queue(3, "broker-b")])
        == "flights on broker-a (queues 0, 1), flights on broker-b (queue 3)"
    )
    assert named([queue(0, f"broker-{number:02}") for number in range(25)]).endswith(" and 5 more")
