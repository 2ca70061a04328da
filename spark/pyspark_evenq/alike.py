"""Columns of a block whose messages all have the same fields in the same order, as those of one producer mostly have.

Called by `records`, which does every other block its own way. A value may have any length in each message; only the
fields must be alike. So one step down all messages takes a tag and a length for each, and nothing is kept of which
message has what. All texts of the block become one Arrow array, which is looked at once for whether they are text, and
of which the columns are slices. Always true: what this makes is what `records` would have made; for whatever it does
not do, `walk` says None and the others raise Unusual, and nothing was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyspark_evenq.lanes import CONTINUES, LENGTH, STEPS_MAX, VARINT, Unusual, long_varints

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Places = NDArray[np.int64]

__all__ = ["Step", "Texts", "have_doubles", "last", "walk"]


class Step(NamedTuple):
    """One field of all messages."""

    number: int
    wire_type: int
    begin: Any
    """LENGTH: where the value begins; VARINT: the values."""
    end: Any
    """LENGTH: one past its last byte; VARINT: where the next field begins."""


def walk(data: NDArray[np.uint8], begin: Places, end: Places) -> list[Step] | None:
    """The fields of the messages in `data[begin:end]`; None if they are not alike, or no protobuf."""
    steps: list[Step] = []
    behind, at = data[1:], begin
    first_end = int(end[0])
    try:
        while int(at[0]) < first_end:
            tag = _same(data.take(at))
            # Field numbers from 16 on have a tag of two bytes.
            if tag >= CONTINUES:
                at = at + 1
                tag = tag & 0x7F | _same(data.take(at)) << 7
            wire_type = tag & 7
            if not 8 <= tag < CONTINUES << 7 or len(steps) >= STEPS_MAX:
                return None
            values: Any = behind.take(at)
            # All below 0x80: each is a varint of one byte.
            if values.tobytes().isascii():
                after = at + 2
            else:
                values, after = long_varints(data, at + 1)
            if wire_type == LENGTH:
                # One byte leads at most a little beyond the block, which `take` refuses; a longer length may overflow,
                # or be negative and lead backwards without end.
                if values.dtype != np.uint8 and not 0 <= int(values.min()) <= int(values.max()) <= len(data):
                    return None
                at = after + values
                steps.append(Step(tag >> 3, LENGTH, after, at))
            elif wire_type == VARINT:
                steps.append(Step(tag >> 3, VARINT, values, after))
                at = after
            else:
                return None
    except (IndexError, Unusual):
        return None
    return steps if np.array_equal(at, end) else None


def _same(values: NDArray[np.uint8]) -> int:
    """The byte that all of them are. Raises Unusual."""
    content = values.tobytes()
    if content.count(content[0]) != len(content):
        raise Unusual
    return content[0]


def last(steps: Sequence[Step], number: int) -> Step | None:
    """The field of this number that counts."""
    return next((step for step in reversed(steps) if step.number == number and step.wire_type == LENGTH), None)


class Texts:
    """Values of a block that are to be text, put together into one array."""

    def __init__(self, count: int) -> None:
        """`count` messages."""
        self._count = count
        self._columns: list[tuple[Places, Places]] = []
        self._segments: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, values: Sequence[tuple[Places, Places]]) -> None:
        """Some values of each message, where each begins and ends: message by message they will be."""
        first = len(self._columns)
        self._columns += values
        self._segments[name] = tuple(range(first, first + len(values)))

    def taken(self, buffer: pa.Buffer) -> Mapping[str, pa.Array]:
        """The texts by the names they were given. Raises Unusual and ArrowInvalid for what is no text."""
        import pyarrow as pa

        if not self._columns:
            return {}
        count, width = self._count, len(self._columns)
        order = sorted(range(width), key=lambda column: int(self._columns[column][0][0]))
        # One array over the whole block, of value, gap, value, gap and so on: Arrow's ends must ascend, so values
        # alone would have to be copied together first.
        edges = np.empty((count, 2 * width), dtype=np.int32)
        for index, column in enumerate(order):
            edges[:, 2 * index], edges[:, 2 * index + 1] = self._columns[column]
        places = {column: index for index, column in enumerate(order)}
        segments = tuple(tuple(places[column] for column in segment) for segment in self._segments.values())
        flat = edges.reshape(-1)
        if np.count_nonzero(flat[1:] < flat[:-1]):
            raise Unusual  # a value within another one
        whole = pa.BinaryArray.from_buffers(pa.binary(), len(flat) - 1, [None, pa.py_buffer(flat), buffer])
        values = whole.take(_chosen(count, width, segments))
        text = values.buffers()[2]
        # ASCII is UTF-8 as it is; only for other bytes must each text be checked.
        is_ascii = text is None or memoryview(text).tobytes().isascii()
        values = values.view(pa.string()) if is_ascii else values.cast(pa.string())
        texts, begin = {}, 0
        for name, segment in self._segments.items():
            texts[name] = values.slice(begin, count * len(segment))
            begin += count * len(segment)
        return texts


def have_doubles(names: pa.Array, each: int) -> bool:
    """Whether a message has a name twice, among the `each` that it has."""
    if each < 2:
        return False
    first = _repeated(names, each)
    if first is not None:
        return len(set(first)) < each
    codes = names.dictionary_encode().indices.to_numpy().reshape(-1, each)
    if each == 2:
        return bool(np.count_nonzero(codes[:, 0] == codes[:, 1]))
    ordered = np.sort(codes, axis=1)
    return bool(np.count_nonzero(ordered[:, 1:] == ordered[:, :-1]))


def _repeated(names: pa.Array, each: int) -> list[str] | None:
    """The names of the first message, if all have the same in the same order."""
    _, places, text = names.buffers()
    edges = np.frombuffer(places, dtype=np.int32)[names.offset : names.offset + len(names) + 1]
    sizes = np.diff(edges).reshape(-1, each)
    if text is None or np.count_nonzero(sizes != sizes[0]):
        return None
    view = memoryview(text)
    whole, first = view[edges[0] : edges[-1]].tobytes(), view[edges[0] : edges[each]].tobytes()
    return names.slice(0, each).to_pylist() if first * len(sizes) == whole else None


@lru_cache(maxsize=64)
def _chosen(count: int, width: int, segments: tuple[tuple[int, ...], ...]) -> pa.Array:
    """Which elements of value, gap, value, ... each segment has, one segment behind the other."""
    import pyarrow as pa

    rows = 2 * width * np.arange(count, dtype=np.int32)[:, None]
    parts = [(rows + 2 * np.array(segment, dtype=np.int32)).reshape(-1) for segment in segments]
    return pa.array(np.concatenate(parts))
