"""Blocks of messages with the same fields: their columns in fewer steps, and only where they are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.columns import records as module
from evenq.columns.alike import walk
from evenq.columns.lanes import LENGTH, VARINT
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.evenq.columns.test_records import ALL, expected, records, rows

TEXT = st.text(max_size=4) | st.sampled_from(["", "x" * 200, "\u00fc", "\U0001f600" * 50])


def stored(
    bodies: list[bytes], texts: list[str], names: list[list[str]], keys: int, group: bool
) -> list[tuple[bytes, bytes]]:
    """Messages with as many properties and keys each."""
    found = []
    for number, body in enumerate(bodies):
        pick = [texts[(number * 7 + place) % len(texts)] for place in range(12)]
        pairs = dict(zip(names[number % len(names)], pick, strict=False))
        message = definition_pb2.Message(body=body or b"-", user_properties=pairs)
        message.topic.name = "flights"
        system = definition_pb2.SystemProperties(
            message_id=f"{number}", tag=pick[3], keys=[f"{one}k" for one in pick[4 : 4 + keys]],
            message_group=pick[8] if group else None, queue_id=number + 1, body_encoding=number % 2 + 1,
        )  # fmt: skip
        set_ms(system.born_timestamp, 1_700_000_000_001 + number * 13)
        found.append((message.SerializeToString(), system.SerializeToString()))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=8) | st.integers(100, 70_000).map(bytes), min_size=24, max_size=40),
    st.lists(TEXT, min_size=1, max_size=5),
    st.sampled_from([[["a"]], [["a", "b"]], [["a", "b"], ["c", "d"]], [["a", "b", "c"], ["c", "a", "b"]]]),
    st.integers(1, 3),
    st.booleans(),
)
def test_columns_are_those_of_a_parser(
    bodies: list[bytes], texts: list[str], names: list[list[str]], keys: int, group: bool
) -> None:
    messages = stored(bodies, texts, names, keys, group)
    assert rows(records(messages).batch(ALL)) == expected(messages)


def test_such_a_block_needs_no_second_way(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = stored([b"body"] * 30, ["t", "uu", "\u00fc"], [["a", "b"]], 2, group=True)

    def refused(*_: Any) -> Any:
        raise AssertionError("not this way")

    monkeypatch.setattr(module._BlockColumns, "_of_head", refused)
    monkeypatch.setattr(module._BlockColumns, "_of_system", refused)
    assert rows(records(messages).batch(ALL)) == expected(messages)


@pytest.mark.parametrize(
    "other", ["no tag", "no body", "two keys", "no properties", "names twice", "not text", "fixed"]
)
def test_one_message_that_is_not_like_the_others_is_read_as_well(other: str) -> None:
    messages = stored([b"body"] * 30, ["t"], [["a", "b"]], 1, group=False)
    head, system = (
        definition_pb2.Message.FromString(messages[17][0]), definition_pb2.SystemProperties.FromString(messages[17][1])
    )  # fmt: skip
    more = b""
    if other == "no tag":
        system.ClearField("tag")
    elif other == "no body":
        head.body = b""
    elif other == "two keys":
        system.keys.append("more")
    elif other == "no properties":
        head.user_properties.clear()
    elif other == "names twice":
        head.user_properties.clear()
        head.user_properties["a"] = "1"
        more = definition_pb2.Message(user_properties={"a": "2"}).SerializeToString()
    elif other == "fixed":
        more = b"\xf9\x3f12345678"
    messages[17] = head.SerializeToString() + more, system.SerializeToString()
    assert rows(records(messages).batch(ALL)) == expected(messages)


def test_a_walk_tells_fields_and_stops_where_messages_differ() -> None:
    one, two = b"\x0a\x02hi\x18\x96\x01", b"\x0a\x03you\x18\x05"
    data = np.frombuffer(one + two, dtype=np.uint8)
    begin, end = np.array([0, len(one)]), np.array([len(one), len(one + two)])
    steps = walk(data, begin, end)
    assert steps is not None
    assert [(step.number, step.wire_type) for step in steps] == [(1, LENGTH), (3, VARINT)]
    assert steps[0].begin.tolist() == [2, len(one) + 2]
    assert steps[1].begin.tolist() == [150, 5]
    assert walk(data, begin, end - 1) is None
    assert walk(np.frombuffer(one + b"\x12" + two[1:], dtype=np.uint8), begin, end) is None


@pytest.mark.parametrize(
    "wrong", [b"\x0a\x7f", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\xff", b"\x0a", b"\x0b", b"\x80" * 12]
)
def test_a_walk_over_what_is_no_protobuf_ends(wrong: bytes) -> None:
    data = np.frombuffer(wrong * 2, dtype=np.uint8)
    assert walk(data, np.array([0, len(wrong)]), np.array([len(wrong), 2 * len(wrong)])) is None
