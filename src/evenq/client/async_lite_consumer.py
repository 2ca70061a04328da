"""The asyncio consumers of lite topics; `evenq.aio` has them. See `evenq.LiteSimpleConsumer`, `evenq.LitePushConsumer`.

async with evenq.aio.LiteSimpleConsumer(group="screen", topic="chats", lite_topics=("ann",)) as consumer:
    for message in await consumer.receive():
        await consumer.ack(message)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from evenq.client.core.lite import starting
from evenq.client.core.user_functions import check_function
from evenq.client.loops.listening import RunListener
from evenq.client.loops.lite_member import LiteMember, LitePlan
from evenq.client.loops.troubles import Report
from evenq.client.loops.user_code import reporter
from evenq.client.options import LiteOptions
from evenq.client.plans import check_callbacks, lite_plan
from evenq.client.wiring import Ground, lite_parts, new_client_id
from evenq.errors import Error, Unsupported
from evenq.model import ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["LitePushConsumer", "LiteSimpleConsumer"]

Listener = Callable[[Sequence[ReceivedMessage]], object]
OnUnsubscribed = Callable[[str], object]
OnError = Callable[[Error], object]
"""Plain functions or coroutine functions."""


class _LiteConsumer:
    """What both have."""

    _member: LiteMember | None = None
    _closed = False

    def __init__(
        self,
        plan: LitePlan,
        *,
        endpoint: str,
        on_unsubscribed: OnUnsubscribed | None,
        client_id: str,
        credentials: Credentials | None,
        tls: Tls | bool | None,
        ground: Ground | None,
    ) -> None:
        if on_unsubscribed is not None:
            check_function("on_unsubscribed", on_unsubscribed, "lite_topic")
        self._plan = plan
        self._on_unsubscribed = on_unsubscribed
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)

    async def start(self) -> Self:
        """Subscribe and begin to receive. Raises as `subscribe_lite`."""
        if self._member is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        self._calls, member = lite_parts(
            self._ground, self.client_id, self._plan,
            tell=None if self._on_unsubscribed is None else self._tell, run_listener=self._run_listener(),
            report=self._reporter(),
        )  # fmt: skip
        try:
            await member.start()
        except BaseException:
            await self._ground.let_go(self._calls.net)
            raise
        self._member = member
        return self

    async def subscribe_lite(
        self,
        *lite_topics: str,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        start_offset: int | None = None,
        start_tail: int | None = None,
    ) -> None:
        """Want these lite topics, too; see `evenq.LiteSimpleConsumer.subscribe_lite`."""
        start = starting(start_from, start_timestamp_ms, start_offset, start_tail)
        await self._running().subscribing.subscribe(lite_topics, start)

    async def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Want these no longer. The group's progress in them stays."""
        await self._running().subscribing.unsubscribe(lite_topics)

    @property
    def lite_topics(self) -> list[str]:
        """The lite topics that are wanted now, sorted."""
        return [] if self._member is None or self._closed else self._member.subscribing.names

    async def close(self) -> None:
        """Finish what is in hand and say goodbye, which ends the subscriptions."""
        if self._closed:
            return
        self._closed = True
        if self._member is not None:
            await self._member.close()
            await self._ground.let_go(self._calls.net)

    async def __aenter__(self) -> Self:
        return self if self._member is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _running(self) -> LiteMember:
        if self._member is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._member

    def _run_listener(self) -> RunListener | None:
        return None

    def _reporter(self) -> Report | None:
        return None

    async def _tell(self, name: str) -> None:
        assert self._on_unsubscribed is not None
        told = self._on_unsubscribed(name)
        if inspect.isawaitable(told):
            await told


class LiteSimpleConsumer(_LiteConsumer):
    """Receive, work, acknowledge; see `evenq.LiteSimpleConsumer`. Start it with `async with`, or `start()`."""

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
        ground: Ground | None = None,
    ) -> None:
        super().__init__(
            lite_plan(group=group, topic=topic, lite_topics=lite_topics, options=options), endpoint=endpoint,
            on_unsubscribed=on_unsubscribed, client_id=client_id, credentials=credentials, tls=tls, ground=ground,
        )  # fmt: skip

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Take up to `max_messages`, one of each lite topic; waits up to `wait_ms` for the first one."""
        return await self._running().receive(max_messages, invisible_ms, wait_ms)

    async def ack(self, message: ReceivedMessage) -> None:
        """Finish it for the group; then the next one of its lite topic comes."""
        await self._running().receiving.ack(message)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now. Go on with the result."""
        return await self._running().receiving.change_invisible(message, invisible_ms)

    async def suspend(self, message: ReceivedMessage, pause_ms: int) -> None:
        """Pause its lite topic: the message comes again after `pause_ms`, and that counts as no attempt."""
        await self._running().receiving.change_invisible(message, pause_ms, suspend=True)


class LitePushConsumer(_LiteConsumer):
    """Brings each message to a listener; see `evenq.LitePushConsumer`. `consume_threads` is the number of listener
    calls at a time.
    """

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
        ground: Ground | None = None,
    ) -> None:
        check_function("listener", listener, "messages")
        check_callbacks(None, on_error)
        plan = lite_plan(
            group=group, topic=topic, lite_topics=lite_topics, options=options, consume_threads=consume_threads
        )
        super().__init__(
            plan, endpoint=endpoint, on_unsubscribed=on_unsubscribed, client_id=client_id, credentials=credentials,
            tls=tls, ground=ground,
        )  # fmt: skip
        self._listener = listener
        self._on_error = on_error

    def _run_listener(self) -> RunListener:
        return self._listen

    def _reporter(self) -> Report | None:
        return None if self._on_error is None else reporter(self._on_error)

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> object:
        told: object = self._listener(messages)
        if inspect.isawaitable(told):
            told = await told
        return told
