"""`evenq.v1.Data`: offsets and delivery counts of members that keep their own progress, and messages given back.

Commits and acks share one progress (OF-1, OF-2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from zlib import crc32

from evenq.errors import (
    BadRequest,
    PreconditionFailed,
    TooManyRequests,
)
from evenq.model import GroupConfig, MessageQueue, StartFrom, StartPolicy, TopicConfig
from evenq.runtime.tasks import outlasting, spawn
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import data_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.dead_letters.letter import Reason
from evenq_broker.core.delivery.counts import COUNTS_MAX, FINISHED
from evenq_broker.core.delivery.fence import is_fenced
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.dead_letters.mover import bury, replaced
from evenq_broker.loops.dead_letters.retries import attempts_before, retry_later
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.counting import counted
from evenq_broker.loops.progress.starting import GroupStarts, is_young
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import generation_of, queue_message
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.cluster.forwarding import caller_of
from evenq_broker.rpc.delivery.named_queues import NamedQueues, out_of_range

QUEUES_MAX = 4_096
MARKS_MAX = 256  # marks of one call: each reads a message


class MemberProgress:
    def __init__(
        self,
        kernel: Kernel,
        *,
        starts: GroupStarts,
        sessions: Sessions,
        long_polls: LongPolls,
        delayed_retries: DelayedRetries,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._starts = starts
        self._sessions, self._long_polls, self._delayed_retries = sessions, long_polls, delayed_retries
        self._named = NamedQueues(kernel.runtime, kernel.catalog)
        self._returns: dict[tuple[int, int, int, int], asyncio.Task[bool]] = {}
        """By group, topic, queue and offset: messages that are being given back."""

    async def query_offsets(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(data_pb2.QueryOffsetsRequest, data)
        queues = self._queues(request)
        known = list(request.known_max)
        if known and len(known) != len(queues):
            raise BadRequest(f"{len(known)} known_max for {len(queues)} queues; give one per queue, or none")
        if request.wait_ms > 0:
            store = self._ledger.store
            ends = known or [store.queue_range(topic.topic_id, queue.queue_id)[1] for topic, queue in queues]
            watched = [(t.topic_id, q.queue_id, end) for (t, q), end in zip(queues, ends, strict=True)]
            left_ms = self._named.until_ms(request.wait_ms, context) - self._runtime.clock.monotonic_ms()
            if left_ms > 0:
                await self._long_polls.for_growth(watched, left_ms, user=caller_of(context))
        group = self._catalog.groups.get(request.group) if request.group else None
        response = data_pb2.QueryOffsetsResponse(status=OK)
        for (topic, queue), mark_at in zip(queues, marks_asked(request.mark_at, len(queues)), strict=True):
            offsets = await self._offsets(topic, queue, group, request.timestamp_ms)
            offsets.mark = await self._mark(topic, queue, mark_at) if mark_at > 0 else ""
            response.offsets.append(offsets)
        if group is not None and request.topic and (named := self._catalog.topics.get(request.topic)) is not None:
            response.begun_ms = self._starts.begun_ms(group, named)
        if request.group:  # a client must not see progress that a failover could revert, or old progress
            await self._ledger.journal.still_leads()
        return response.SerializeToString()

    async def _mark(self, topic: TopicConfig, queue: MessageQueue, offset: int) -> str:
        """Returns the mark of the message before an offset; empty: it does not exist."""
        await self._runtime.clock.sleep_ms(0)  # a read from memory does not yield to other calls
        messages = await self._ledger.store.read_at(topic.topic_id, queue.queue_id, [offset - 1])
        return "".join(mark_of(one.store_ms, one.head, one.system) for one in messages)

    async def _offsets(
        self, topic: TopicConfig, queue: MessageQueue, group: GroupConfig | None, timestamp_ms: int
    ) -> data_pb2.QueueOffsets:
        ids = (topic.topic_id, queue.queue_id)
        low, high = self._ledger.store.queue_range(*ids)
        committed = None if group is None else self._ledger.progress.committed(group.group_id, *ids)
        at = await self._ledger.store.offset_at(*ids, timestamp_ms) if timestamp_ms > 0 else -1
        return data_pb2.QueueOffsets(
            queue=queue_message(queue),
            min_offset=low,
            max_offset=high,
            committed=-1 if committed is None else committed,
            timestamp_offset=at,
            uid=self._catalog.queue_uid(topic),
            young=group is not None and committed is None and is_young(self._ledger, *ids),
        )

    def _queues(self, request: data_pb2.QueryOffsetsRequest) -> list[tuple[TopicConfig, MessageQueue]]:
        if len(request.queues) > QUEUES_MAX:
            raise BadRequest(f"{len(request.queues)} queues in one call, the limit is {QUEUES_MAX}; use several calls")
        if request.queues or not request.topic:
            return [self._named.readable(queue) for queue in request.queues]
        own = self._runtime.settings.broker_name
        topic = self._named.topic(request.topic)
        return [(topic, MessageQueue(topic.name, own, queue_id)) for queue_id in range(topic.read_queues)]

    async def commit_offsets(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(data_pb2.CommitOffsetsRequest, data)
        if len(request.offsets) > QUEUES_MAX:
            raise BadRequest(f"{len(request.offsets)} queues in one call, the limit is {QUEUES_MAX}; use several calls")
        group = await self._catalog.ensure_group(request.group)
        generation = generation_of(request.generation)
        policy = _policy_of(request.start) if request.HasField("start") else None
        positions: list[tuple[TopicConfig, MessageQueue, int]] = []
        refused: PreconditionFailed | None = None
        for entry in request.offsets:
            try:
                topic, queue = self._named.readable(entry.queue, entry.uid)
                self._sessions.locking.must_hold(group.name, request.client_id, queue, generation, commits=True)
            except PreconditionFailed as error:  # queues that the member still holds are committed nevertheless
                refused = error
                continue
            offset = entry.offset
            if offset == -1 and policy is not None:
                await self._starts.begin(group, topic, policy)
                continue
            positions.append((topic, queue, offset))
            low, high = self._ledger.store.queue_range(topic.topic_id, queue.queue_id)
            if not 0 <= offset <= high:
                raise out_of_range(offset, low, high)
        waits = [
            self.commit(group, topic, queue, request.client_id, offset, allow_backward=request.allow_backward)
            for topic, queue, offset in positions
        ]
        # In the same turn, so this shares the record of a moved offset. An unmoved one must be confirmed as well.
        for wait in (*waits, self._ledger.journal.confirmed()):
            if wait is not None:
                await wait
        if refused is not None:
            raise refused
        return data_pb2.CommitOffsetsResponse(status=OK).SerializeToString()

    def commit(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        queue: MessageQueue,
        client_id: str,
        offset: int,
        *,
        allow_backward: bool = False,
    ) -> asyncio.Future[None] | None:
        """Moves the progress. Returns a future of its durability; None: it is durable, or the commit does not count."""
        fences = self._sessions.fences
        if fences and fences.ignores(group.name, queue, client_id, now_ms=self._runtime.clock.monotonic_ms()):
            return None  # an operator moved the group, and this member has not followed yet
        queue_key = (group.group_id, topic.topic_id, queue.queue_id)
        if self._ledger.progress.queue(*queue_key) is None:
            if self._catalog.gone(group, topic):  # while the caller made the group, or began another queue
                return None
            self._starts.noted(group, topic)
        if not self._ledger.progress.commit(*queue_key, offset, allow_backward=allow_backward):
            return self._ledger.journal.safe()  # the record that moved it there may not be safe yet
        return self._ledger.journal.record(Committed(*queue_key, offset, reset=allow_backward))

    async def count_deliveries(self, data: bytes, _context: RpcContext) -> bytes:
        """Stores delivery counts: the holder of a queue reports deliveries that begin, or that it leaves unfinished."""
        request = parsed(data_pb2.CountDeliveriesRequest, data)
        topic, queue = self._named.readable(request.queue, request.uid)
        group = self._named.group(request.group)
        if len(request.counts) > COUNTS_MAX:
            raise BadRequest(
                f"{len(request.counts)} deliveries in one call, the limit is {COUNTS_MAX}; use several calls"
            )
        deliveries = {count.offset: FINISHED if count.finished else count.deliveries for count in request.counts}
        wrong = [offset for offset, number in deliveries.items() if offset < 0 or not 1 <= number <= FINISHED]
        if wrong or request.given_until < 0:
            raise BadRequest(
                f"offset {(*wrong, request.given_until)[0]} or its delivery count is out of range: offsets start at 0, "
                f"counts are 1 to {FINISHED - 1}"
            )
        locking = self._sessions.locking
        locking.must_hold(group.name, request.client_id, queue, generation_of(request.generation), owner=True)
        fences = self._sessions.fences
        if fences and fences.ignores(group.name, queue, request.client_id, now_ms=self._runtime.clock.monotonic_ms()):
            return data_pb2.CountDeliveriesResponse(status=OK).SerializeToString()  # they began before a reset
        progress = self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is None:
            raise PreconditionFailed(f"group {group.name} has no offset on queue {queue} yet; commit its start first")
        record = counted(self._ledger, progress, deliveries, given_until=request.given_until)
        if record is not None:
            await record
        return data_pb2.CountDeliveriesResponse(status=OK).SerializeToString()

    async def send_back(self, data: bytes, _context: RpcContext) -> bytes:
        """Moves a message to the dead-letter topic, or a delayed copy to the retry topic (RD-5).

        A member whose call timed out calls again; an older SDK delivers the message once more before. It is then
        finished for the group, as the copy takes its place, and the answer is that of the first call. A reset of the
        group forgets that, and until the queue's owner follows it, no message is finished by this call.
        """
        request = parsed(data_pb2.SendBackRequest, data)
        topic, queue = self._named.readable(request.queue, request.uid)
        group = self._named.group(request.group)
        place = (group.group_id, topic.topic_id, queue.queue_id, request.queue_offset)
        running = self._returns.get(place)
        if running is None:
            # Of its own: a copy that is being stored when the caller is gone must be known to the next call.
            running = self._returns[place] = spawn(
                self._give_back(group, topic, queue, request), name="give a message back"
            )
            running.add_done_callback(lambda _: self._returns.pop(place))
        over = await outlasting(running)
        return data_pb2.SendBackResponse(status=OK, dead_lettered=over).SerializeToString()

    async def _give_back(
        self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, request: data_pb2.SendBackRequest
    ) -> bool:
        """Returns True if the message became a dead letter."""
        position = (group, topic, queue.queue_id, request.queue_offset)
        progress = self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        counts, first = ({}, 0) if progress is None else (progress.counts, progress.first)
        if counts.get(request.queue_offset) == FINISHED:
            return request.delay_level < 0 or request.attempts >= group.max_attempts
        attempts = max(
            request.attempts, counts.get(request.queue_offset, 0), await attempts_before(self._ledger, *position)
        )
        over = request.delay_level < 0 or attempts >= group.max_attempts
        # A simple consumer may have it, since before a member got the queue.
        entry = None if progress is None else progress.pending.get(request.queue_offset)
        if progress is None or entry is None:
            await self._copy(position, request, attempts, over=over)
        elif is_fenced(entry):
            raise TooManyRequests("another call is finishing this message, such as a transaction; send it back again")
        else:
            async with replaced(self._ledger, progress, request.queue_offset, entry, long_polls=self._long_polls):
                await self._copy(position, request, attempts, over=over)
        self._runtime.stats.group_topic(group.group_id, topic.topic_id).given_back += 1
        queue = MessageQueue(topic.name, self._runtime.settings.broker_name, position[2])
        if self._sessions.fences.awaits(group.name, queue, now_ms=self._runtime.clock.monotonic_ms()):
            return over  # the call does not name its client: most likely it is the owner, which has not followed yet
        if progress is not None and progress.first == first:  # no reset meanwhile
            # Not awaited: if this broker dies before the record is durable, a second copy is stored, none is lost.
            counted(self._ledger, progress, {request.queue_offset: FINISHED}, given_until=0)
        return over

    async def _copy(
        self,
        position: tuple[GroupConfig, TopicConfig, int, int],
        request: data_pb2.SendBackRequest,
        attempts: int,
        *,
        over: bool,
    ) -> None:
        """Stores the dead letter or the delayed copy. Raises IllegalOffset if the message does not exist."""
        group, topic, queue_id, offset = position
        if over:
            reason = Reason.ATTEMPTS if attempts >= group.max_attempts else Reason.SENT_BACK
            done = await bury(self._kernel, *position, attempts=max(0, attempts), reason=reason)
        else:
            done = await retry_later(
                self._kernel,
                *position,
                level=request.delay_level,
                attempts=max(1, attempts),
                delayed_retries=self._delayed_retries,
            )
        if not done:
            low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
            raise out_of_range(offset, low, high)


def _policy_of(message: data_pb2.StartPolicy) -> StartPolicy:
    if message.start_from not in {"", *StartFrom}:
        raise BadRequest(f"start_from {message.start_from!r} is unknown; give one of {', '.join(StartFrom)}")
    start_from = StartFrom(message.start_from) if message.start_from else None
    return StartPolicy(start_from, message.timestamp_ms, message.young_from_first, max(-1, message.begun_ms))


def mark_of(store_ms: int, head: bytes, system: bytes) -> str:
    """Returns the mark of a message: its store time as hexadecimal ms since the epoch, a dot, and a checksum.

    A reader keeps the mark of the last message and sees whether it is still there. A queue that lost its end and grew
    again has another message at an offset that a reader knows: its time or its content differs.
    """
    return f"{store_ms:x}.{crc32(system, crc32(head)):08x}"


def marks_asked(mark_at: Sequence[int], queues: int) -> Sequence[int]:
    """Returns for each queue the offset behind the message whose mark is wanted; 0: none. Raises BadRequest."""
    if mark_at and len(mark_at) != queues:
        raise BadRequest(f"{len(mark_at)} mark_at for {queues} queues; give one per queue, or none")
    if (count := sum(offset > 0 for offset in mark_at)) > MARKS_MAX:
        raise BadRequest(f"{count} mark_at in one call, the limit is {MARKS_MAX}; ask in parts")
    return mark_at or [0] * queues
