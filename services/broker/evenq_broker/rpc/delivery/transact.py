"""`evenq.v1.Data/Transact`: messages and acknowledgements as one group of the log.

A consumer that is killed between its sends and its ack gets the message again and sends twice. Here one call has both,
and the store writes them as one group: all or none. A delivery can be finished once, so it is the fence (decision 143).

- Everything is checked before anything is written. A refused transaction changes nothing.
- Only the handle of the present delivery counts, while it runs. From the append to its outcome nobody else can settle
  or receive the message (`core.delivery.fence`).
- A drained broker stores results, too: they have to be at the broker that delivered, and what it delivered has to be
  finished before it may end.
- The ids of its messages identify a retry in the deduplication window, which the next start or leader reads back. A
  retry whose ids are forgotten is refused and stores nothing: its messages are finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from evenq.errors import (
    BadRequest,
    GroupNotFound,
    IllegalMessageId,
    InvalidReceiptHandle,
    NotImplementedYet,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq.runtime.failpoints import passing
from evenq.runtime.tasks import outlasting, spawn
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from evenq_broker.core.delivery.progress import QueueProgress, SettleStatus
from evenq_broker.core.delivery.queue_progress import LITE_QUEUES_FROM
from evenq_broker.core.sending.body_digest import mark_of
from evenq_broker.core.sending.dedup_window import Key, key_of, pack_place, unpack_place
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_broker.core.state.handles import broker_of
from evenq_broker.core.state.records import encode_acked
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.state.journal import REFUSED
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.sending.send import must_be_open, must_permit_writes, type_of
from evenq_broker.runtime import limits_of

MESSAGES_MAX = ACKS_MAX = 1_000
UNSUPPORTED = frozenset({MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION, MessageType.LITE})


class _AckedDelivery(NamedTuple):
    queue: QueueProgress | None
    queue_offset: int
    status: SettleStatus


class TransactHandler:
    def __init__(self, kernel: Kernel, *, deduplicator: Deduplicator | None, long_polls: LongPolls) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._once, self._long_polls = deduplicator, long_polls
        self._turn = 0

    def rpcs(self) -> list[Rpc]:
        return [rpc("/evenq.v1.Data/Transact", self.transact)]

    async def transact(self, data: bytes, _context: RpcContext) -> bytes:
        """Stores the messages and finishes the acknowledged ones: all of it, or nothing."""
        work = self._transact(parsed(data_pb2.TransactRequest, data))
        # Not cancelled with the call: what is handed to the store must get its outcome in the state, too.
        if self._once is not None:
            return await self._once.finish(work)
        return await outlasting(spawn(work, name="store a transaction"))

    async def _transact(self, request: data_pb2.TransactRequest) -> bytes:
        for what, count, least, most in (
            ("acknowledgements", len(request.acks), 1, ACKS_MAX),
            ("messages", len(request.messages), 0, MESSAGES_MAX),
        ):
            if not least <= count <= most:
                raise BadRequest(f"the transaction has {count} {what}, the range is {least} to {most}")
        self._group(request.group)
        ids = [message.system_properties.message_id for message in request.messages]
        if len(set(ids)) < len(ids):
            raise IllegalMessageId("two messages of the transaction have the same id; give each an id of its own")
        topics = {name: self._topic(name) for name in {message.topic.name for message in request.messages}}
        entries = [self._checked(message, topics[message.topic.name]) for message in request.messages]
        keys = self._keys(ids, entries)
        await self._outcome_of_others(keys)
        if any(self._catalog.topics.get(name) is not topic for name, topic in topics.items()):
            raise PreconditionFailed("a topic of the transaction was changed meanwhile; repeat the call")
        group = self._group(request.group)
        # In one step from here to the append.
        acks = self._acks(request, group)
        first = self._first_try(ids, keys, acks)
        if first is not None:
            await self._ledger.journal.still_leads()
        else:
            await self._store(list({(id(ack.queue), ack.queue_offset): ack for ack in acks}.values()), keys, entries)
            first = [(entry.queue_id, entry.queue_offset) for entry in entries]
            for entry in entries:
                self._runtime.stats.topic(entry.topic_id).came([len(entry.head) + len(entry.system)])
        response = data_pb2.TransactResponse(status=OK)
        own = self._runtime.settings.broker_name
        for message_id, entry, (queue_id, offset) in zip(ids, entries, first, strict=True):
            topic = self._catalog.topics.by_id(entry.topic_id)
            queue = common_pb2.Queue(topic="" if topic is None else topic.name, broker_name=own, queue_id=queue_id)
            response.messages.add(message_id=message_id, queue=queue, queue_offset=offset)
        return response.SerializeToString()

    # ------------------------------------------------------------------------------------------------ checks

    def _group(self, name: str) -> GroupConfig:
        group = self._catalog.groups.get(name)
        if group is None:
            raise GroupNotFound(f"no consumer group {name!r}; give the group that received the messages")
        if group.ordered:
            raise NotImplementedYet(
                f"group {name} is ordered, and a transaction does not acknowledge messages of ordered groups; use "
                "`ack`, or a group without order"
            )
        return group

    def _topic(self, name: str) -> TopicConfig:
        must_be_open(name)
        topic = self._catalog.topics.get(name)
        if topic is not None:
            must_permit_writes(topic)
            return topic
        if self._catalog.routes.route(name):
            own = self._runtime.settings.broker_name
            raise PreconditionFailed(
                f"topic {name} has no queue at broker {own}, whose messages the transaction acknowledges; add some by "
                f"`evenq topic create {name} --broker {own}:8`, or send and acknowledge in separate calls"
            )
        raise TopicNotFound(f"no topic {name!r}: a transaction creates none; do it with `evenq topic create {name}`")

    def _checked(self, message: definition_pb2.Message, topic: TopicConfig) -> Append:
        kind = type_of(message)
        if kind in UNSUPPORTED:
            raise NotImplementedYet(
                f"message {message.system_properties.message_id[:64]!r} for topic {topic.name} is {kind}; a consumer's "
                "transaction sends NORMAL and PRIORITY messages only: send this one with a producer"
            )
        entry = checked(message, topic, self._limits, now_ms=self._runtime.clock.now_ms())
        assert isinstance(entry, Append), "delayed and transaction messages are refused above"
        if entry.queue_id < 0:
            self._turn += 1
            entry.queue_id = self._turn % topic.write_queues
        return entry

    def _keys(self, ids: Sequence[str], entries: Sequence[Append]) -> list[Key]:
        if self._once is None:
            return []
        return [
            key_of(message_id.encode(), mark_of(entry.head, entry.system), entry.topic_id)
            for message_id, entry in zip(ids, entries, strict=True)
        ]

    async def _outcome_of_others(self, keys: Sequence[Key]) -> None:
        """Waits while another call, maybe the first try of this one, stores one of the messages."""
        once = self._once
        while once is not None:
            stores = [key for key in keys if not isinstance(once.entries.get(key), int | bytes | None)]
            if not stores:
                return
            await once.outcome(stores[0])

    def _acks(self, request: data_pb2.TransactRequest, group: GroupConfig) -> list[_AckedDelivery]:
        handles, progress, now_ms = self._ledger.handles, self._ledger.progress, self._runtime.now_ms()
        acks: list[_AckedDelivery] = []
        for ack in request.acks:
            maker, own = broker_of(ack.receipt_handle), self._runtime.settings.broker_name
            if maker is not None and maker != own:
                raise InvalidReceiptHandle(
                    f"a receipt handle is of broker {maker[:64]}, this is broker {own}; acknowledge only messages of "
                    "one broker in a transaction, and call that broker"
                )
            handle = handles.read(ack.receipt_handle)
            topic = self._catalog.topics.get(ack.topic)
            if topic is None or (handle.group_id, handle.topic_id) != (group.group_id, topic.topic_id):
                raise InvalidReceiptHandle(
                    f"a receipt handle is not of group {group.name} and topic {ack.topic!r}; use it with its own"
                )
            if handle.queue_id >= LITE_QUEUES_FROM:
                raise NotImplementedYet(f"{ack.topic} is a lite topic; a transaction does not acknowledge its messages")
            queue = progress.queue(handle.group_id, handle.topic_id, handle.queue_id)
            status = progress.status_of(queue, handle.queue_offset, handle.number, now_ms=now_ms)
            entry = None if queue is None else queue.pending.get(handle.queue_offset)
            if status is SettleStatus.DONE and entry is not None and entry.client_id:
                raise NotImplementedYet(
                    "a message was delivered to a push consumer; a transaction acknowledges those of simple consumers"
                )
            acks.append(_AckedDelivery(queue, handle.queue_offset, status))
        return acks

    def _first_try(
        self, ids: Sequence[str], keys: Sequence[Key], acks: Sequence[_AckedDelivery]
    ) -> list[tuple[int, int]] | None:
        """Returns where an earlier try stored the messages; None: this is the first one. Raises IllegalMessageId if
        other sends used the ids, InvalidReceiptHandle if a delivery has ended.
        """
        known = [] if self._once is None else [self._once.entries.get(key) for key in keys]
        running = [ack for ack in acks if ack.status is SettleStatus.DONE]
        places = [unpack_place(one) for one in known if isinstance(one, int)]
        finished = sum(ack.status is SettleStatus.ALREADY for ack in acks)
        # Without messages, an ack of finished ones is OK, as any ack.
        if not running and len(places) == len(ids) and (places or finished == len(acks)):
            return places
        if len(running) < len(acks):
            raise InvalidReceiptHandle(
                f"this call stores nothing: {len(acks) - len(running)} of its {len(acks)} deliveries have "
                f"ended, and the messages of {finished} of them are finished, by another consumer or by an earlier try "
                "of this transaction; receive again, what is not finished is redelivered"
            )
        used = [message_id for message_id, one in zip(ids, known, strict=False) if one is not None]
        if used:
            raise IllegalMessageId(
                f"this call stores nothing: another send stored message {used[0][:64]!r}; give each "
                "message an id of its own"
            )
        return None

    # ------------------------------------------------------------------------------------------------ the group

    async def _store(self, acks: Sequence[_AckedDelivery], keys: Sequence[Key], entries: Sequence[Append]) -> None:
        progress, once = self._ledger.progress, self._once
        queues = [(ack.queue, ack.queue_offset) for ack in acks if ack.queue is not None]
        ops = [encode_acked(queue.group_id, queue.topic_id, queue.queue_id, offset) for queue, offset in queues]
        passing("transact.storing")
        stored = self._ledger.journal.append(entries, ops)
        claims = [] if once is None else list(zip(keys, entries, strict=True))
        if once is not None:
            for key, message in claims:
                once.claim(key, message)

        def refused() -> bool:
            return stored.done() and not stored.cancelled() and isinstance(stored.exception(), REFUSED)

        held = [(queue, offset, progress.fence.begin(queue, offset, refused)) for queue, offset in queues]
        try:
            await asyncio.shield(stored)
        except BaseException as error:
            if once is not None:
                once.broken(claims, error)
            # Otherwise the group may be in the log, and the store accepts nothing any more: the next start knows.
            if refused():
                for queue, offset, entry in held:
                    deadline_ms = progress.fence.end(queue, offset, entry, stored=False)
                    if deadline_ms:
                        self._long_polls.sooner(deadline_ms)
            raise
        passing("transact.stored")
        for queue, offset, entry in held:
            full = progress.room(queue) <= 0
            progress.fence.end(queue, offset, entry, stored=True)
            if full or queue.ready:  # the ack made space that a parked poll may wait for
                self._long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
            self._runtime.stats.group_topic(queue.group_id, queue.topic_id).acks += 1
        if once is not None:
            for key, message in claims:
                once.kept(key, pack_place(message.queue_id, message.queue_offset))

    @cached_property
    def _limits(self) -> MessageLimits:
        return limits_of(self._runtime)
