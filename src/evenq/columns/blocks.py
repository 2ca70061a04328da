"""Parser of the encoded blocks of a scan.

Called by the workers, once per block (2 MiB by default). A block has records as they are stored (`records` decodes
them) or messages, which are parsed once (`message_columns` decodes those).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from evenq.errors import InternalError

if TYPE_CHECKING:
    from evenq.columns.records import BlockRecords
    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message, Status

VARINT, LENGTH = 0, 2
STATUS, FIRST, NEXT, RECORDS, FAR_BEHIND = 1, 2, 3, 5, 6
BLOCK_FIELDS: Mapping[int, type] = {STATUS: bytes, FIRST: int, NEXT: int, RECORDS: bytes, FAR_BEHIND: int}
RECORDS_FIELDS: Mapping[int, type] = {1: int, 2: int, 3: bytes, 4: bytes, 5: int}
"""head, system, sizes, frames, checked."""


@dataclass(slots=True)
class Block:
    """One answer of a scan."""

    first_offset: int
    next_offset: int
    status: Status | None = None
    """None: OK."""
    messages: Sequence[Message] = ()
    records: StoredBytes | None = None
    far_behind: bool = False
    """The scan began far behind the end of its leader's log: a follower should continue it."""

    @property
    def count(self) -> int:
        return len(self.messages) if self.records is None else len(self.records.sizes) // 4


class StoredBytes(NamedTuple):
    """The records of a block. Views into the block."""

    sizes: bytes | memoryview
    frames: bytes | memoryview
    head: bool
    system: bool
    checked: bool


def parse(encoded: bytes | memoryview) -> Block:
    """Parses a block; its records are views into `encoded`. Raises InternalError for bytes that are not a block."""
    from evenq.wire.status import DecodeError
    from evenq.wire.stubs.evenq.v1.data_pb2 import ScanBlock

    view = memoryview(encoded)
    plain = _plain(view)
    if plain is not None:
        return plain
    try:
        block = ScanBlock.FromString(bytes(view))
    except DecodeError as error:
        raise InternalError(f"the broker sent {len(view)} bytes that are not a block: {error}") from error
    held = block.records
    stored = StoredBytes(held.sizes, held.frames, held.head, held.system, held.checked)
    records = stored if block.HasField("records") else None
    return Block(block.first_offset, block.next_offset, block.status, block.messages, records, block.far_behind)


def _plain(view: memoryview) -> Block | None:
    """Parses a block of records by hand, because protobuf would copy it twice; None for any other block."""
    block = _fields(view, BLOCK_FIELDS)
    if block is None or STATUS not in block or RECORDS not in block or bytes(block[STATUS]) != _ok():
        return None
    held = _fields(block[RECORDS], RECORDS_FIELDS)
    if held is None:
        return None
    head, system, sizes, frames, checked = (held.get(number, kind()) for number, kind in RECORDS_FIELDS.items())
    records = StoredBytes(sizes, frames, bool(head), bool(system), bool(checked))
    far_behind = bool(block.get(FAR_BEHIND, 0))
    return Block(block.get(FIRST, 0), block.get(NEXT, 0), records=records, far_behind=far_behind)


def _fields(view: memoryview, kinds: Mapping[int, type]) -> dict[int, Any] | None:
    """Parses a message with only known fields, each at most once, into numbers and views; None for any other."""
    fields: dict[int, Any] = {}
    at, end = 0, len(view)
    try:
        while at < end:
            number, wire_type = view[at] >> 3, view[at] & 7
            value = shift = 0
            byte = 0x80
            while byte & 0x80:
                at += 1
                byte = view[at]
                value |= (byte & 0x7F) << shift
                shift += 7
            at += 1
            # Protobuf decides on everything unusual (decision 34).
            if number in fields or shift > 63 or kinds.get(number) is not (int, None, bytes)[min(wire_type, 2)]:
                return None
            if wire_type == LENGTH:
                value_end = at + value
                # A length beyond the end is detected below: `at` is not `end` then.
                fields[number], at = view[at:value_end], value_end
            elif wire_type == VARINT:
                fields[number] = value
            else:
                return None
    except IndexError:
        return None
    return fields if at == end else None


@cache
def _ok() -> bytes:
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import OK, Status

    return Status(code=OK, message="OK").SerializeToString()


def records_of(block: Block, queue: MessageQueue) -> BlockRecords | None:
    held = block.records
    if held is None:
        return None
    from evenq.columns.records import BlockRecords

    return BlockRecords(queue=queue, first_offset=block.first_offset, **held._asdict())


def tag_set(expression: str) -> frozenset[str]:
    """Returns the tags of `a || b`; empty: every tag."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return frozenset() if "*" in tags else tags


def with_tags(messages: Sequence[Message], tags: frozenset[str]) -> Sequence[Message]:
    """Returns the messages with one of the tags: brokers filter by the tag's hash, which two tags may share."""
    return [message for message in messages if message.system_properties.tag in tags] if tags else messages
