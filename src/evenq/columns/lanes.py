"""Decoder of the protobuf fields of many messages together: one numpy operation works on a whole block, while a parser
would make one Python object per field.

Called by `records`. It walks all messages in step, each in a lane. Fields that most messages have in the same order
cost a few operations each, for any number of messages. In unusual cases (fields beyond the message's end, endless
varints, very many fields) it raises Unusual, and the caller uses a full parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
STEPS_MAX = 512
"""Fields of one message; with more, a parser is faster."""
SHIFT_MAX = 63
NUMBER_MAX = (1 << 29) - 1  # of a field in protobuf
CONTINUES = 0x80
"""Set in each byte of a varint but the last."""
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
"""Steps (mask, shift, enough) that join groups of 7 bits to 14, 28 and 56 bits; `enough` ends short varints early."""


class Unusual(Exception):
    """Input that this module does not decode."""


class Fields(NamedTuple):
    """One field of some messages."""

    number: int
    wire_type: int
    rows: NDArray[np.intp] | None
    """Indices of the messages; None: all."""
    begin: Any
    """LENGTH: starts of the values; VARINT: the values, those over 63 bits as negative numbers."""
    end: Any
    """LENGTH: one past the last bytes."""


class Last:
    """The last occurrence of a field in each message."""

    def __init__(self, default: Places) -> None:
        self.begin = self.end = default
        """For a message without the field, both are its place in `default`."""
        self.present: NDArray[np.bool_] | None = None
        """None: no message has the field."""

    @classmethod
    def of_all(cls, begin: Places, end: Places) -> Self:
        """Returns a field that each message has."""
        made = cls(begin)
        made.end = end
        made.present = np.ones(len(begin), dtype=np.bool_)
        return made

    def take(self, fields: Fields) -> None:
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
    """Yields fields of the messages in `data[begin:end]`, in the order of each message, without fixed-width ones."""
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
        # Usual for one producer: all messages have the same field here, so one count of bytes replaces the sort by tag.
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
    """Returns the field after its tag, and the starts of the next fields."""
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
    """Returns the varint at each place (one of 64 bits as a negative number), and the places after them."""
    if np.count_nonzero(at >= end):
        raise Unusual
    byte = data.take(at)
    after = at + 1
    if byte.tobytes().isascii():  # varints of one byte
        return byte, after
    values, after = long_varints(data, at)
    if np.count_nonzero(after > end):
        raise Unusual
    return values, after


def long_varints(data: NDArray[np.uint8], at: Places) -> tuple[NDArray[np.int64], Places]:
    """Returns the same for varints of any length. Raises Unusual if one does not end."""
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
    """Returns the same byte by byte: for varints of nine and ten bytes, and near the end of the block."""
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
