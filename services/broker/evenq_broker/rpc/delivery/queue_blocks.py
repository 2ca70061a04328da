"""Answers of `Pull` and `Scan` for one queue: from the store of a leader, or the committed log of a follower.

Stored bytes are sent unchanged after a few fields (`core.state.frames`); no message is parsed or encoded again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from evenq.errors import IllegalOffset, MessageNotFound, PreconditionFailed, QueueReplaced
from evenq.model import FilterType, MessageQueue, TopicConfig
from evenq.serving.rpc import Frames, MessagePieces, RpcContext
from evenq.store import Kept, ReadResult, RecordBlock, StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.delivery.filters import EVERYTHING, MessageFilter
from evenq_broker.core.state.frames import delivered, extra_fields, field, varint, varint_field
from evenq_broker.loops.wire.stored_messages import message_filter
from evenq_broker.loops.wire.translation import filter_of
from evenq_broker.rpc.answers import OK
from evenq_broker.rpc.delivery.named_queues import out_of_range
from evenq_broker.stats import GroupTopicStats

PULL_OK = data_pb2.PullResponse(status=OK).SerializeToString()
SCAN_OK = data_pb2.ScanBlock(status=OK).SerializeToString()
FAR_BEHIND = varint_field(6, 1)
PULL_DEFAULT = 32  # RocketMQ 4.9 consumer, pull batch
PULL_MAX = 10_000
PULL_BYTES_DEFAULT = 4 << 20
SCAN_BYTES_DEFAULT = 1 << 20
SCAN_BYTES_MIN = 16 << 10
SCAN_COUNT_MAX = 65_536
SCAN_LOOK_FIRST = 1_024
FRAME_VERSION = 1  # of stored records that a scan sends unchanged


class QueueSource(Protocol):
    """A source of messages by offset: a `MessageStore` or a `CommittedView`; see them for arguments and errors."""

    def queue_range(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """Returns the first offset, and the one after the last readable message."""
        ...

    def read_hot(
        self,
        topic_id: int,
        queue_id: int,
        start: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
    ) -> ReadResult | None:
        """Returns messages from memory; None: they are on disk."""
        ...

    async def read(
        self,
        topic_id: int,
        queue_id: int,
        start: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_hashes: frozenset[int] | None,
    ) -> ReadResult: ...

    async def read_block(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock: ...


async def read_queue(
    source: QueueSource,
    topic_id: int,
    queue_id: int,
    start: int,
    count: int,
    size: int,
    requested_filter: MessageFilter,
) -> ReadResult:
    """Reads a queue once: up to `count` messages that pass the filter, of about `size` bytes."""
    look, hashes = requested_filter.look(count), requested_filter.tag_hashes
    result = source.read_hot(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
    if result is None:
        result = await source.read(topic_id, queue_id, start, count_max=look, bytes_max=size, tag_hashes=hashes)
    return result if requested_filter is EVERYTHING else requested_filter.sift(result, count)


def pulled(result: ReadResult, *, far_behind: bool = False) -> bytes:
    """Returns the answer to a pull with messages. `far_behind`: the client should read from a follower (HA-9)."""
    parts = [
        PULL_OK,
        varint_field(2, result.next_offset),
        varint_field(3, result.min_offset),
        varint_field(4, result.max_offset),
        *_frames(5, result.messages),
    ]
    if far_behind:
        parts.append(varint_field(6, 1))
    return b"".join(parts)


def nothing_new(queue: MessageQueue, result: ReadResult) -> bytes:
    """Returns the answer to a pull without messages."""
    return data_pb2.PullResponse(
        status=status_of(MessageNotFound(f"nothing new in queue {queue} at {result.next_offset}")),
        next_offset=result.next_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
    ).SerializeToString()


def outside(error: IllegalOffset, offset: int, context: RpcContext) -> bytes:
    """Returns the answer to a pull from an offset outside the queue."""
    return data_pb2.PullResponse(
        status=status_of(error, context.language),
        next_offset=min(max(offset, error.min_offset), error.max_offset),
        min_offset=error.min_offset,
        max_offset=error.max_offset,
    ).SerializeToString()


def replaced(error: QueueReplaced, context: RpcContext) -> bytes:
    """Returns the answer to a pull of a queue that was deleted and created again."""
    return data_pb2.PullResponse(status=status_of(error, context.language), uid=error.uid).SerializeToString()


def scan_size(request: data_pb2.ScanRequest, bytes_max: int) -> int:
    return min(max(request.block_bytes or SCAN_BYTES_DEFAULT, SCAN_BYTES_MIN), bytes_max)


async def scanned(
    source: QueueSource,
    topic_id: int,
    queue_id: int,
    request: data_pb2.ScanRequest,
    context: RpcContext,
    *,
    size: int,
    taken: GroupTopicStats,
    far_behind: bool = False,
) -> AsyncGenerator[Frames, None]:
    """Yields the blocks of a scan, counted in `taken`. `far_behind`: the client should read from a follower (HA-9)."""
    requested_filter = compiled_filter(request.filter)
    low, high = source.queue_range(topic_id, queue_id)
    position, end = request.start, min(request.end, high)
    if not low <= position <= high:
        yield _scan_refused(out_of_range(position, low, high), context)
        return
    if requested_filter is EVERYTHING and request.records.version == FRAME_VERSION:
        records = request.records
        kept = Kept(head=records.head, system=records.system, check=not records.verifies)
        async for frame in _records(
            source, topic_id, queue_id, position, end, size, kept, context, taken, far_behind=far_behind
        ):
            yield frame
        return
    look = SCAN_LOOK_FIRST if requested_filter is EVERYTHING else SCAN_COUNT_MAX
    behind = FAR_BEHIND if far_behind else b""
    while position < end:
        count = min(end - position, look)
        result = await read_queue(source, topic_id, queue_id, position, count, size, requested_filter)
        if position < result.min_offset:
            yield _scan_refused(out_of_range(position, result.min_offset, result.max_offset), context)
            return
        messages = [message for message in result.messages if message.queue_offset < end]
        following = min(result.next_offset, end)
        head = (SCAN_OK, varint_field(2, position), varint_field(3, following), behind)
        block = b"".join((*head, *_frames(4, messages)))
        taken.messages_out += len(messages)
        taken.bytes_out += len(block)
        yield block
        if following <= position:  # deleted meanwhile
            return
        position = following
        look = _next_look(len(messages), count) if requested_filter is EVERYTHING else look


async def _records(
    source: QueueSource,
    topic_id: int,
    queue_id: int,
    position: int,
    end: int,
    size: int,
    kept: Kept,
    context: RpcContext,
    taken: GroupTopicStats,
    *,
    far_behind: bool,
) -> AsyncGenerator[Frames, None]:
    """Yields the blocks of a scan as records, unchanged from the log."""
    parts = b"".join((varint_field(1, kept.head), varint_field(2, kept.system)))
    behind = FAR_BEHIND if far_behind else b""
    look = SCAN_LOOK_FIRST
    while position < end:
        count = min(end - position, look)
        stored = await source.read_block(topic_id, queue_id, position, count_max=count, bytes_max=size, kept=kept)
        if position < stored.min_offset:
            yield _scan_refused(out_of_range(position, stored.min_offset, stored.max_offset), context)
            return
        if stored.next_offset <= position:  # deleted with its topic
            return
        sizes = field(3, stored.packed_sizes)
        length = sum(map(len, stored.frames))
        before = (parts, varint_field(5, stored.checked), sizes, b"\x22", varint(length))  # 4 frames
        inner = sum(map(len, before)) + length
        places = (varint_field(2, position), varint_field(3, stored.next_offset))
        head = (SCAN_OK, *places, behind, b"\x2a", varint(inner))
        block = MessagePieces([b"".join((*head, *before)), *stored.pieces()])  # 5 records
        stored.give_back()
        taken.messages_out += len(stored.sizes)
        taken.bytes_out += len(block.parts[0]) + length
        yield block
        del block
        position = stored.next_offset
        look = _next_look(len(stored.sizes), count)


def must_be_readable(topic: TopicConfig, queue_id: int) -> None:
    """Raises PreconditionFailed for a closed queue: the caller has an old route."""
    if queue_id >= topic.read_queues or not topic.permission.readable:
        raise PreconditionFailed(
            f"queue {queue_id} of topic {topic.name} is not readable any more: the topic has {topic.read_queues} "
            f"queues here now, its permission is {topic.permission.name}; query the route again"
        )


def compiled_filter(requested: common_pb2.Filter) -> MessageFilter:
    """Returns the filter of a request. Raises IllegalFilterExpression."""
    expression = filter_of(requested)
    return message_filter(expression.expression, is_sql=expression.type is FilterType.SQL)


def _frames(number: int, messages: Iterable[StoredMessage]) -> Iterable[bytes]:
    return (field(number, delivered(m, extra=extra_fields(m.queue_id, m.queue_offset, m.store_ms))) for m in messages)


def _next_look(taken: int, count: int) -> int:
    """Returns the number of entries to read for the next block: about as many messages fit as into the last one."""
    return min(2 * taken if taken == count else taken + taken // 8 + 8, SCAN_COUNT_MAX)


def _scan_refused(error: IllegalOffset, context: RpcContext) -> bytes:
    return data_pb2.ScanBlock(
        status=status_of(error, context.language), first_offset=error.min_offset, next_offset=error.max_offset
    ).SerializeToString()
