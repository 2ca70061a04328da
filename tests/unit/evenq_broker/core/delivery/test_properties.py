"""The tag, and what stands before the body, in a stored message's bytes."""

import pytest
from evenq_broker.core.delivery.properties import tag_of, without_body

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2


@pytest.mark.parametrize("size", [1, 127, 128, 70_000])
def test_a_head_without_its_body_is_what_stands_before_it(size: int) -> None:
    head = definition_pb2.Message(user_properties={"a": "1"})
    head.topic.name = "t"
    before = head.SerializeToString()
    head.body = b"\x12" * size
    assert without_body(head.SerializeToString()) == before


@pytest.mark.parametrize("behind", [b"\x12\x00", b"\x78\x01"])
def test_a_body_that_is_not_last_stays(behind: bytes) -> None:
    head = definition_pb2.Message(body=b"body").SerializeToString() + behind
    assert without_body(head) == head


@pytest.mark.parametrize("tag", ["", "red", "größe", "x" * 300])
def test_the_tag_stands_first_in_stored_system_properties(tag: str) -> None:
    system = definition_pb2.SystemProperties(message_id="m", keys=["k"], born_host="h")
    if tag:
        system.tag = tag
    assert tag_of(system.SerializeToString()) == tag
    assert tag_of(b"") == ""
