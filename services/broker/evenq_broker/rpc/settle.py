"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue (wire contract 3.10 to 3.12).

An ack is answered OK only when its record is safe (D4); acking twice is OK; a handle that is forged, expired or of
another group is INVALID_RECEIPT_HANDLE, never an internal error, because push consumers would retry that for ever.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, IllegalInvisibleTime, InvalidReceiptHandle
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import duration_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.delivery import READY, Pending, QueueProgress, Verdict
from evenq_broker.core.frames import field, varint
from evenq_broker.core.handles import Handle
from evenq_broker.core.journal import Acked
from evenq_broker.loops.burials import HOLD_MS
from evenq_broker.rpc.ack_parts import ack_parts, is_mixed
from evenq_broker.rpc.answers import OK_STATUS, code_of, parsed, several, status_frame, told
from evenq_broker.rpc.forwarding import forward, owner_of_handle

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Settling"]

Resource = definition_pb2.Resource
ENTRIES_MAX = 4_096
_OK = OK_STATUS[2:]
_OK_ENTRY = field(3, _OK)
_HTTP = "HTTP"  # Node.js reads retry delays as milliseconds (wire contract 4.4)


class Settling:
    """The handlers that end or change a delivery."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ------------------------------------------------------------------------------------------------ ack

    async def ack(self, request: bytes, context: RpcContext) -> bytes:
        """Finish messages; one entry for each handle, in order."""
        asked = parsed(service_pb2.AckMessageRequest, request, context)
        entries = asked.entries
        if not entries:
            raise BadRequest("the request acknowledges nothing; give at least one entry")
        if len(entries) > ENTRIES_MAX:
            raise BadRequest(
                f"the request has {len(entries)} entries, the limit is {ENTRIES_MAX}; acknowledge fewer at once"
            )
        handles = [entry.receipt_handle for entry in entries]
        if len(entries) > 1 and is_mixed(self._broker, handles, context):
            return await ack_parts(self._broker, asked, context, self.ack)
        if not self._broker.handles.is_own(handles[0]):
            address = owner_of_handle(self._broker, handles[0], context)
            if address is not None:
                return await forward(self._broker, address, request, context)
        ids = [entry.message_id for entry in entries]
        statuses: list[bytes | None] = [None] * len(handles)
        try:
            group_id, topic_id = self._numbers(asked.group, asked.topic)
        except InvalidReceiptHandle as error:
            if context.language != "RUST":
                statuses = [status_frame(error)] * len(handles)
            return _ack_answer(ids, handles, statuses)
        done: list[Acked] = []
        now_ms = self._broker.now_ms()
        for at, handle in enumerate(handles):
            try:
                op = self._ack_one(handle, group_id, topic_id, now_ms)
            except InvalidReceiptHandle as error:
                # Rust's push consumer would repeat the ack each 100 ms for ever (wire contract 3.10).
                if context.language != "RUST":
                    statuses[at] = status_frame(error)
            else:
                if op is not None:
                    done.append(op)
        try:
            if done:
                await self._broker.journal.record(*done)
                self._broker.stats.group_topic(group_id, topic_id).acks += len(done)
        except Error as error:
            if not told(error):
                raise
            statuses = [status_frame(error)] * len(handles)
        return _ack_answer(ids, handles, statuses)

    def _ack_one(self, text: str, group_id: int, topic_id: int, now_ms: int) -> Acked | None:
        broker = self._broker
        of_group, of_topic, queue_id, offset, number, expires_ms, _ = broker.handles.read(text)
        if of_group != group_id or of_topic != topic_id:
            raise InvalidReceiptHandle(
                "the receipt handle belongs to another consumer group or topic; use it with its own"
            )
        progress = broker.progress
        queue = progress.queue(group_id, topic_id, queue_id)
        full = queue is not None and progress.room(queue) <= 0
        verdict = progress.ack(queue, offset, number, expires_ms=expires_ms, now_ms=now_ms)
        if verdict is Verdict.INVALID:
            raise _over()
        if queue is not None and (full or queue.ready):
            broker.waiting.ready(group_id, topic_id, queue_id)
        if verdict is Verdict.ALREADY:
            return None
        return Acked(group_id, topic_id, queue_id, offset)

    # ------------------------------------------------------------------------------------------------ change

    async def change_invisible(self, request: bytes, context: RpcContext) -> bytes:
        """Let a delivery end later, or now (a nack). The answer always holds a handle: SDKs replace theirs by it."""
        asked = parsed(service_pb2.ChangeInvisibleDurationRequest, request, context)
        text = asked.receipt_handle
        try:
            address = owner_of_handle(self._broker, text, context) if not self._broker.handles.is_own(text) else None
            if address is not None:
                return await forward(self._broker, address, request, context)
            fresh = await self._change(asked, context)
        except InvalidReceiptHandle as error:
            if context.language == "RUST":
                return OK_STATUS + field(2, text.encode())
            return field(1, status_frame(error)) + field(2, text.encode())
        except Error as error:
            if not told(error):
                error = type(error)("the change could not be stored; try again")
            return field(1, status_frame(error, context.language)) + field(2, text.encode())
        return OK_STATUS + field(2, fresh.encode())

    async def _change(self, asked: service_pb2.ChangeInvisibleDurationRequest, context: RpcContext) -> str:
        broker = self._broker
        handle, queue = self._own(asked.receipt_handle, asked.group, asked.topic)
        invisible_ms = duration_ms_of(asked.invisible_duration)
        if not 0 <= invisible_ms <= broker.settings.invisible_max_ms:
            raise IllegalInvisibleTime(
                f"the invisible duration is {invisible_ms} ms, the range is 0 to {broker.settings.invisible_max_ms} ms"
            )
        entry = queue.pending.get(handle.queue_offset)
        # Node.js sends next to nothing (4.4); who tells no time at all leaves it to the group.
        vague = context.language == _HTTP or not asked.HasField("invisible_duration")
        if entry is not None and entry.client_id and vague and not asked.suspend:
            invisible_ms = max(invisible_ms, self._pause_ms(queue, entry.attempt))
        # Only a push consumer's change is a nack for sure; another one may ask for more time.
        nack = not asked.suspend and entry is not None and (bool(entry.client_id) or not invisible_ms)
        last = nack and entry is not None and self._is_last(queue, entry)
        if last:
            invisible_ms = HOLD_MS
        now_ms = broker.now_ms()
        deadline_ms = now_ms + invisible_ms
        verdict = broker.progress.change_invisible(
            queue,
            handle.queue_offset,
            handle.number,
            now_ms=now_ms,
            deadline_ms=deadline_ms,
            uncounted=asked.suspend,
            given_back=nack,
        )
        if verdict is not Verdict.DONE or entry is None:
            raise _over()
        broker.stats.group_topic(queue.group_id, queue.topic_id).given_back += nack
        if last:
            broker.burials.add(queue, handle.queue_offset, entry)
        recorded = broker.journal.record(queue.op(handle.queue_offset, entry))
        if entry.deadline_ms == READY:
            broker.waiting.ready(queue.group_id, queue.topic_id, queue.queue_id)
        else:
            broker.waiting.sooner(deadline_ms)
        await recorded
        return broker.handles.make(
            queue.group_id, queue.topic_id, queue.queue_id, handle.queue_offset, handle.number, deadline_ms
        )

    def _is_last(self, queue: QueueProgress, entry: Pending) -> bool:
        # No pause after the last attempt.
        group = self._broker.groups.by_id(queue.group_id)
        return group is not None and entry.attempt >= group.max_attempts

    def _pause_ms(self, queue: QueueProgress, attempt: int) -> int:
        group = self._broker.groups.by_id(queue.group_id)
        return 0 if group is None else group.retry.delay_ms(attempt, levels=self._broker.delay_levels)

    # ------------------------------------------------------------------------------------------------ dead letters

    async def forward_to_dead_letters(self, request: bytes, context: RpcContext) -> bytes:
        """Move a message to the dead-letter topic and settle it. A handle that is gone is OK: clients would repeat
        for ever.
        """
        asked = parsed(service_pb2.ForwardMessageToDeadLetterQueueRequest, request, context)
        if asked.receipt_handle and not self._broker.handles.is_own(asked.receipt_handle):
            address = owner_of_handle(self._broker, asked.receipt_handle, context)
            if address is not None:
                return await forward(self._broker, address, request, context)
        try:
            if asked.receipt_handle:
                handle, queue = self._own(asked.receipt_handle, asked.group, asked.topic)
                place = (queue, handle.queue_offset)
                entry = queue.pending.get(handle.queue_offset)
                if entry is None or entry.number != handle.number:
                    return OK_STATUS
            else:
                found = await self._by_message_id(asked)
                if found is None:
                    return OK_STATUS
                place = found
        except InvalidReceiptHandle:
            return OK_STATUS
        queue, offset = place
        group = self._broker.groups.by_id(queue.group_id)
        topic = self._broker.topics.by_id(queue.topic_id)
        if group is not None and topic is not None:
            await self._broker.burials.bury(group, topic, queue, offset)
        return OK_STATUS

    async def _by_message_id(
        self, asked: service_pb2.ForwardMessageToDeadLetterQueueRequest
    ) -> tuple[QueueProgress, int] | None:
        # C++ leaves the handle empty (wire contract 3.12).
        group_id, topic_id = self._numbers(asked.group, asked.topic)
        for queue, offset in self._broker.progress.held(group_id, topic_id):
            for message in await self._broker.store.read_at(topic_id, queue.queue_id, [offset]):
                system = definition_pb2.SystemProperties.FromString(message.system)
                if system.message_id == asked.message_id:
                    return queue, offset
        return None

    # ------------------------------------------------------------------------------------------------ inside

    def _own(self, text: str, group: Resource, topic: Resource) -> tuple[Handle, QueueProgress]:
        handle = self._broker.handles.read(text)
        if (handle.group_id, handle.topic_id) != self._numbers(group, topic):
            raise InvalidReceiptHandle(
                "the receipt handle belongs to another consumer group or topic; use it with its own"
            )
        queue = self._broker.progress.queue(handle.group_id, handle.topic_id, handle.queue_id)
        if queue is None:
            raise _over()
        return handle, queue

    def _numbers(self, group: Resource, topic: Resource) -> tuple[int, int]:
        found_group, found_topic = self._broker.groups.get(group.name), self._broker.topics.get(topic.name)
        if found_group is None or found_topic is None:
            # TOPIC_NOT_FOUND would be retried for ever by push consumers (wire contract 3.10).
            raise InvalidReceiptHandle("the receipt handle's consumer group or topic does not exist any more")
        return found_group.group_id, found_topic.topic_id


def _over() -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        "the delivery of this receipt handle is over: its invisible time has passed or the message was delivered again"
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
    """What stands before the message id in an entry, and what between it and the handle."""
    before = b"\x0a" + varint(id_bytes)
    between = b"\x12" + varint(handle_bytes)
    size = len(before) + id_bytes + len(between) + handle_bytes + verdict_bytes
    return b"\x12" + varint(size) + before, between
