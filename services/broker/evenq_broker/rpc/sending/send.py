"""SendMessage (wire contract 3.7): stores one or many messages of one topic, and answers when they are safe.

Problem. Every message of an official SDK passes here, so the cost of one call limits the broker. At the same time a
send has many cases: topics that are created on first use, delays, transactions, messages that belong to other brokers,
drained brokers, retries of messages that are already stored.

Idea. Cheap cases first, each falling back to the next one without side effects:
1. Plain messages. The front has read them from their bytes (decision 44), and the topic accepts them here: claim,
   append, answer. No protobuf object exists. A check that fails only selects case 2; it never reports an error.
2. One message, decoded: `check`, claim, append. The code of the claim is inlined, as a call would cost as much as it.
3. Several messages, or a timer (a delayed or a half message): the same in steps. Bad messages do not stop good ones.
4. Messages of other brokers (`rpc.sending.elsewhere`): of an owner of message groups or lite topics, of any broker that
   has the topic if this one has not, or is drained. One hop.

Invariants:
- OK is sent after the future of the append, so the messages are as safe as the flush mode (and the copies) make them.
- Within `duplicates_window_ms` a message is stored once: its key (id, CRC32 of the body, topic) is claimed before the
  append. Then the claim is replaced by the answer, or released by `broken` or `failed`, so that a retry may store.
- An answer has one entry for each message, in the order of the request, also when all are refused. The status is set at
  both levels: some SDKs read only that of the response, others only those of the entries.
- `check` consumes the message that it is given. A second look parses the request again or copies the message.
- Errors that name files or other internals are raised to the server, never sent as a status (`is_public`).

Example: a message with an id of 34 characters is stored at offset 120 of queue 3. The window then maps its key to
120 << 32 | 3 = 515396075523, and a retry gets offset 120 again. The entry of the answer has 46 bytes: the tag, a
length of 44, 6 bytes of status OK, 2 + 34 of the id, 2 of the offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, cast

from evenq.errors import BadRequest, Error, Forbidden, MessageCorrupted, QueueClosed, TooManyRequests, TopicNotFound
from evenq.model import MessageType, TopicConfig
from evenq.model.names import is_system_topic
from evenq.runtime.accelerator import accelerator
from evenq.serving.rpc import RpcContext
from evenq.store import Append, TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.sending.body_digest import mark_of
from evenq_broker.core.sending.dedup_window import QUEUE_BITS, Answer, Key, key_of, pack_place, unpack_place
from evenq_broker.core.sending.native_sends import plain_reader
from evenq_broker.core.sending.plain_sends import PlainSend, PlainSends
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_broker.core.state.frames import delayed_entry, field, half_entry, near, varint
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.rpc.answers import OK_STATUS, code_of, is_public, parsed, several, status_frame
from evenq_broker.rpc.cluster.forwarding import MARK
from evenq_broker.rpc.sending.elsewhere import OWNED, Elsewhere, must_be_one_topic
from evenq_broker.runtime import limits_of

if TYPE_CHECKING:
    from evenq_broker.loops.sending.dedup import Claim, Deduplicator


def must_be_open(topic: str) -> None:
    """Raises Forbidden for a topic that only the broker itself writes to."""
    if is_system_topic(topic):
        raise Forbidden(f"only the broker writes to {topic}; send to the original topic of its messages")


def must_be_writable(kernel: Kernel, topic: TopicConfig) -> None:
    """Raises QueueClosed if the topic is not writable, or if this broker is drained."""
    if kernel.catalog.draining:
        own = kernel.runtime.settings.broker_name
        raise QueueClosed(
            f"broker {own} is being drained and accepts no messages; send to another broker of the topic's route, "
            f"or open it with `evenq broker resume {own}`"
        )
    must_permit_writes(topic)


def must_permit_writes(topic: TopicConfig) -> None:
    """Raises QueueClosed if the topic's permission here does not allow writes."""
    if not topic.permission.writable:
        raise QueueClosed(
            f"topic {topic.name} has no writable queue on this broker; its permission is {topic.permission.name}"
        )


class SendHandler:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        lite: Lites,
        transactions: Transactions,
        deduplicator: Deduplicator | None,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster_catalog, self._lite = cluster_catalog, lite
        self._transactions = transactions
        self._once = deduplicator
        """None: duplicates are not detected, and every retry is stored."""
        self._elsewhere = Elsewhere(kernel, self.send, cluster=cluster, lite=lite)
        self._turn = 0
        """Messages without a queue so far; the next one of any topic goes to queue `_turn + 1` modulo its queues."""

    def plain(self, request: bytes) -> PlainSend | None:
        """Reads a plain request without protobuf; None: it is not plain (`core.sending.plain_sends`)."""
        return self._plain_sends.read(request)

    async def send(self, data: bytes, context: RpcContext) -> bytes:
        """Stores the messages; returns one entry for each, in order."""
        # Case 1: the front has read plain messages from their bytes.
        if context.plain is not None:
            plain = cast("PlainSend", context.plain)
            open_topic = self._plain_topic(plain)
            if open_topic is not None:
                return await self._send_plain(plain, open_topic, context)
        request = parsed(service_pb2.SendMessageRequest, data, context)
        messages = request.messages
        try:
            topic = self._topic(request)
            if topic is None:
                topic = await self._made(request, context)
                if topic is None:  # other brokers have the topic, and this one must not create it
                    return await self._at_its_brokers(request, data, context)
            if topic.message_type in OWNED:  # case 4; None: all messages are stored here
                response = await self._elsewhere.at_owners(request, data, topic.message_type, context)
                if response is not None:
                    return response
            if self._catalog.draining or not topic.permission.writable:
                return await self._passed_on(data, topic, context)
            if len(messages) == 1:  # case 2
                message_id = messages[0].system_properties.message_id.encode()
                stored = self.check(messages[0], topic)
                once, key = self._once, b""
                if once is not None:  # `key_of`, `claim` and `kept` inlined: each call costs as much as its work
                    key = message_id + mark_of(stored.head, stored.system) + stored.topic_id.to_bytes(4, "big")
                    if len(once.entries) >= once.count_max:
                        once.recent.make_room()
                    if once.entries.setdefault(key, stored) is not stored:  # claimed before: a retry
                        first_answer = await once.first(key, stored)
                        if first_answer is not None:  # None: the first try failed, and this one stores
                            return OK_STATUS + _repeated_entry(message_id, first_answer)
                if isinstance(stored, TimerAppend):
                    return OK_STATUS + await self._send_timer(key, message_id, stored, topic, context)
                try:
                    await self._ledger.store.append((stored,))
                except BaseException as error:
                    if once is not None:
                        once.broken([(key, stored)], error)
                    raise
                if once is not None:
                    once.entries[key] = stored.queue_offset << QUEUE_BITS | stored.queue_id
                    if once.waits:
                        once.wake(key)
                self._count(topic, (stored,))
                return OK_STATUS + _ok_entry(message_id, stored.queue_offset)
            return await self._send_many(request, topic, context)
        except Error as error:  # it counts for all messages of the request
            if not messages or not is_public(error):
                raise
            status = status_frame(error, context.language)
            again = parsed(service_pb2.SendMessageRequest, data).messages  # a check consumes its message
            return _refused(status, [message.system_properties.message_id.encode() for message in again])

    def _plain_topic(self, plain: PlainSend) -> TopicConfig | None:
        """Returns the topic if it accepts the messages here now; None: the full path must check or refuse them."""
        topic = self._catalog.topics.get(plain.topic)
        if (
            topic is None
            or topic.message_type is not MessageType.NORMAL
            or self._catalog.draining
            or not topic.permission.writable
            or len(plain.entries) > self._runtime.settings.send_batch_max
            or is_system_topic(plain.topic)
        ):
            return None
        return topic

    async def _send_plain(self, plain: PlainSend, topic: TopicConfig, context: RpcContext) -> bytes:
        entries, message_ids, once = plain.entries, plain.message_ids, self._once
        topic_id, queues = topic.topic_id, topic.write_queues
        for entry in entries:
            entry.topic_id = topic_id
            if not 0 < entry.queue_id < queues:  # protobuf does not encode 0: the client chose no queue
                self._turn += 1
                entry.queue_id = self._turn % queues
        try:
            if once is None:
                await self._ledger.store.append(entries)
            else:
                suffix = topic_id.to_bytes(4, "big")
                keys = [key + suffix for key in plain.keys]
                if not once.claim_all(keys, entries):  # some are retries, or two of them are equal
                    first_answers = await self._claimed_one_by_one(once, keys, entries, topic)
                    return OK_STATUS + b"".join(map(_repeated_entry, message_ids, first_answers))
                try:
                    await self._ledger.store.append(entries)
                except BaseException as error:
                    once.broken(list(zip(keys, entries, strict=True)), error)
                    raise
                once.kept_all(keys, entries)
        except Error as error:
            if not is_public(error):
                raise
            return _refused(status_frame(error, context.language), message_ids)
        self._count(topic, entries)
        return OK_STATUS + b"".join(
            [_ok_entry(name, entry.queue_offset) for name, entry in zip(message_ids, entries, strict=True)]
        )

    async def _claimed_one_by_one(
        self, once: Deduplicator, keys: list[bytes], entries: list[Append], topic: TopicConfig
    ) -> list[Answer]:
        async def append(new: list[Append | TimerAppend]) -> None:
            await self._append(new)
            self._count(topic, new)

        return await once.store(list(zip(keys, entries, strict=True)), append, _place_of)

    async def _send_timer(
        self, key: Key, message_id: bytes, stored: TimerAppend, topic: TopicConfig, context: RpcContext
    ) -> bytes:
        """Stores a delayed or a half message; returns its entry of the answer."""
        if self._once is None:
            return await self._store_timer(message_id, stored, topic, context)
        # Not cancelled with the call: a timer is not looked for in the log afterwards (`Deduplicator.broken`).
        return await self._once.finish(self._timer_once(self._once, key, message_id, stored, topic, context))

    async def _store_timer(
        self, message_id: bytes, stored: TimerAppend, topic: TopicConfig, context: RpcContext
    ) -> bytes:
        if stored.kind == HALF_MESSAGE:
            name = await self._transactions.begin(stored, context.client_id)
            return half_entry(message_id, name)
        await self._ledger.store.append((), timers=(stored,))
        self._count(topic, (stored,))
        return self._delayed_entry(message_id, stored)

    async def _timer_once(
        self,
        once: Deduplicator,
        key: Key,
        message_id: bytes,
        stored: TimerAppend,
        topic: TopicConfig,
        context: RpcContext,
    ) -> bytes:
        try:
            entry = await self._store_timer(message_id, stored, topic, context)
        except BaseException:
            once.failed(key)
            raise
        once.kept(key, entry)
        return entry

    async def _send_many(
        self, request: service_pb2.SendMessageRequest, topic: TopicConfig, context: RpcContext
    ) -> bytes:
        ids, verdicts = self._checked(request, topic, context)
        good = [verdict for verdict in verdicts if not isinstance(verdict, bytes)]
        if good and self._once is not None:
            entries = await self._many_once(self._once, ids, verdicts, topic)
        else:
            if good:
                await self._append(good)
                self._count(topic, good)
            entries = [self._entry_of(verdict, message_id) for message_id, verdict in zip(ids, verdicts, strict=True)]
        if len(good) == len(ids):
            return OK_STATUS + b"".join(entries)
        bad = [verdict for verdict in verdicts if isinstance(verdict, bytes)]
        same = not good and len({code_of(status) for status in bad}) == 1
        return field(1, bad[0] if same else several()) + b"".join(entries)

    async def _many_once(
        self, once: Deduplicator, ids: list[bytes], verdicts: list[Append | TimerAppend | bytes], topic: TopicConfig
    ) -> list[bytes]:
        claims: list[Claim] = []
        names: dict[int, bytes] = {}
        for message_id, verdict in zip(ids, verdicts, strict=True):
            if not isinstance(verdict, bytes):
                names[id(verdict)] = message_id
                claims.append((key_of(message_id, mark_of(verdict.head, verdict.system), verdict.topic_id), verdict))

        async def append(new: list[Append | TimerAppend]) -> None:
            await self._append(new)
            self._count(topic, new)

        def answer_of(stored: Append | TimerAppend) -> Answer:
            if isinstance(stored, Append):
                return pack_place(stored.queue_id, stored.queue_offset)
            return self._delayed_entry(names[id(stored)], stored)

        work = once.store(claims, append, answer_of)
        timers = any(isinstance(verdict, TimerAppend) for verdict in verdicts)
        answers = iter(await (once.finish(work) if timers else work))
        return [
            _entry(verdict, message_id) if isinstance(verdict, bytes) else _repeated_entry(message_id, next(answers))
            for message_id, verdict in zip(ids, verdicts, strict=True)
        ]

    async def _append(self, messages: list[Append | TimerAppend]) -> None:
        timers = [one for one in messages if isinstance(one, TimerAppend)]
        if timers:
            await self._ledger.store.append([one for one in messages if isinstance(one, Append)], timers=timers)
        else:
            await self._ledger.store.append(messages)  # type: ignore[arg-type]  # without timers all are Append

    def _entry_of(self, verdict: Append | TimerAppend | bytes, message_id: bytes) -> bytes:
        if isinstance(verdict, Append):
            return _ok_entry(message_id, verdict.queue_offset)
        return _entry(verdict, message_id) if isinstance(verdict, bytes) else self._delayed_entry(message_id, verdict)

    def _delayed_entry(self, message_id: bytes, timer: TimerAppend) -> bytes:
        handle = self._ledger.recalls.make(timer.topic_id, timer.log_offset, timer.due_ms, message_id.decode())
        return delayed_entry(message_id, handle)

    def _checked(
        self, request: service_pb2.SendMessageRequest, topic: TopicConfig, context: RpcContext
    ) -> tuple[list[bytes], list[Append | TimerAppend | bytes]]:
        """Returns id and verdict of each message: ready for the store, or the encoded `Status` of its error."""
        first_topic = definition_pb2.Resource()
        first_topic.CopyFrom(request.messages[0].topic)
        ids: list[bytes] = []
        verdicts: list[Append | TimerAppend | bytes] = []
        for message in request.messages:
            must_be_one_topic(message, first_topic)
            ids.append(message.system_properties.message_id.encode())
            try:
                stored = self.check(message, topic)
                if isinstance(stored, TimerAppend) and stored.kind == HALF_MESSAGE:
                    raise BadRequest("a transaction is one message; send each transaction message by itself")
                verdicts.append(stored)
            except Error as error:
                verdicts.append(status_frame(error, context.language))
        return ids, verdicts

    def check(self, message: definition_pb2.Message, topic: TopicConfig) -> Append | TimerAppend:
        """Returns the message ready for the store, with its queue. Consumes `message`. Raises Error."""
        if topic.message_type is MessageType.LITE:
            name = message.system_properties.lite_topic
            stored = checked(message, topic, self._limits, now_ms=self._runtime.clock.now_ms())
            stored.queue_id = self._lite.place(topic, name)
            return stored
        stored = checked(message, topic, self._limits, now_ms=self._runtime.clock.now_ms())
        self._choose_queue(stored, topic)
        return stored

    async def _made(self, request: service_pb2.SendMessageRequest, context: RpcContext) -> TopicConfig | None:
        """Creates the topic by its first message; None: not allowed, but other brokers have it. Raises TopicNotFound,
        Forbidden, IllegalTopic.
        """
        name = request.messages[0].topic.name
        try:
            kind = self._first_kind(request.messages, name)
            return await self._cluster_catalog.ensure_topic(name, message_type=kind)
        except (TopicNotFound, Forbidden):
            if MARK in context.headers or not self._catalog.routes.route(name):
                raise
            return None

    def _first_kind(self, messages: Sequence[definition_pb2.Message], name: str) -> MessageType:
        """Returns the kind of the first message that such a topic accepts. Raises the first refusal if all fail."""
        refusal: Error | None = None
        for message in messages:
            kind = type_of(message)
            prospect = self._catalog.prospect(name, kind)
            copy = definition_pb2.Message()
            copy.CopyFrom(message)  # a check consumes its message
            try:
                checked(copy, prospect, self._limits, now_ms=self._runtime.clock.now_ms())
            except Error as error:
                refusal = refusal or error
            else:
                return kind
        assert refusal is not None, "there is a message"
        raise refusal

    async def _at_its_brokers(self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext) -> bytes:
        name = request.messages[0].topic.name
        kind = self._catalog.routes.kind_of(name)
        response = await self._elsewhere.at_owners(request, data, kind, context) if kind else None
        response = response or await self._elsewhere.at_any(name, data, context)
        if response is None:
            raise _closed(name)
        return response

    async def _passed_on(self, request: bytes, topic: TopicConfig, context: RpcContext) -> bytes:
        """Sends to another broker while this one is drained or the topic closed here: SDKs keep a route for 30 s, and
        some retry at the same broker (TQ-14). Raises QueueClosed, or Forbidden without another broker.
        """
        response = await self._elsewhere.at_any(topic.name, request, context)
        if response is not None:
            return response
        must_be_writable(self._kernel, topic)
        raise _closed(topic.name)

    def _choose_queue(self, stored: Append | TimerAppend, topic: TopicConfig) -> None:
        if stored.queue_id < 0:
            self._turn += 1
            stored.queue_id = self._turn % topic.write_queues

    @cached_property
    def _limits(self) -> MessageLimits:
        return limits_of(self._runtime)

    @cached_property
    def _plain_sends(self) -> PlainSends:
        return plain_reader(accelerator().module, self._limits)

    def _topic(self, request: service_pb2.SendMessageRequest) -> TopicConfig | None:
        """Returns the topic; None: it is not here, but its name is allowed. Raises errors of the whole request."""
        messages = request.messages
        if not messages:
            raise MessageCorrupted("the request holds no message; send at least one")
        if len(messages) > self._runtime.settings.send_batch_max:
            raise TooManyRequests(
                f"the request holds {len(messages)} messages, the limit is {self._runtime.settings.send_batch_max}; "
                "send fewer in one call"
            )
        resource = messages[0].topic
        name = resource.name
        topic = self._catalog.topics.get(name)
        if topic is None:
            must_be_open(name)  # before it is created
            for message in messages:
                must_be_one_topic(message, resource)
        else:
            must_be_open(topic.name)
        return topic

    def _count(self, topic: TopicConfig, stored: Sequence[Append | TimerAppend]) -> None:
        sizes = [len(entry.head) + len(entry.system) for entry in stored]
        self._runtime.stats.topic(topic.topic_id).came(sizes)


def _closed(topic: str) -> Forbidden:
    return Forbidden(f"topic {topic} is closed for writing; query the route again")


def type_of(message: object) -> MessageType:
    """Returns the kind of a message; a topic that its first message creates gets this type."""
    system = message.system_properties  # type: ignore[attr-defined]  # a v2 Message
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if system.message_type == definition_pb2.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("lite_topic") or system.message_type == definition_pb2.LITE:
        return MessageType.LITE
    if system.HasField("priority") or system.message_type == definition_pb2.PRIORITY:
        return MessageType.PRIORITY
    return MessageType.FIFO if system.HasField("message_group") else MessageType.NORMAL


def _refused(status: bytes, message_ids: Sequence[bytes]) -> bytes:
    return b"".join((field(1, status), *(_entry(status, message_id) for message_id in message_ids)))


def _place_of(stored: Append | TimerAppend) -> int:
    assert isinstance(stored, Append), "plain messages have no timers"
    return pack_place(stored.queue_id, stored.queue_offset)


def _repeated_entry(message_id: bytes, first: Answer) -> bytes:
    return first if isinstance(first, bytes) else _ok_entry(message_id, unpack_place(first)[1])


def _ok_entry(message_id: bytes, offset: int) -> bytes:
    encoded = near(offset)
    return b"".join((_ok_head(len(message_id), len(encoded)), message_id, b"\x20", encoded))


@lru_cache(1024)
def _ok_head(id_bytes: int, offset_bytes: int) -> bytes:
    """Returns the bytes before the message id in the entry of a stored message."""
    inside = _OK_AND_NAME + varint(id_bytes)
    return b"\x12" + varint(len(inside) + id_bytes + 1 + offset_bytes) + inside


_OK_AND_NAME = OK_STATUS + b"\x12"


def _entry(status: bytes, message_id: bytes) -> bytes:
    return field(2, field(1, status) + field(2, message_id))
