"""The clients of one process for one transport: what channels call, in any thread.

kombu makes and closes connections all the time (each `delay` in a script, each remote-control command), and connections
to a cluster are costly. So connections with equal settings share a session, which closes with the last of them.
Celery's prefork pool forks while the main process receives. A session belongs to the process that made it; in a forked
child `SESSIONS` is empty, and the child's first use makes another. All clients use `LoopNet`: gRPC does not survive a
fork.
Always true: errors are those of `evenq.errors`; a session of a parent process does nothing in its child.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from evenq.celery.broadcasts import Binding, Broadcasts
from evenq.celery.codec import encoded, task_message
from evenq.celery.deliveries import REFUSED, QueueDeliveries
from evenq.celery.inbox import Inbox
from evenq.celery.names import broadcast_tag
from evenq.celery.settings import TransportSettings
from evenq.client.admin import Admin
from evenq.client.loops.clients.background import Background
from evenq.client.options import ProducerOptions
from evenq.client.producer import Producer
from evenq.client.rpc.calls import Calls
from evenq.client.wiring import ClientContext, new_client_id
from evenq.errors import (
    Error,
    Forbidden,
    GroupNotFound,
    IllegalDeliveryTime,
    MessageTypeConflict,
    NotFound,
    TopicNotFound,
)
from evenq.model import NO_GENERATION, Message, MessageType, StartFrom, StartPolicy
from evenq.wire.loop_net import LoopNet

Result = TypeVar("Result")

TOPICS_MAX = 10_000
"""Most topics whose type is remembered."""
SEND_MS = 10_000
"""Longest time of one send; kombu repeats it, and the event loop of a worker waits for its events meanwhile."""
TRANSIENT_TAG = "transient:"
"""Begins the delivery tags of transient queues; a number and the name of the queue follow."""
ABSENT_MS = 10_000
"""Time for which a topic that does not exist is not looked for again."""


class TransportSession:
    """Thread-safe."""

    def __init__(self, settings: TransportSettings) -> None:
        """Raises SettingsError, IllegalAccessPoint. Connects at the first call."""
        self.settings = settings
        self.process_id = os.getpid()
        self.users = 0
        """Connections of kombu that use it; changed by `SESSIONS`."""
        self._background = Background.shared()
        plain = ClientContext.of(None, settings.credentials, endpoint=settings.endpoint, tls=settings.tls)
        self._net = LoopNet(tls=plain.tls)
        self.context = replace(plain, net=self._net)
        self._admin = Admin(endpoint=plain.endpoint, context=self.context)
        self._lock = threading.Lock()
        self._made: Producer | None = None
        self._made_broadcasts: Broadcasts | None = None
        self._types: dict[str, MessageType] = {}
        """Type of each topic that is known to exist."""
        self._refused: dict[str, Error] = {}
        """Topics that this user could not create, with the error. They may exist, and those that do are forgotten."""
        self._absent: dict[str, int] = {}
        """Topics that did not exist, and when they were looked for."""
        self._transient: set[str] = set()
        self._number = 0

    @property
    def alive(self) -> bool:
        """False in a forked child."""
        return self.process_id == os.getpid()

    def check(self) -> None:
        """Raises ConnectionFailed or another error if the cluster cannot be reached."""
        self.run(self._check())

    async def _check(self) -> None:
        # The route of a topic: every user of the transport may ask for it, and it creates nothing.
        calls = self._calls(reads=True)
        try:
            await calls.query_route(self.settings.names.broadcasts)
        except (TopicNotFound, Forbidden):
            return

    def _calls(self, *, reads: bool) -> Calls:
        """Returns calls of a client; `reads`: its queries for routes create no topic."""
        context = self.context
        return Calls(context.open_net(), endpoint=context.endpoint, client_id=new_client_id(context.clock), reads=reads)

    # ------------------------------------------------------------------------------------------------------- queues

    def declare(self, queue: str, *, levels: int) -> None:
        """Creates topic and group of a queue if they do not exist. `levels`: above 0, the topic is of type PRIORITY."""
        topic = self.settings.names.topic_of(queue)
        if topic in self._types:
            return
        try:
            kind = self._type_of(topic)
            if kind is None:
                kind = MessageType.PRIORITY if levels else MessageType.MIXED
                self._admin.create_topic(topic, queues=levels or self.settings.queues_per_broker, message_type=kind)
            try:
                self._admin.group_offsets(topic)
            except GroupNotFound:
                # From the first message: tasks are sent before their first worker starts.
                self._admin.create_group(topic, start_from="FIRST", max_attempts=self.settings.max_deliveries)
                self.run(self._begin(topic))
        except REFUSED as error:  # without the right to create or describe: `check_consumable` and the first send look
            self._refused[topic] = error
            kind = MessageType.PRIORITY if levels else MessageType.MIXED
        self._remember(topic, kind)

    def check_consumable(self, queue: str) -> None:
        """Raises Forbidden if the queue has no topic and this user could not create it: nothing would be received."""
        topic = self.settings.names.topic_of(queue)
        error = self._refused.pop(topic, None)
        if error is None:
            return
        try:
            missing = self._type_of(topic) is None
        except REFUSED:  # the first receive reports what is missing
            return
        if missing:
            self.forget(queue)
            raise _missing_queue(queue, topic, error) from error

    async def _begin(self, topic: str) -> None:
        """Lets the new group begin at each broker, so that its lag counts messages before the first worker."""
        calls = self._calls(reads=False)
        route = await calls.query_route(topic)
        for name, queue in {queue.broker_name: queue for queue in route.readable}.items():
            start = StartPolicy(StartFrom.FIRST, 0)
            await calls.begin(route.address_of(name), topic, queue, start, generation=NO_GENERATION, uid="")

    def exists(self, queue: str) -> bool:
        """Returns whether the queue has a topic."""
        topic = self.settings.names.topic_of(queue)
        if topic in self._types:
            return True
        now_ms = self.context.clock.monotonic_ms()
        if now_ms - self._absent.get(topic, -ABSENT_MS) < ABSENT_MS:
            return False
        try:
            kind = self._type_of(topic)
        except REFUSED:
            return True
        if kind is None:
            if len(self._absent) >= TOPICS_MAX:
                self._absent.clear()
            self._absent[topic] = now_ms
            return False
        self._remember(topic, kind)
        return True

    def size(self, queue: str) -> int:
        """Returns the number of messages that wait for a worker; 0 if it is not known."""
        topic = self.settings.names.topic_of(queue)
        try:
            group = self._admin.describe_group(topic)
        except (NotFound, *REFUSED):
            return 0
        return sum(max(0, queue.lag - queue.inflight) for queue in group.queues if queue.queue.topic == topic)

    def purge(self, queue: str) -> int:
        """Skips all messages that wait; returns their number.

        Workers finish what they hold, but it is not delivered again if they die.
        """
        topic = self.settings.names.topic_of(queue)
        try:
            waiting = self.size(queue)
            self._admin.skip_offsets(topic, topic=topic, dry_run=False)
        except NotFound:
            return 0
        return waiting

    def delete(self, queue: str) -> None:
        """Deletes topic and group of a queue with all messages."""
        topic = self.settings.names.topic_of(queue)
        for delete in (self._admin.delete_group, self._admin.delete_topic):
            try:
                delete(topic)
            except NotFound:
                continue
        self._types.pop(topic, None)

    def members(self, queue: str) -> int:
        """Returns the number of consumers of a queue, of all processes."""
        try:
            return len(self._admin.describe_group(self.settings.names.topic_of(queue)).members)
        except (NotFound, *REFUSED):
            return 0

    # ------------------------------------------------------------------------------------------------------ sending

    def send(self, queue: str, payload: dict[str, Any]) -> None:
        """Stores a message in the queue's topic. Raises as `evenq.Producer.send`."""
        topic = self.settings.names.topic_of(queue)
        kind = self._types.get(topic, MessageType.MIXED)
        try:
            self._producer().send(self._message(topic, payload, kind))
        except MessageTypeConflict:
            # The topic was created by somebody else, with another type.
            actual = self._type_of(topic)
            if actual is None or actual is kind:
                raise
            self._remember(topic, actual)
            self._producer().send(self._message(topic, payload, actual))
        except IllegalDeliveryTime:  # later than the broker keeps messages: a worker holds the task
            self._producer().send(self._message(topic, payload, MessageType.NORMAL))
        except TopicNotFound as error:
            self.forget(queue)
            refusal = self._refused.pop(topic, None)
            if refusal is None:
                raise
            raise _missing_queue(queue, topic, refusal) from error

    def forget(self, queue: str) -> None:
        """Lets the next declaration create the queue again: its topic or group was deleted."""
        self._types.pop(self.settings.names.topic_of(queue), None)

    def broadcast(self, exchange: str, routing_key: str | None, payload: dict[str, Any]) -> None:
        """Stores a message for the transient queues of all processes. `routing_key`: None for fanout and topic."""
        topic = self._broadcast_topic()
        try:
            self._producer().send(Message(topic=topic, body=encoded(payload), tag=broadcast_tag(exchange, routing_key)))
        except TopicNotFound as error:
            raise self._missing_broadcasts(topic, error) from error

    def _missing_broadcasts(self, topic: str, error: Error) -> Error:
        """Returns the error to raise if the topic does not exist.

        TopicNotFound is a lost connection for kombu: workers connect again, and their first heartbeat is repeated
        without end. That creates a topic that was deleted, and helps nobody who may not create it.
        """
        self._types.pop(topic, None)
        refusal = self._refused.pop(topic, None)
        if refusal is None:
            return error
        return Forbidden(
            f"the topic of remote control and events does not exist, and {refusal}. Create it with "
            f"`evenq topic create {topic} --queues 1`, or grant `create` on topic:{topic}"
        )

    def _message(self, topic: str, payload: dict[str, Any], kind: MessageType) -> Message:
        return task_message(
            topic,
            payload,
            now_ms=self.context.clock.now_ms(),
            delays=self.settings.native_delay and kind in {MessageType.MIXED, MessageType.DELAY},
            prioritized=kind is MessageType.PRIORITY,
        )

    # ---------------------------------------------------------------------------------------------- transient queues

    def is_transient(self, queue: str) -> bool:
        return queue in self._transient

    def declare_transient(self, queue: str) -> None:
        """Makes a queue that ends with this process."""
        if queue in self._transient:
            return
        topic = self._broadcast_topic()
        try:
            self.run(self._declare_transient(queue))
        except TopicNotFound as error:
            raise self._missing_broadcasts(topic, error) from error
        self._transient.add(queue)

    async def _declare_transient(self, queue: str) -> None:
        await self._broadcasts().declare(queue)

    def bind(self, queue: str, binding: Binding) -> None:
        """Adds a binding of a transient queue."""
        self.call(lambda: self._broadcasts().bind(queue, binding))

    def unbind(self, queue: str, binding: Binding) -> None:
        self.call(lambda: self._broadcasts().unbind(queue, binding))

    def consume_transient(self, queue: str, inbox: Inbox) -> None:
        self.call(lambda: self._broadcasts().consume(queue, inbox))

    def delete_transient(self, queue: str) -> None:
        self._transient.discard(queue)
        self.call(lambda: self._broadcasts().delete(queue))

    def put_back(self, queue: str, payload: dict[str, Any]) -> None:
        self.call(lambda: self._broadcasts().put_back(queue, payload))

    def get_transient(self, queue: str) -> dict[str, Any] | None:
        return self.run(self._get_transient(queue))

    async def _get_transient(self, queue: str) -> dict[str, Any] | None:
        return await self._broadcasts().get(queue)

    # ---------------------------------------------------------------------------------------------------- the loop

    def deliveries(self, inbox: Inbox) -> QueueDeliveries:
        """Returns the deliveries of a new channel."""
        return self.run(self._new_deliveries(inbox))

    async def _new_deliveries(self, inbox: Inbox) -> QueueDeliveries:
        return QueueDeliveries(self.context, self.settings, inbox, on_missing=self.forget)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine in the loop and returns its result."""
        return self._background.run(coroutine)

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function in the loop, soon and in order; does nothing in a forked child."""
        if self.alive:
            self._background.call_soon(function)

    def close(self) -> None:
        """Sends what is pending and closes the connections."""
        if not self.alive:
            return
        if self._made is not None:
            self._made.close()
        self.run(self._close())

    async def _close(self) -> None:
        if self._made_broadcasts is not None:
            await self._made_broadcasts.close()
        await self._net.close()

    def _producer(self) -> Producer:
        with self._lock:
            if self._made is None:
                options = ProducerOptions(send_timeout_ms=SEND_MS)
                self._made = Producer(endpoint=self.context.endpoint, context=self.context, options=options)
            return self._made

    def _broadcasts(self) -> Broadcasts:
        """Called in the loop only, and without the lock: its holder may wait for the loop."""
        if self._made_broadcasts is None:
            self._made_broadcasts = Broadcasts(
                self.context, self.settings.names.broadcasts, poll_ms=self.settings.poll_ms, tag=self._next_tag
            )
        return self._made_broadcasts

    def _next_tag(self, queue: str) -> str:
        self._number += 1
        return f"{TRANSIENT_TAG}{self._number}:{queue}"

    def _broadcast_topic(self) -> str:
        topic = self.settings.names.broadcasts
        if topic not in self._types:
            try:
                kind = self._type_of(topic)
                if kind is None:
                    self._admin.create_topic(
                        topic,
                        queues=1,  # each reader of a queue has a long poll
                        message_type=MessageType.NORMAL,
                        retention_ms=self.settings.broadcast_retention_ms,
                    )
            except REFUSED as error:
                self._refused[topic] = error
                kind = None
            self._remember(topic, kind or MessageType.NORMAL)
        return topic

    def _type_of(self, topic: str) -> MessageType | None:
        try:
            return self._admin.describe_topic(topic).message_type
        except TopicNotFound:
            return None

    def _remember(self, topic: str, kind: MessageType) -> None:
        if len(self._types) >= TOPICS_MAX:
            self._types.clear()
            self._refused.clear()
        self._types[topic] = kind
        self._absent.pop(topic, None)


def _missing_queue(queue: str, topic: str, refusal: Error) -> Forbidden:
    return Forbidden(
        f"queue {queue!r} has no topic, and {refusal}. Create it with `evenq topic create {topic} --type MIXED` and "
        f"`evenq group create {topic} --from FIRST`, or grant `create` on topic:{topic} and group:{topic}"
    )


class TransportSessions:
    """The sessions of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sessions: dict[TransportSettings, TransportSession] = {}

    def acquire(self, settings: TransportSettings) -> TransportSession:
        """Returns the session with these settings; release it once."""
        with self._guard:
            session = self._sessions.get(settings)
            if session is None:
                session = self._sessions[settings] = TransportSession(settings)
            session.users += 1
            return session

    def release(self, session: TransportSession) -> None:
        """Closes the session if no other connection uses it; one of a parent process is left to the parent."""
        if not session.alive:
            return
        with self._guard:
            session.users -= 1
            last = session.users == 0
            if last:
                del self._sessions[session.settings]
        if last:
            try:
                session.close()
            except Error:  # messages that could not be sent; their senders have the error
                return

    def begin_anew(self) -> None:
        """Forgets the parent's sessions in a forked child; they stay in memory, so nothing of them is finalized."""
        _OF_PARENTS.append(self._sessions)
        self._guard, self._sessions = threading.Lock(), {}


_OF_PARENTS: list[dict[TransportSettings, TransportSession]] = []
SESSIONS = TransportSessions()
os.register_at_fork(after_in_child=SESSIONS.begin_anew)
