"""The few protobuf fields that are read and written by hand."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import BadRequest
from evenq.serving.fields import read_fields, write_bytes, write_varint

NUMBERS = st.integers(1, 5_000)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, (1 << 63) - 1) | st.binary(max_size=300))))
def test_fields_come_back_as_they_were_written(fields):
    data = b"".join(
        write_varint(number, value) if isinstance(value, int) else write_bytes(number, value)
        for number, value in fields
    )
    assert list(read_fields(data)) == fields


@given(st.binary(max_size=60))
@pytest.mark.slow
def test_any_bytes_are_read_or_refused(data):
    with contextlib.suppress(BadRequest):
        assert all(number >= 0 for number, _ in read_fields(data))


def test_fixed_width_fields_are_skipped():
    data = b"\x09" + bytes(8) + b"\x15" + bytes(4) + write_varint(3, 7)
    assert list(read_fields(data)) == [(3, 7)]


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (b"\x08", "ends too early"),
        (b"\x08" + b"\xff" * 11, "too long"),
        (b"\x0a\x05abc", "has a length of 5 bytes, but 3 follow"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_what_is_no_message_is_told(data, result):
    with pytest.raises(BadRequest, match=result):
        list(read_fields(data))
