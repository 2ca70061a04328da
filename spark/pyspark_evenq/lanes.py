"""The protobuf fields of many messages at once: one numpy operation works on a whole block, where a parser would make
one Python object a field.

Called by `records`. All messages are walked in step, a lane each: what most have in common (the same fields in the same
order) costs a few operations a field, whatever the number of messages. Only what is plain is done here. For anything
else (fields beyond the message's end, endless varints, very many fields) it raises Unusual, and a real parser judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

__all__ = ["LENGTH", "STEPS_MAX", "VARINT", "Fields", "Last", "Unusual", "fields", "long_varints"]

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
STEPS_MAX = 512
"""Fields of one message; a parser is faster by then."""
SHIFT_MAX = 63
NUMBER_MAX = (1 << 29) - 1  # of a field in protobuf
CONTINUES = 0x80
"""In each byte of a varint but the last."""
EIGHT = 8
ONE, HIGHEST = np.uint64(1), np.uint64(56)
LAST_BYTES, LOWEST_BITS = np.uint64(0x8080808080808080), np.uint64(0x0101010101010101)
VALUE_BITS = ~LAST_BYTES
SQUEEZED = tuple(
    (np.uint64(part), np.uint64(shift), enough)
    for part, shift, enough in (
        (0x007F007F007F007F, 1, 1 << 16),
        (0x00003FFF00003FFF, 2, 1 << 32),
        (0x000000000FFFFFFF, 4, 1 << 64),
    )
)
"""Seven bits of each byte become fourteen of each two, and so on; enough for varints that end below a bit."""


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

    @classmethod
    def of_all(cls, begin: Places, end: Places) -> Self:
        """Each message has it."""
        made = cls(begin)
        made.end = end
        made.present = np.ones(len(begin), dtype=np.bool_)
        return made

    def take(self, fields: Fields) -> None:
        """A later occurrence wins."""
        if fields.rows is None:
            self.begin, self.end = fields.begin, fields.end
            self.present = np.ones(len(self.begin), dtype=np.bool_)
            return
        if self.present is None:
            self.begin, self.end = self.begin.copy(), self.end.copy()
            self.present = np.zeros(len(self.begin), dtype=np.bool_)
        elif self.present.all():
            self.begin, self.end = self.begin.copy(), self.end.copy()
        self.begin[fields.rows], self.end[fields.rows] = fields.begin, fields.end
        self.present[fields.rows] = True


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
        # Messages of one producer mostly have the same field here: counting bytes is all, no sorting by tags.
        if tag < CONTINUES and same.count(tag) == len(same):
            occurrences, at = _field(data, tag, rows, at + 1, end)
            if occurrences is not None:
                yield occurrences
            continue
        tags, at = _varints(data, at, end)
        following = np.empty_like(at)
        for tag in np.unique(tags).tolist():
            lanes = np.flatnonzero(tags == tag)
            occurrences, after = _field(data, tag, lanes if rows is None else rows[lanes], at[lanes], end[lanes])
            following[lanes] = after
            if occurrences is not None:
                yield occurrences
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
    after = at + (EIGHT if wire_type == EIGHT_BYTES else 4)
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
    values, after = long_varints(data, at)
    if np.count_nonzero(after > end):
        raise Unusual
    return values, after


def long_varints(data: NDArray[np.uint8], at: Places) -> tuple[NDArray[np.int64], Places]:
    """The varint at each place (one of 64 bits as a negative number), and the places behind them. Raises Unusual if one
    does not end.
    """
    size = len(data)
    # A word of eight bytes would reach beyond the block.
    if size < EIGHT or int(at.max()) > size - EIGHT:
        return _one_by_one(data, at)
    words: Any = np.ndarray((size - EIGHT + 1,), dtype="<u8", buffer=data, strides=(1,))
    word: NDArray[np.uint64] = words[at].astype(np.uint64, copy=False)
    last = ~word & LAST_BYTES
    last &= ~last + ONE  # the highest bit of the byte that ends it
    if not last.all():
        return _one_by_one(data, at)
    word &= (last - ONE) & VALUE_BITS
    # The product adds up the lowest bits of all bytes in the highest one: the number of bytes before the last.
    after = at + (((last - ONE) & LOWEST_BITS) * LOWEST_BITS >> HIGHEST).astype(np.int64)
    longest = int(last.max())
    for part, shift, enough in SQUEEZED:
        word = (word & part) | (word & ~part) >> shift
        if longest < enough:
            break
    return word.view(np.int64), after


def _one_by_one(data: NDArray[np.uint8], at: Places) -> tuple[NDArray[np.int64], Places]:
    """The same byte by byte: those of nine and ten bytes, and near the end."""
    size = len(data)
    byte = data.take(at)
    after = at + 1
    values = (byte & 0x7F).astype(np.int64)
    lanes = np.flatnonzero(byte & CONTINUES)
    shift = 7
    while len(lanes):
        here = after.take(lanes)
        if shift > SHIFT_MAX or int(here.max()) >= size:
            raise Unusual
        byte = data.take(here)
        values[lanes] |= (byte & 0x7F).astype(np.int64) << shift
        after[lanes] += 1
        lanes = lanes[(byte & CONTINUES) != 0]
        shift += 7
    return values, after
