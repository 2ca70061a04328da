"""User properties and message group out of a stored message's bytes."""

import pytest
from evenq_broker.loops.wire.stored_messages import message_group_of, user_properties
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    properties=st.dictionaries(TEXT, TEXT, max_size=5),
    topic=TEXT,
    size=st.sampled_from([0, 1, 127, 128, 8_000, 8_193, 70_000]),
)
@settings(max_examples=100, deadline=None)
def test_all_properties_are_found_whatever_the_size_of_the_body(
    properties: dict[str, str], topic: str, size: int
) -> None:
    message = definition_pb2.Message(body=b"\x12" * size, user_properties=properties)
    message.topic.name = topic
    assert dict(user_properties(message.SerializeToString())) == properties


@pytest.mark.parametrize("order", [["body", "properties"], ["properties", "body", "rest"], ["properties", "number"]])
def test_fields_in_an_order_that_nobody_writes_are_understood_too(order: list[str]) -> None:
    large = b"\x22\x80\x80\x02" + b"b" * (1 << 15)
    fields = {
        "body": large,
        "properties": definition_pb2.Message(user_properties={"a": "1"}).SerializeToString(),
        "rest": b"\x7a\x80\x80\x02" + b"r" * (1 << 15),
        "number": b"\x78\x01" + large,
    }
    assert dict(user_properties(b"".join(fields[one] for one in order))) == {"a": "1"}


@pytest.mark.parametrize("group", ["", "order 7", "größe"])
def test_the_message_group_is_found_among_other_fields(group: str) -> None:
    system = definition_pb2.SystemProperties(tag="t", message_id="m", trace_context="x")
    if group:
        system.message_group = group
    assert message_group_of(system.SerializeToString()) == group
