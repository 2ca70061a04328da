"""Which messages have a trace context, and what their spans say."""

from __future__ import annotations

import pytest
from evenq_broker.loops.wire.traced_messages import traced_message

from evenq.model.span_attributes import BODY_SIZE, KEYS, MESSAGE_GROUP, TAG, TYPE
from evenq.store import StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

CONTEXT = f"00-{0xABC:032x}-{0xDEF:016x}-01"
OTHER = f"00-{1:032x}-{2:016x}-01"


def stored(*, body: bytes = b"body", context: str = "", **properties: str) -> StoredMessage:
    head = definition_pb2.Message(body=body, user_properties=properties)
    head.topic.name = "orders"
    system = definition_pb2.SystemProperties(
        message_id="id", tag="new", keys=["k1", "k2"], message_group="m", message_type=definition_pb2.FIFO
    )
    if context:
        system.trace_context = context
    return StoredMessage(1, 3, 7, 0, 0, 100, 0, head.SerializeToString(), system.SerializeToString())


def test_the_property_and_the_field_carry_it_and_the_property_first() -> None:
    by_property = traced_message(stored(traceparent=CONTEXT, region="eu"), "orders")
    by_field = traced_message(stored(context=CONTEXT), "orders")
    assert by_property is not None
    assert by_property == by_field
    assert (by_property.trace_id, by_property.parent_id) == (0xABC, 0xDEF)
    assert (by_property.topic, by_property.queue_id, by_property.message_id, by_property.store_ms) == (
        "orders", 3, "id", 100,
    )  # fmt: skip
    both = traced_message(stored(traceparent=CONTEXT, context=OTHER), "orders")
    assert both is not None
    assert both.trace_id == 0xABC


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000, 70_000])
def test_the_attributes_are_those_of_the_message(size: int) -> None:
    found = traced_message(stored(body=b"x" * size, traceparent=CONTEXT), "orders")
    assert found is not None
    assert found.attributes == {BODY_SIZE: size, TYPE: "fifo", TAG: "new", KEYS: ("k1", "k2"), MESSAGE_GROUP: "m"}


@pytest.mark.parametrize(
    "context",
    [
        CONTEXT[:-1] + "0",  # not sampled
        "ff" + CONTEXT[2:],  # no version
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        CONTEXT[:-3],
        "nonsense",
    ],
)
def test_a_context_that_is_not_sampled_or_not_valid_makes_no_spans(context: str) -> None:
    assert traced_message(stored(traceparent=context), "orders") is None
    assert traced_message(stored(context=context), "orders") is None


def test_a_body_that_holds_the_same_bytes_is_no_context() -> None:
    inner = stored(traceparent=CONTEXT).head
    assert traced_message(stored(), "orders") is None
    assert traced_message(stored(body=inner), "orders") is None
