"""Consumers of lite topics for asyncio, which `evenq.aio` has, and the part that they share with the sync ones.

async with evenq.aio.LiteSimpleConsumer(group="screen", topic="chats", lite_topics=("ann",)) as consumer:
    for message in await consumer.receive():
        await consumer.ack(message)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, Self

from evenq.client.async_push_consumer import Listener, OnError
from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.core.clients.observer import ClientIdentity, observed_receive, observed_settle
from evenq.client.core.clients.user_functions import check_function
from evenq.client.core.lite.events import starting
from evenq.client.faces import AsyncFace, SdkClient, awaited, awaited_listener
from evenq.client.loops.clients.troubles import Report
from evenq.client.loops.clients.user_code import reporter
from evenq.client.loops.lite.lite_member import LiteMember, LitePlan
from evenq.client.loops.reading.listening import RunListener
from evenq.client.options import LiteOptions
from evenq.client.plans import check_callbacks, lite_plan
from evenq.client.running import AsyncRun
from evenq.client.wiring import ClientContext, lite_parts, new_client_id
from evenq.model import ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

OnUnsubscribed = Callable[[str], object]
"""Called with the name of a lite topic whose subscription a broker ended, because the topic was deleted."""


class LiteClient(SdkClient):
    """The part that all four consumers of lite topics share."""

    _awaited_by: ClassVar[str] = ""
    """The class that accepts a coroutine function, if this one does not."""

    def _make(
        self,
        plan: LitePlan,
        on_unsubscribed: OnUnsubscribed | None,
        client_id: str,
        context: ClientContext,
    ) -> None:
        if on_unsubscribed is not None:
            awaited_by = self._awaited_by and "evenq.aio.LiteSimpleConsumer"
            check_function("on_unsubscribed", on_unsubscribed, "lite_topic", awaited_by=awaited_by)
        self._plan = plan
        self._on_unsubscribed = on_unsubscribed
        self._context = context
        self.client_id = client_id or new_client_id(context.clock)
        self._identity = ClientIdentity(client_id=self.client_id, endpoint=context.endpoint, group=plan.group)
        self._lifetime = Lifetime(plan.group)

    @property
    def lite_topics(self) -> list[str]:
        """The lite topics subscribed to now, sorted."""
        return self._member.subscribing.names if self._lifetime.running else []

    async def _open(self, run_listener: RunListener | None = None, report: Report | None = None) -> None:
        self._calls, member = lite_parts(
            self._context,
            self.client_id,
            self._plan,
            identity=self._identity,
            run_listener=run_listener,
            report=report,
            tell=None if self._on_unsubscribed is None else partial(self._unsubscribed, self._on_unsubscribed),
        )
        try:
            await member.start()
        except BaseException:
            await self._context.let_go(self._calls.net)
            raise
        self._member = member
        self._lifetime.started = True

    async def _shut(self) -> None:
        await self._member.close()
        await self._context.let_go(self._calls.net)

    def _running(self) -> LiteMember:
        self._lifetime.check_running()
        return self._member

    @abstractmethod
    async def _unsubscribed(self, callback: OnUnsubscribed, lite_topic: str) -> object:
        """Calls the user's callback."""


class LiteSimpleClient(LiteClient):
    """The part that the sync and the asyncio simple consumer of lite topics share."""

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        lite_topics: Iterable[str] = (),
        endpoint: str = "",
        on_unsubscribed: OnUnsubscribed | None = None,
        options: LiteOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`topic`: of type LITE. `lite_topics`: first subscriptions. Raises IllegalGroup, and as `subscribe_lite`."""
        plan = lite_plan(group=group, topic=topic, lite_topics=lite_topics, options=options)
        self._make(plan, on_unsubscribed, client_id, ClientContext.of(context, credentials, endpoint=endpoint, tls=tls))
        self._begin()

    def _begin(self) -> None:
        """Completes the construction."""


class LitePushClient(LiteClient):
    """The part that the sync and the asyncio push consumer of lite topics share."""

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        listener: Listener,
        lite_topics: Iterable[str] = (),
        endpoint: str = "",
        consume_threads: int = 20,
        on_unsubscribed: OnUnsubscribed | None = None,
        on_error: OnError | None = None,
        options: LiteOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """The listener gets a list of one message, and its result decides.

        - An exception, False or a `Retry`: the message is redelivered after a growing pause, and its lite topic waits.
        - `Retry(delay_level=-1)`: the message moves to the dead-letter topic.
        - A `Suspend`: the message is redelivered after that pause, which does not count as an attempt.

        `consume_threads` 1 .. 1,000: lite topics that are consumed at a time. `on_error` as in `evenq.PushConsumer`.
        """
        check_function("listener", listener, "messages", items=ReceivedMessage, awaited_by=self._awaited_by)
        check_callbacks(None, on_error, awaited_by=self._awaited_by)
        plan = lite_plan(
            group=group, topic=topic, lite_topics=lite_topics, options=options, consume_threads=consume_threads
        )
        self._make(plan, on_unsubscribed, client_id, ClientContext.of(context, credentials, endpoint=endpoint, tls=tls))
        self._listener = listener
        self._on_error = on_error

    async def _open_listening(self) -> None:
        report = None if self._on_error is None else reporter(partial(self._notify, self._on_error))
        await self._open(self._listen, report)

    @abstractmethod
    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        """Calls the listener."""

    @abstractmethod
    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        """Calls `on_error`."""


class _AsyncLite(AsyncFace, LiteClient):
    @abstractmethod
    async def start(self) -> Self:
        """Subscribes and begins to receive. Starting twice is an error. Raises as `subscribe_lite`."""

    async def subscribe_lite(
        self,
        *lite_topics: str,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        start_offset: int | None = None,
        start_tail: int | None = None,
    ) -> None:
        """Subscribes to more lite topics; see `evenq.LiteSimpleConsumer.subscribe_lite`."""
        start = starting(start_from, start_timestamp_ms, start_offset, start_tail)
        await self._running().subscribing.subscribe(lite_topics, start)

    async def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Unsubscribes from these lite topics. The group keeps its progress in them."""
        await self._running().subscribing.unsubscribe(lite_topics)

    async def close(self) -> None:
        """Finishes running calls and leaves the group, which ends the subscriptions, also if it is cancelled. A second
        call does nothing.
        """
        if self._lifetime.end():
            await self._to_its_end(self._shut(), self._ended)

    def _ended(self) -> None:
        """Called at the end of `close`."""

    async def __aenter__(self) -> Self:
        return self if self._lifetime.started else await self.start()

    async def _unsubscribed(self, callback: OnUnsubscribed, lite_topic: str) -> object:
        return await awaited(callback, lite_topic)


class LiteSimpleConsumer(_AsyncLite, LiteSimpleClient):
    """Receives and acknowledges; see `evenq.LiteSimpleConsumer`. Start it with `async with`, or `start()`."""

    async def start(self) -> Self:
        """Subscribes and begins to receive. Starting twice is an error. Raises as `subscribe_lite`."""
        self._lifetime.check_new()
        await self._open()
        return self

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Receives up to `max_messages`, one of each lite topic; waits up to `wait_ms` for the first one."""
        with observed_receive(self._identity) as receiving:
            return receiving.received(await self._running().receive(max_messages, invisible_ms, wait_ms))

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges messages for the group; then the next ones of their lite topics are delivered."""
        with observed_settle(self._identity, "ack", messages):
            await self._running().receiving.ack(*messages)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hides a message for `invisible_ms` from now. Use the returned message from then on."""
        with observed_settle(self._identity, "change_invisible", [message]):
            return await self._running().receiving.change_invisible(message, invisible_ms)

    async def suspend(self, message: ReceivedMessage, pause_ms: int) -> None:
        """Pauses the lite topic: the message is redelivered after `pause_ms`, which does not count as an attempt."""
        with observed_settle(self._identity, "suspend", [message]):
            await self._running().receiving.change_invisible(message, pause_ms, suspend=True)


class LitePushConsumer(AsyncRun, _AsyncLite, LitePushClient):
    """Calls a listener with each message; see `evenq.LitePushConsumer`. `consume_threads`: listener calls at a time."""

    async def start(self) -> Self:
        """Subscribes and begins to receive. Starting twice is an error. Raises as `subscribe_lite`."""
        self._lifetime.check_new()
        await self._open_listening()
        return self

    async def close(self) -> None:
        """Waits for running listeners (at most `options.drain_ms`) and leaves the group, also if it is cancelled. A
        second call does nothing.
        """
        await super().close()

    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        return await awaited_listener(self._identity, self._listener, messages)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await awaited(callback, *arguments)
