"""From an encoded block to an Arrow batch.

Called by the workers, once per block of about 1 MiB. A block holds records as they are stored (`records` takes them
apart) or messages: those are parsed once, then there is one pass per wanted column, because attribute access per row
is what costs. Nothing is computed for columns that were not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from evenq.errors import InternalError

if TYPE_CHECKING:
    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message, Status
    from pyspark_evenq.records import BlockRecords

__all__ = ["Block", "StoredBytes", "parse", "records_of", "tag_set", "with_tags"]

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
    """In place of messages."""
    far_behind: bool = False
    """The scan began far behind the end of its leader's log: a follower had better go on."""

    @property
    def count(self) -> int:
        """How many messages are in it."""
        return len(self.messages) if self.records is None else len(self.records.sizes) // 4


class StoredBytes(NamedTuple):
    """What a block says of its records. Views into the block."""

    sizes: bytes | memoryview
    frames: bytes | memoryview
    head: bool
    system: bool
    checked: bool


def parse(encoded: bytes | memoryview) -> Block:
    """The block; records in it are views into `encoded`. Raises InternalError for bytes that are none."""
    from evenq.wire.status import DecodeError
    from evenq.wire.stubs.evenq.v1.data_pb2 import ScanBlock

    view = memoryview(encoded)
    plain = _plain(view)
    if plain is not None:
        return plain
    try:
        block = ScanBlock.FromString(bytes(view))
    except DecodeError as error:
        raise InternalError(f"the broker sent {len(view)} bytes that are no block: {error}") from error
    held = block.records
    records = StoredBytes(held.sizes, held.frames, held.head, held.system, held.checked)
    return Block(
        block.first_offset, block.next_offset, block.status, block.messages,
        records if block.HasField("records") else None, block.far_behind,
    )  # fmt: skip


def _plain(view: memoryview) -> Block | None:
    """A block of records, by its own few fields: protobuf would copy all of it twice. None: it is something else."""
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
    """The fields of a message that has none twice and no others: numbers, and views of what has a length."""
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
            # Whatever is unusual goes to protobuf, which stays the judge of what it means (decision 34).
            if number in fields or shift > 63 or kinds.get(number) is not (int, None, bytes)[min(wire_type, 2)]:
                return None
            if wire_type == LENGTH:
                value_end = at + value
                # A length that leads beyond the end is noticed below: `at` is not `end` then.
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
    """The status of each block that holds anything."""
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import OK, Status

    return Status(code=OK, message="OK").SerializeToString()


def records_of(block: Block, queue: MessageQueue) -> BlockRecords | None:
    """The records that it holds in place of messages."""
    held = block.records
    if held is None:
        return None
    from pyspark_evenq.records import BlockRecords

    return BlockRecords(
        queue=queue, first_offset=block.first_offset, sizes=held.sizes, frames=held.frames, head=held.head,
        system=held.system, checked=held.checked,
    )  # fmt: skip


def tag_set(expression: str) -> frozenset[str]:
    """The tags of `a || b`; empty if every tag is wanted."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return frozenset() if "*" in tags else tags


def with_tags(messages: Sequence[Message], tags: frozenset[str]) -> Sequence[Message]:
    """The messages that have one of the tags. Brokers filter by the tag's hash, and two tags may share one."""
    return [message for message in messages if message.system_properties.tag in tags] if tags else messages
