"""Fields of many messages at once: the same as one by one, and nothing that is not plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.columns.lanes import LENGTH, STEPS_MAX, VARINT, Last, Unusual, fields


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def laid(messages: list[bytes]) -> tuple[Any, Any, Any]:
    """One buffer, with something else between the messages."""
    data, begin, end = b"\xff", [], []
    for message in messages:
        begin.append(len(data))
        data += message
        end.append(len(data))
        data += b"\xff"
    return np.frombuffer(data, dtype=np.uint8), np.array(begin), np.array(end)


def walked(messages: list[bytes]) -> list[list[tuple[int, Any]]]:
    """Number and value of every field, message by message."""
    data, begin, end = laid(messages)
    found: list[list[tuple[int, Any]]] = [[] for _ in messages]
    for one in fields(data, begin, end):
        rows = range(len(messages)) if one.rows is None else one.rows.tolist()
        for at, row in enumerate(rows):
            value = int(one.begin[at]) if one.wire_type == VARINT else bytes(data[one.begin[at] : one.end[at]])
            found[row].append((one.number, value))
    return found


NUMBERS = st.sampled_from([1, 2, 15, 16, 17, 2_000, (1 << 29) - 1])
FIELDS = st.lists(
    st.tuples(NUMBERS, st.binary(max_size=200) | st.integers(0, (1 << 64) - 1)), max_size=6
)  # fmt: skip


def encoded(message: list[tuple[int, Any]]) -> bytes:
    parts = []
    for number, value in message:
        if isinstance(value, bytes):
            parts.append(varint(number << 3 | LENGTH) + varint(len(value)) + value)
        else:
            parts.append(varint(number << 3 | VARINT) + varint(value))
    return b"".join(parts)


@settings(max_examples=100, deadline=None)
@given(st.lists(FIELDS, max_size=12))
def test_every_field_of_every_message_is_found_in_its_order(messages: list[list[tuple[int, Any]]]) -> None:
    signed = [
        [(number, value - (1 << 64) if isinstance(value, int) and value >> 63 else value) for number, value in message]
        for message in messages
    ]
    assert walked([encoded(message) for message in messages]) == signed


def test_fixed_width_fields_are_passed_over() -> None:
    fixed = varint(3 << 3 | 1) + b"12345678" + varint(4 << 3 | 5) + b"1234"
    assert walked([fixed + encoded([(1, b"a")]), encoded([(1, b"b")]) + fixed]) == [[(1, b"a")], [(1, b"b")]]


@pytest.mark.parametrize(
    "broken",
    [
        b"\x0a", b"\x0a\x05abcd", b"\x08", b"\x08\x80", b"\x80", b"\x00\x00", b"\x08" + b"\x80" * 10 + b"\x01",
        b"\x0b\x0c", b"\x0d123", b"\x09123", b"\x0a" + b"\xff" * 9 + b"\x01", b"\x0a\x80\x80\x80\x80\x10",
        varint(1 << 32 | 1 << 3) + b"\x01", b"\x08\x01" * (STEPS_MAX + 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("others", [0, 3])
def test_what_is_not_plain_is_left_to_a_parser(broken: bytes, others: int) -> None:
    with pytest.raises(Unusual):
        walked([encoded([(1, b"fine")])] * others + [broken])


def test_the_last_value_of_a_field_is_kept_for_each_message() -> None:
    data, begin, end = laid([encoded(message) for message in (
        [(1, b"a"), (1, b"b")], [(2, b"x")], [(1, b"c")], [],
    )])  # fmt: skip
    last = Last(begin)
    for one in fields(data, begin, end):
        if one.number == 1:
            last.take(one)
    values = [bytes(data[low:high]) for low, high in zip(last.begin, last.end, strict=True)]
    assert values == [b"b", b"", b"c", b""]
    assert last.present is not None
    assert last.present.tolist() == [True, False, True, False]
