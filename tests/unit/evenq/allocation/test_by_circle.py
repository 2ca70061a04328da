"""AVG_BY_CIRCLE beyond the tables of tests/spec/test_allocation.py."""

from __future__ import annotations

from evenq.allocation import ByCircle
from evenq.model import MessageQueue


def test_each_member_gets_queues_of_each_broker() -> None:
    queues = [MessageQueue("T", broker, index) for broker in ("b1", "b2") for index in range(4)]
    for own in ("a", "b"):
        assert {queue.broker_name for queue in ByCircle().allocate("g", own, queues, ["a", "b"])} == {"b1", "b2"}
