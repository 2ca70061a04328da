"""A block of rows taken apart: the columns of `evenq.v1.RowBlock`, checked, and the fields of its rows.

Called by `core.staging.rows`. Parts that the rows of a block share are processed once: keys and properties are encoded
by columns. The names of properties, which a job's blocks mostly share, are remembered from block to block. Texts that
need a closer look make the block not plain: then `core.sending.validation` checks each row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import add, sub
from typing import Protocol, TypeVar

from evenq.errors import BadRequest
from evenq_broker.core.sending.validation import KEYS_MAX, RESERVED_PROPERTIES, MessageLimits
from evenq_broker.core.state.frames import varint

ROWS_MAX = 20_000  # most rows in one block
NAMES_BYTES_MAX, NAME_ENDS_MAX = 128 << 10, 64 << 10
"""Larger columns of names, or of their ends, are not remembered; the others take a megabyte each at most."""
NAMES_KEPT = 8
BORN_MS_MAX = 253_402_300_799_999
_NONE: Sequence[int] = ()
_KEY_BYTES_MAX = 1_024  # of a key whose head is made in advance
_KEY_HEADS = [b"\x12" + varint(size) for size in range(_KEY_BYTES_MAX + 1)]
T = TypeVar("T")


class RowBlockColumns(Protocol):
    """`evenq.v1.RowBlock`."""

    count: int
    bodies: bytes
    body_ends: bytes
    tags: bytes
    tag_ends: bytes
    keys: bytes
    key_ends: bytes
    key_rows: bytes
    property_names: bytes
    property_name_ends: bytes
    property_values: bytes
    property_value_ends: bytes
    property_rows: bytes
    message_groups: bytes
    message_group_ends: bytes
    delivery_ms: bytes
    priorities: bytes
    queue_ids: bytes
    first_row: int
    born_ms: int


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a block's properties, and which row has which."""

    names: tuple[bytes, ...]
    ends: tuple[int, ...]  # of each row; empty: no row has any
    columns: tuple[bytes, ...]  # the names, if all rows have the same ones in the same order
    plain: bool
    low: int
    high: int  # bytes of the shortest and of the longest name
    most: int  # names of the row that has most


@dataclass(slots=True)
class Rows:
    """Columns of a block, taken apart; empty sequences: no row has any."""

    count: int
    bodies: list[bytes]
    tags: list[bytes]
    groups: list[bytes]
    due_ms: Sequence[int]
    priorities: Sequence[int]
    queue_ids: Sequence[int]
    first_row: int
    born_ms: int
    plain_texts: bool  # keys and properties need no closer look
    key_fields: list[bytes]
    """Keys of each row, encoded as in system properties; only if the texts are plain, like the next ones."""
    property_fields: list[bytes]  # user properties of each row, encoded
    all_keys: list[bytes]
    key_ends: Sequence[int]
    all_pairs: tuple[Sequence[bytes], Sequence[bytes]]
    pair_ends: Sequence[int]

    def keys(self, at: int) -> list[bytes]:
        return self.all_keys[_start(self.key_ends, at) : self.key_ends[at]] if self.key_ends else []

    def properties(self, at: int) -> list[tuple[bytes, bytes]]:
        if not self.pair_ends:
            return []
        pairs = slice(_start(self.pair_ends, at), self.pair_ends[at])
        names, values = self.all_pairs
        return list(zip(names[pairs], values[pairs], strict=True))


def _start(ends: Sequence[int], at: int) -> int:
    return ends[at - 1] if at else 0


def rows_of(block: RowBlockColumns, limits: MessageLimits) -> Rows:
    """Takes the columns apart. Raises BadRequest for columns that do not fit together."""
    count = block.count
    if not 0 < count <= ROWS_MAX:
        raise BadRequest(f"the block has {count} rows; stage 1 to {ROWS_MAX} in one block")
    keys = _texts("keys", block.keys, block.key_ends)
    key_ends = _ends_of_rows("key_rows", len(keys), block.key_rows, count)
    columns = block.property_names, block.property_name_ends, block.property_rows, count
    keeps = len(columns[0]) <= NAMES_BYTES_MAX and len(columns[1]) <= NAME_ENDS_MAX
    names = (_names if keeps else _names.__wrapped__)(*columns)
    values = _texts("property_values", block.property_values, block.property_value_ends, len(names.names))
    tags = _texts("tags", block.tags, block.tag_ends, count, may_miss=True)
    if not 0 <= block.born_ms <= BORN_MS_MAX:
        raise BadRequest(f"born_ms is {block.born_ms}; give ms since the epoch, at most {BORN_MS_MAX} (year 9999)")
    plain = (
        _plain(block.keys)
        and b" " not in block.keys
        and _within(keys, 1, _KEY_BYTES_MAX)
        and (isinstance(key_ends, range) or _most(key_ends) <= KEYS_MAX)
        and names.plain
        and names.low >= 1
        and names.high <= limits.properties_bytes_max
        and block.property_values.isascii()
        and _small(names, values, keys, key_ends, tags, limits)
    )
    return Rows(
        count=count,
        bodies=_texts("bodies", block.bodies, block.body_ends, count),
        tags=tags,
        groups=_texts("message_groups", block.message_groups, block.message_group_ends, count, may_miss=True),
        due_ms=_numbers("delivery_ms", block.delivery_ms, "q", count),
        priorities=_numbers("priorities", block.priorities, "i", count),
        queue_ids=_numbers("queue_ids", block.queue_ids, "i", count),
        first_row=block.first_row,
        born_ms=block.born_ms,
        plain_texts=plain,
        key_fields=_key_fields(keys, key_ends) if plain and keys else [],
        property_fields=_property_fields(names, values) if plain and values else [],
        all_keys=keys,
        key_ends=key_ends,
        all_pairs=(names.names, values),
        pair_ends=names.ends,
    )


# -- numbers and texts ------------------------------------------------------------------------------------------------


def _numbers(name: str, data: bytes, letter: str, count: int) -> Sequence[int]:
    if not data:
        return _NONE
    size = struct.calcsize("<" + letter)
    if len(data) != size * count:
        raise BadRequest(f"the column {name} has {len(data)} bytes, {count} numbers of {size} bytes are due")
    return struct.unpack(f"<{count}{letter}", data)


def _texts(name: str, data: bytes, ends: bytes, count: int = -1, *, may_miss: bool = False) -> list[bytes]:
    if not ends and (may_miss or count <= 0):
        return []
    places = _numbers(f"{name} (ends)", ends, "i", len(ends) // 4 if count < 0 else count)
    _must_rise(name, places, len(data))
    return [data[start:end] for start, end in pairwise((0, *places))]


def _ends_of_rows(name: str, items: int, rows: bytes, count: int) -> Sequence[int]:
    """Returns for each row the index behind its last item."""
    if not rows:
        if items:
            raise BadRequest(f"the column {name} is missing: {items} values belong to rows")
        return _NONE
    if items == count and rows == _one_each(count):
        return range(1, count + 1)
    places = _numbers(name, rows, "i", count)
    _must_rise(name, places, items)
    return places


@lru_cache(maxsize=NAMES_KEPT)
def _one_each(count: int) -> bytes:
    return struct.pack(f"<{count}i", *range(1, count + 1))


def _must_rise(name: str, places: Sequence[int], end: int) -> None:
    if not places or places[0] < 0 or places[-1] != end or sorted(places) != list(places):
        raise BadRequest(f"the ends of the column {name} are not ascending numbers up to {end}")


def _plain(text: bytes) -> bool:
    return text.isascii() and text.decode("ascii").isprintable()


def _within(items: Sequence[Sized], low: int, high: int) -> bool:
    return not items or (low <= min(map(len, items)) and max(map(len, items)) <= high)


def _most(ends: Sequence[int]) -> int:
    return max(map(sub, ends, (0, *ends)), default=0)


# -- keys and properties ----------------------------------------------------------------------------------------------


def _key_fields(keys: list[bytes], ends: Sequence[int]) -> list[bytes]:
    heads = _KEY_HEADS
    fields = [heads[len(key)] + key for key in keys]
    if ends == range(1, len(keys) + 1):  # one for each row
        return fields
    return [b"".join(fields[start:end]) for start, end in pairwise((0, *ends))]


@lru_cache(maxsize=NAMES_KEPT)
def _names(data: bytes, ends: bytes, rows: bytes, count: int) -> _Names:
    names = tuple(_texts("property_names", data, ends))
    row_ends = tuple(_ends_of_rows("property_rows", len(names), rows, count))
    each, rest = divmod(len(names), count)
    columns: tuple[bytes, ...] = ()
    if each and not rest and row_ends == tuple(range(each, len(names) + 1, each)) and names == names[:each] * count:
        columns = names[:each]
    sizes = [len(name) for name in names] or [1]
    plain = _plain(data) and RESERVED_PROPERTIES.isdisjoint(name.decode(errors="replace") for name in names)
    return _Names(names, row_ends, columns, plain, min(sizes), max(sizes), _most(row_ends))


def _small(
    names: _Names,
    values: list[bytes],
    keys: list[bytes],
    key_ends: Sequence[int],
    tags: list[bytes],
    limits: MessageLimits,
) -> bool:
    """Returns True if no row can exceed the limits; otherwise each is checked."""
    size = names.most * (names.high + _longest(values)) + _most(key_ends) * _longest(keys) + _longest(tags)
    return names.most <= limits.properties_max and size <= limits.properties_bytes_max


def _longest(texts: list[bytes]) -> int:
    return max(map(len, texts), default=0)


def _property_fields(names: _Names, values: list[bytes]) -> list[bytes]:
    """Returns the user properties of each row, as fields."""
    each = len(names.columns)
    if not each:
        fields = _Pairs()
        encoded = [fields[pair] for pair in zip(names.names, values, strict=True)]
        return [b"".join(encoded[start:end]) for start, end in pairwise((0, *names.ends))]
    columns = []
    for at, name in enumerate(names.columns):
        column = values[at::each]
        heads = {size: _pair_head(name, size) for size in {*map(len, column)}}
        columns.append([heads[len(value)] + value for value in column])
    first, *others = columns
    for other in others:
        first = list(map(add, first, other))
    return first


def _pair_head(name: bytes, size: int) -> bytes:
    """Returns the bytes in front of a value of this size."""
    inner = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(size)
    return b"\x12" + varint(len(inner) + size) + inner


class _Pairs(dict[tuple[bytes, bytes], bytes]):
    """Fields by name and value, made on first use: rows of one block often share them."""

    def __missing__(self, pair: tuple[bytes, bytes]) -> bytes:
        name, value = pair
        encoded = self[pair] = _pair_head(name, len(value)) + value
        return encoded
