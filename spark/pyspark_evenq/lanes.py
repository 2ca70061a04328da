"""The protobuf fields of many messages at once: one numpy operation works on a whole block, where a parser would make
one Python object a field.

Called by `records`. All messages are walked in step, a lane each: what most have in common (the same fields in the same
order) costs a few operations a field, whatever the number of messages. Only what is plain is done here. For anything
else (fields beyond the message's end, endless varints, very many fields) it raises Unusual, and a real parser judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

__all__ = ["LENGTH", "VARINT", "Fields", "Last", "Unusual", "fields"]

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
STEPS_MAX = 512
"""Fields of one message; a parser is faster by then."""
SHIFT_MAX = 63
NUMBER_MAX = (1 << 29) - 1  # of a field in protobuf
CONTINUES = 0x80
"""In each byte of a varint but the last."""


class Unusual(Exception):
    """Not for this module."""


class Fields(NamedTuple):
    """One field of some messages."""

    number: int
    wire_type: int
    rows: NDArray[np.intp] | None
    """Which messages; None: all."""
    begin: Any
    """LENGTH: where the value begins; VARINT: the values, those over 63 bits as negative numbers."""
    end: Any
    """LENGTH: one past its last byte."""


class Last:
    """The last occurrence of a field in each message."""

    def __init__(self, default: Places) -> None:
        self.begin = self.end = default
        """Where a message has no such field, both are its place of `default`."""
        self.present: NDArray[np.bool_] | None = None
        """None: in no message."""

    def take(self, found: Fields) -> None:
        """A later occurrence wins."""
        if found.rows is None:
            self.begin, self.end = found.begin, found.end
            self.present = np.ones(len(self.begin), dtype=np.bool_)
            return
        if self.present is None:
            self.begin, self.end = self.begin.copy(), self.end.copy()
            self.present = np.zeros(len(self.begin), dtype=np.bool_)
        elif self.present.all():
            self.begin, self.end = self.begin.copy(), self.end.copy()
        self.begin[found.rows], self.end[found.rows] = found.begin, found.end
        self.present[found.rows] = True


def fields(data: NDArray[np.uint8], begin: Places, end: Places) -> Iterator[Fields]:
    """Every field of the messages in `data[begin:end]`, in the order of each message. Fixed-width ones are left out."""
    rows: NDArray[np.intp] | None = None
    at = begin
    for _ in range(STEPS_MAX):
        inside = at < end
        if np.count_nonzero(inside) < len(at):
            left = np.flatnonzero(inside)
            rows = left if rows is None else rows[left]
            at, end = at[left], end[left]
        if not len(at):
            return
        byte = data.take(at)
        same = byte.tobytes()
        tag = same[0]
        if tag < CONTINUES and same.count(tag) == len(same):
            found, at = _field(data, tag, rows, at + 1, end)
            if found is not None:
                yield found
            continue
        tags, at = _varints(data, at, end)
        following = np.empty_like(at)
        for tag in np.unique(tags).tolist():
            lanes = np.flatnonzero(tags == tag)
            found, after = _field(data, tag, lanes if rows is None else rows[lanes], at[lanes], end[lanes])
            following[lanes] = after
            if found is not None:
                yield found
        at = following
    if np.count_nonzero(at < end):
        raise Unusual


def _field(
    data: NDArray[np.uint8], tag: int, rows: NDArray[np.intp] | None, at: Places, end: Places
) -> tuple[Fields | None, Places]:
    """The field behind its tag, and where the next one begins."""
    number, wire_type = tag >> 3, tag & 7
    if not 0 < number <= NUMBER_MAX:
        raise Unusual
    if wire_type == LENGTH:
        lengths, begin = _varints(data, at, end)
        if lengths.dtype != np.uint8 and int(lengths.min()) < 0:
            raise Unusual
        after = begin + lengths
        if np.count_nonzero(after > end) or np.count_nonzero(after < begin):
            raise Unusual
        return Fields(number, LENGTH, rows, begin, after), after
    if wire_type == VARINT:
        values, after = _varints(data, at, end)
        return Fields(number, VARINT, rows, values, None), after
    if wire_type not in {EIGHT_BYTES, FOUR_BYTES}:
        raise Unusual
    after = at + (8 if wire_type == EIGHT_BYTES else 4)
    if np.count_nonzero(after > end):
        raise Unusual
    return None, after


def _varints(data: NDArray[np.uint8], at: Places, end: Places) -> tuple[NDArray[Any], Places]:
    """The varint at each place (one of 64 bits as a negative number), and the places behind them."""
    if np.count_nonzero(at >= end):
        raise Unusual
    byte = data.take(at)
    after = at + 1
    if byte.tobytes().isascii():  # none of them goes on
        return byte, after
    values = (byte & 0x7F).astype(np.int64)
    lanes = np.flatnonzero(byte & CONTINUES)
    shift = 7
    while len(lanes):
        here = after.take(lanes)
        if shift > SHIFT_MAX or np.count_nonzero(here >= end.take(lanes)):
            raise Unusual
        byte = data.take(here)
        values[lanes] |= (byte & 0x7F).astype(np.int64) << shift
        after[lanes] += 1
        lanes = lanes[(byte & CONTINUES) != 0]
        shift += 7
    return values, after
