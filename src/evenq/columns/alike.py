"""Columns of a block whose messages all have the same fields in the same order, which is usual for one producer.

Called by `records`, which decodes every other block itself. A value may have any length in each message; only the
fields must be equal. So one step over all messages reads a tag and a length of each, and needs no table of fields by
message. All texts of the block become one Arrow array, which is validated once; the columns are slices of it.
The result always equals that of `records`. In other cases `walk` returns None and the other functions raise Unusual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenq.columns.lanes import CONTINUES, LENGTH, STEPS_MAX, VARINT, Unusual, long_varints

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Places = NDArray[np.int64]


class Step(NamedTuple):
    """One field of all messages."""

    number: int
    wire_type: int
    begin: Any
    """LENGTH: starts of the values; VARINT: the values."""
    end: Any
    """LENGTH: one past the last bytes; VARINT: starts of the next fields."""


def walk(data: NDArray[np.uint8], begin: Places, end: Places) -> list[Step] | None:
    """Returns the fields of the messages in `data[begin:end]`; None if they differ or are not valid protobuf."""
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
            # ASCII: each is a varint of one byte.
            if values.tobytes().isascii():
                after = at + 2
            else:
                values, after = long_varints(data, at + 1)
            if wire_type == LENGTH:
                # A length of one byte ends at most a little beyond the block, which `take` rejects. A longer one may
                # overflow, or be negative and loop backwards forever.
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
    """Returns the byte that all values equal. Raises Unusual if they differ."""
    content = values.tobytes()
    if content.count(content[0]) != len(content):
        raise Unusual
    return content[0]


def last(steps: Sequence[Step], number: int) -> Step | None:
    """Returns the last field of this number, which is the valid one in protobuf."""
    return next((step for step in reversed(steps) if step.number == number and step.wire_type == LENGTH), None)


class Texts:
    """Text values of the `count` messages of a block, combined into one array."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[tuple[Places, Places]] = []
        self._segments: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, values: Sequence[tuple[Places, Places]]) -> None:
        """Adds (starts, ends) of some values of each message. The result has them message by message."""
        first = len(self._columns)
        self._columns += values
        self._segments[name] = tuple(range(first, first + len(values)))

    def taken(self, buffer: pa.Buffer) -> Mapping[str, pa.Array]:
        """Returns name -> texts. Raises Unusual and ArrowInvalid for values that are not text."""
        import pyarrow as pa

        if not self._columns:
            return {}
        count, width = self._count, len(self._columns)
        order = sorted(range(width), key=lambda column: int(self._columns[column][0][0]))
        # One array over the whole block, with value, gap, value, gap and so on: Arrow's ends must ascend, so the values
        # alone would have to be copied first.
        edges = np.empty((count, 2 * width), dtype=np.int32)
        for index, column in enumerate(order):
            edges[:, 2 * index], edges[:, 2 * index + 1] = self._columns[column]
        places = {column: index for index, column in enumerate(order)}
        segments = tuple(tuple(places[column] for column in segment) for segment in self._segments.values())
        flat = edges.reshape(-1)
        if np.count_nonzero(flat[1:] < flat[:-1]):
            raise Unusual  # one value within another
        whole = pa.BinaryArray.from_buffers(pa.binary(), len(flat) - 1, [None, pa.py_buffer(flat), buffer])
        values = whole.take(_chosen(count, width, segments))
        text = values.buffers()[2]
        # ASCII is valid UTF-8; only with other bytes must each text be checked.
        is_ascii = text is None or memoryview(text).tobytes().isascii()
        values = values.view(pa.string()) if is_ascii else values.cast(pa.string())
        texts, begin = {}, 0
        for name, segment in self._segments.items():
            texts[name] = values.slice(begin, count * len(segment))
            begin += count * len(segment)
        return texts


def have_doubles(names: pa.Array, each: int) -> bool:
    """Returns whether a message has a name twice among its `each` names."""
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
    """Returns the names of the first message, if all messages have the same in the same order."""
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
    """Returns the indices of each segment's elements in value, gap, value, ..., one segment after the other."""
    import pyarrow as pa

    rows = 2 * width * np.arange(count, dtype=np.int32)[:, None]
    parts = [(rows + 2 * np.array(segment, dtype=np.int32)).reshape(-1) for segment in segments]
    return pa.array(np.concatenate(parts))
