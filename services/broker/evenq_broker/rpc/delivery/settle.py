"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue (wire contract 3.10 to 3.12).

An ack is answered OK only when its record is safe (D4). A second ack is OK once the record of the first one is safe. A
handle that is forged, expired or of another group is INVALID_RECEIPT_HANDLE, never an internal error: push consumers
would retry that forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

from evenq.errors import BadRequest, Error, IllegalInvisibleTime, InvalidReceiptHandle
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import duration_ms_of
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.delivery.progress import READY, Pending, QueueProgress, SettleStatus
from evenq_broker.core.state.frames import field, varint
from evenq_broker.core.state.handles import Handle
from evenq_broker.core.state.records import encode_acked
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.dead_letters.mover import HOLD_MS, DeadLetterMover
from evenq_broker.loops.delivery.ending import FetchedMessages
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK_STATUS, code_of, for_caller, is_public, parsed, several, status_frame
from evenq_broker.rpc.cluster.forwarding import MARK, forward, owner_of_handle

Resource = definition_pb2.Resource
ENTRIES_MAX = 4_096
_OK = OK_STATUS[2:]
_OK_ENTRY = field(3, _OK)
_HTTP = "HTTP"  # Node.js reads retry delays as milliseconds (wire contract 4.4)


class Acknowledger:
    """The handlers of calls that end or change a delivery."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        fetched: FetchedMessages,
        long_polls: LongPolls,
        dead_letter_mover: DeadLetterMover,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._long_polls, self._dead_letter_mover = cluster, long_polls, dead_letter_mover
        self._fetched = fetched

    async def ack(self, data: bytes, context: RpcContext) -> bytes:
        """Finishes messages; returns one entry for each handle, in order."""
        request = parsed(service_pb2.AckMessageRequest, data, context)
        entries = request.entries
        if not entries:
            raise BadRequest("the request acknowledges nothing; give at least one entry")
        if len(entries) > ENTRIES_MAX:
            raise BadRequest(
                f"the request has {len(entries)} entries, the limit is {ENTRIES_MAX}; acknowledge fewer in one call"
            )
        handles = [entry.receipt_handle for entry in entries]
        if len(entries) > 1 and is_mixed(self._kernel, handles, context, cluster=self._cluster):
            return await ack_parts(self._kernel, request, context, self.ack, cluster=self._cluster)
        if not self._ledger.handles.is_own(handles[0]):
            address = owner_of_handle(self._kernel, handles[0], context, cluster=self._cluster)
            if address is not None:
                return await self._settled_elsewhere(address, data, context, handles)
        ids = [entry.message_id for entry in entries]
        statuses: list[bytes | None] = [None] * len(handles)
        try:
            group_id, topic_id = self._numbers(request.group, request.topic)
        except InvalidReceiptHandle as error:
            if context.language != "RUST":
                statuses = [status_frame(error)] * len(handles)
            return _ack_answer(ids, handles, statuses)
        done = self._finish(handles, group_id, topic_id, statuses)
        if context.language == "RUST":  # its push consumer would repeat the ack every 100 ms forever (3.10)
            statuses = [None] * len(handles)
        try:
            if done:
                await self._ledger.journal.record_encoded(done)
                self._runtime.stats.group_topic(group_id, topic_id).acks += len(done)
            else:  # finished before, by a record that may not be safe yet
                await self._ledger.journal.still_leads()
        except Error as error:
            if not is_public(error):
                raise
            statuses = [status_frame(error)] * len(handles)
        return _ack_answer(ids, handles, statuses)

    def _finish(self, texts: Sequence[str], group_id: int, topic_id: int, statuses: list[bytes | None]) -> list[bytes]:
        """Finishes the deliveries of the handles; returns their records. `statuses` gets those of refused handles."""
        progress, now_ms = self._ledger.progress, self._runtime.now_ms()
        done: list[bytes] = []
        queue, known_id = None, -1
        for at, handle in enumerate(self._ledger.handles.read_all(texts) or self._each(texts, statuses)):
            if handle is None:
                continue
            of_group, of_topic, queue_id, offset, number, expires_ms, _ = handle
            if of_group != group_id or of_topic != topic_id:
                statuses[at] = status_frame(_of_others())
                continue
            if queue_id != known_id:
                queue, known_id = progress.queue(group_id, topic_id, queue_id), queue_id
            # Checked before the ack, which makes the space that a parked poll may wait for.
            full = queue is not None and progress.room(queue) <= 0
            verdict = progress.ack(queue, offset, number, expires_ms=expires_ms, now_ms=now_ms)
            if verdict is SettleStatus.INVALID:
                statuses[at] = status_frame(_over())
                continue
            if queue is not None and (full or queue.ready):
                self._long_polls.ready(group_id, topic_id, queue_id)
            if verdict is SettleStatus.DONE:
                done.append(encode_acked(group_id, topic_id, queue_id, offset))
        return done

    def _each(self, texts: Sequence[str], statuses: list[bytes | None]) -> list[Handle | None]:
        """Reads the handles one by one; None, and a status, for those that this broker did not make."""
        handles: list[Handle | None] = []
        for at, text in enumerate(texts):
            try:
                handles.append(self._ledger.handles.read(text))
            except InvalidReceiptHandle as error:
                handles.append(None)
                statuses[at] = status_frame(error)
        return handles

    async def change_invisible(self, data: bytes, context: RpcContext) -> bytes:
        """Ends a delivery later, or now (a nack). The answer always has a handle, with which SDKs replace theirs."""
        request = parsed(service_pb2.ChangeInvisibleDurationRequest, data, context)
        text = request.receipt_handle
        try:
            address = (
                owner_of_handle(self._kernel, text, context, cluster=self._cluster)
                if not self._ledger.handles.is_own(text)
                else None
            )
            if address is not None:
                return await self._settled_elsewhere(address, data, context, [text])
            fresh = await self._change(request, context)
        except InvalidReceiptHandle as error:
            if context.language == "RUST":
                return OK_STATUS + field(2, text.encode())
            return field(1, status_frame(error)) + field(2, text.encode())
        except Error as error:
            if not is_public(error):
                error = type(error)("the change could not be stored; try again")
            return field(1, status_frame(error, context.language)) + field(2, text.encode())
        return OK_STATUS + field(2, fresh.encode())

    async def _change(self, request: service_pb2.ChangeInvisibleDurationRequest, context: RpcContext) -> str:
        handle, queue = self._own(request.receipt_handle, request.group, request.topic)
        invisible_ms = duration_ms_of(request.invisible_duration)
        most_ms = self._runtime.settings.invisible_max_ms
        if not 0 <= invisible_ms <= most_ms:
            raise IllegalInvisibleTime(f"the invisible duration is {invisible_ms} ms, the range is 0 to {most_ms} ms")
        entry = queue.pending.get(handle.queue_offset)
        # Node.js sends a time of nearly 0 (4.4). Without a time, the group's retry policy decides.
        vague = context.language == _HTTP or not request.HasField("invisible_duration")
        if entry is not None and entry.client_id and vague and not request.suspend:
            invisible_ms = max(invisible_ms, self._pause_ms(queue, entry.attempt))
        # A change by a push consumer is always a nack; another client may request more time.
        nack = not request.suspend and entry is not None and (bool(entry.client_id) or not invisible_ms)
        last = nack and entry is not None and self._is_last(queue, entry)
        if last:
            invisible_ms = HOLD_MS
        now_ms = self._runtime.now_ms()
        deadline_ms = now_ms + invisible_ms
        verdict = self._ledger.progress.change_invisible(
            queue,
            handle.queue_offset,
            handle.number,
            now_ms=now_ms,
            deadline_ms=deadline_ms,
            uncounted=request.suspend,
            given_back=nack,
        )
        if verdict is not SettleStatus.DONE or entry is None:
            raise _over()
        self._runtime.stats.group_topic(queue.group_id, queue.topic_id).given_back += nack
        if last:
            self._dead_letter_mover.add(queue, handle.queue_offset, entry)
        recorded = self._ledger.journal.record(queue.op(handle.queue_offset, entry))
        if entry.deadline_ms == READY:
            self._long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
        else:
            self._long_polls.sooner(deadline_ms)
        await recorded
        return self._ledger.handles.make(
            queue.group_id, queue.topic_id, queue.queue_id, handle.queue_offset, handle.number, deadline_ms
        )

    def _is_last(self, queue: QueueProgress, entry: Pending) -> bool:
        # No pause after the last attempt.
        group = self._catalog.groups.by_id(queue.group_id)
        return group is not None and entry.attempt >= group.max_attempts

    def _pause_ms(self, queue: QueueProgress, attempt: int) -> int:
        group = self._catalog.groups.by_id(queue.group_id)
        return 0 if group is None else group.retry.delay_ms(attempt, levels=self._runtime.delay_levels)

    async def forward_to_dead_letters(self, data: bytes, context: RpcContext) -> bytes:
        """Moves a message to the dead-letter topic. An ended handle is OK: clients would repeat the call forever."""
        request = parsed(service_pb2.ForwardMessageToDeadLetterQueueRequest, data, context)
        if request.receipt_handle and not self._ledger.handles.is_own(request.receipt_handle):
            address = owner_of_handle(self._kernel, request.receipt_handle, context, cluster=self._cluster)
            if address is not None:
                return await self._settled_elsewhere(address, data, context, [request.receipt_handle])
        try:
            if request.receipt_handle:
                handle, queue = self._own(request.receipt_handle, request.group, request.topic)
                position = (queue, handle.queue_offset)
                entry = queue.pending.get(handle.queue_offset)
                if entry is None or entry.number != handle.number:
                    if not await self._dead_letter_mover.buried(*position):
                        await self._ledger.journal.still_leads()
                    return OK_STATUS
            else:
                match = await self._by_message_id(request)
                if match is None:
                    return OK_STATUS
                position = match
        except InvalidReceiptHandle:
            return OK_STATUS
        queue, offset = position
        group = self._catalog.groups.by_id(queue.group_id)
        topic = self._catalog.topics.by_id(queue.topic_id)
        if group is not None and topic is not None:
            await self._dead_letter_mover.bury(group, topic, queue, offset)
        return OK_STATUS

    async def _by_message_id(
        self, request: service_pb2.ForwardMessageToDeadLetterQueueRequest
    ) -> tuple[QueueProgress, int] | None:
        # C++ sends an empty handle (wire contract 3.12).
        group_id, topic_id = self._numbers(request.group, request.topic)
        for queue, offset in self._ledger.progress.held(group_id, topic_id):
            for message in await self._ledger.store.read_at(topic_id, queue.queue_id, [offset]):
                system = definition_pb2.SystemProperties.FromString(message.system)
                if system.message_id == request.message_id:
                    return queue, offset
        return None

    async def _settled_elsewhere(self, address: str, data: bytes, context: RpcContext, handles: Sequence[str]) -> bytes:
        answer = await forward(self._runtime, address, data, context)
        self._fetched.settled(handles)
        return answer

    def _own(self, text: str, group: Resource, topic: Resource) -> tuple[Handle, QueueProgress]:
        handle = self._ledger.handles.read(text)
        if (handle.group_id, handle.topic_id) != self._numbers(group, topic):
            raise _of_others()
        queue = self._ledger.progress.queue(handle.group_id, handle.topic_id, handle.queue_id)
        if queue is None:
            raise _over()
        return handle, queue

    def _numbers(self, group: Resource, topic: Resource) -> tuple[int, int]:
        found_group, found_topic = (
            self._catalog.groups.get(group.name),
            self._catalog.topics.get(topic.name),
        )
        if found_group is None or found_topic is None:
            # Push consumers would retry TOPIC_NOT_FOUND forever (wire contract 3.10).
            raise InvalidReceiptHandle("the receipt handle's consumer group or topic does not exist any more")
        return found_group.group_id, found_topic.topic_id


def _of_others() -> InvalidReceiptHandle:
    return InvalidReceiptHandle("the receipt handle belongs to another consumer group or topic; use it with its own")


def _over() -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        "the delivery of this receipt handle has ended: its invisible time has passed or the message was redelivered"
    )


def _ack_answer(ids: list[str], handles: list[str], statuses: list[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for message_id, handle, status in zip(map(str.encode, ids), map(str.encode, handles), statuses, strict=True):
        verdict = _OK_ENTRY if status is None else field(3, status)
        before, between = _ack_heads(len(message_id), len(handle), len(verdict))
        parts += (before, message_id, between, handle, verdict)
    bad = [status for status in statuses if status is not None]
    if not bad:
        top = OK_STATUS
    elif len(bad) == len(statuses) and len({code_of(status) for status in bad}) == 1:
        top = field(1, bad[0])
    else:
        top = field(1, several())
    return top + b"".join(parts)


@lru_cache(1024)
def _ack_heads(id_bytes: int, handle_bytes: int, verdict_bytes: int) -> tuple[bytes, bytes]:
    """Returns the bytes of an entry before the message id, and those between it and the handle."""
    before = b"\x0a" + varint(id_bytes)
    between = b"\x12" + varint(handle_bytes)
    size = len(before) + id_bytes + len(between) + handle_bytes + verdict_bytes
    return b"\x12" + varint(size) + before, between


def is_mixed(kernel: Kernel, handles: Sequence[str], context: RpcContext, *, cluster: ClusterLink) -> bool:
    """Returns True if the handles are of several brokers, and the call comes from the client itself."""
    if len(handles) < 2 or MARK in context.headers:
        return False
    if all(map(kernel.ledger.handles.is_own, handles)):
        return False
    return len({owner_of_handle(kernel, handle, context, cluster=cluster) for handle in handles}) > 1


async def ack_parts(
    kernel: Kernel,
    request: service_pb2.AckMessageRequest,
    context: RpcContext,
    ack: Callable[[bytes, RpcContext], Awaitable[bytes]],
    *,
    cluster: ClusterLink,
) -> bytes:
    """Acknowledges messages of several brokers, as the polls of a client may deliver them. `ack` answers a request
    whose handles are of one broker.
    """
    places: dict[str | None, list[int]] = {}
    for at, entry in enumerate(request.entries):
        places.setdefault(owner_of_handle(kernel, entry.receipt_handle, context, cluster=cluster), []).append(at)

    async def part(places_of: list[int]) -> list[definition_pb2.Status]:
        part_request = service_pb2.AckMessageRequest(group=request.group, topic=request.topic)
        part_request.entries.extend(request.entries[at] for at in places_of)
        try:
            raw = await ack(part_request.SerializeToString(), context)
        except Error as error:
            return [status_of(for_caller(error), context.language)] * len(places_of)
        reply = service_pb2.AckMessageResponse.FromString(raw)
        if len(reply.entries) != len(places_of):
            return [reply.status] * len(places_of)
        return [entry.status for entry in reply.entries]

    parts = await asyncio.gather(*map(part, places.values()))
    statuses: dict[int, definition_pb2.Status] = {}
    for places_of, part_statuses in zip(places.values(), parts, strict=True):
        statuses.update(zip(places_of, part_statuses, strict=True))
    response = service_pb2.AckMessageResponse()
    for at, entry in enumerate(request.entries):
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=statuses[at])
    if len({status.code for status in statuses.values()}) == 1:
        response.status.CopyFrom(statuses[0])
    else:
        response.status.CopyFrom(definition_pb2.Status.FromString(several()))
    return response.SerializeToString()
