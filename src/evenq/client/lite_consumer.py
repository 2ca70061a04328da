"""The sync consumers of lite topics: small ordered queues inside one topic of type LITE (wire contract 3.14, 5.6).

with evenq.LiteSimpleConsumer(group="screen", topic="chats", lite_topics=("ann",)) as consumer:
    for message in consumer.receive():
        consumer.ack(message)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from evenq.client.core.lite import starting
from evenq.client.core.user_functions import check_function
from evenq.client.loops.background import Background
from evenq.client.loops.listening import RunListener
from evenq.client.loops.lite_member import LiteMember, LitePlan
from evenq.client.loops.troubles import Report
from evenq.client.loops.user_code import in_thread, listened, reporter
from evenq.client.options import LiteOptions
from evenq.client.plans import check_callbacks, lite_plan
from evenq.client.push_consumer import Listener, OnError
from evenq.client.wiring import Ground, lite_parts, new_client_id
from evenq.errors import Unsupported
from evenq.model import ReceivedMessage, StartFrom
from evenq.runtime.closing import Closing
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["LitePushConsumer", "LiteSimpleConsumer", "OnUnsubscribed"]

OnUnsubscribed = Callable[[str], object]
"""Hears the name of a lite topic whose subscription a broker ended: its topic was deleted."""


class _LiteConsumer(Closing):
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
            check_function("on_unsubscribed", on_unsubscribed, "lite_topic", awaited_by="evenq.aio.LiteSimpleConsumer")
        self._plan = plan
        self._on_unsubscribed = on_unsubscribed
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._background = Background.shared()

    def subscribe_lite(
        self,
        *lite_topics: str,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        start_offset: int | None = None,
        start_tail: int | None = None,
    ) -> None:
        """Want these lite topics, too; all of them or, if it fails, none. Those that are wanted already stay as they
        are.

        Without a start the group goes on where it was, and begins at the first message that is kept. `start_from`
        FIRST, LAST or TIMESTAMP (with `start_timestamp_ms`), `start_offset`, or `start_tail` (the last n messages) move
        it, for lite topics that exist and that nobody else of the group wants. Raises LiteSubscriptionQuotaExceeded,
        IllegalLiteTopic, IllegalTopic (not a LITE topic), BadRequest, ConnectionFailed, RequestTimeout.
        """
        start = starting(start_from, start_timestamp_ms, start_offset, start_tail)
        self._background.run(self._running().subscribing.subscribe(lite_topics, start))

    def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Want these no longer. The group's progress in them stays."""
        self._background.run(self._running().subscribing.unsubscribe(lite_topics))

    @property
    def lite_topics(self) -> list[str]:
        """The lite topics that are wanted now, sorted."""
        return [] if self._member is None or self._closed else self._member.subscribing.names

    def close(self) -> None:
        """Finish what is in hand and say goodbye, which ends the subscriptions. Closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        if self._member is not None:
            self._background.run(self._shut())

    def _running(self) -> LiteMember:
        if self._member is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._member

    async def _open(self, run_listener: RunListener | None = None, report: Report | None = None) -> None:
        self._calls, member = lite_parts(
            self._ground, self.client_id, self._plan,
            tell=None if self._on_unsubscribed is None else self._tell, run_listener=run_listener, report=report,
        )  # fmt: skip
        try:
            await member.start()
        except BaseException:
            await self._ground.let_go(self._calls.net)
            raise
        self._member = member

    async def _shut(self) -> None:
        assert self._member is not None
        await self._member.close()
        await self._ground.let_go(self._calls.net)

    async def _tell(self, name: str) -> None:
        assert self._on_unsubscribed is not None
        await in_thread(None, self._on_unsubscribed, name)


class LiteSimpleConsumer(_LiteConsumer):
    """Receives and acknowledges messages of the lite topics it asked for. Thread-safe.

    The next message of a lite topic comes when the one before is acknowledged, whichever member of the group has it.
    """

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
        """`topic` is of type LITE; `lite_topics` are the first ones wanted. Usable at once. Raises as `subscribe_lite`,
        and IllegalGroup.
        """
        super().__init__(
            lite_plan(group=group, topic=topic, lite_topics=lite_topics, options=options), endpoint=endpoint,
            on_unsubscribed=on_unsubscribed, client_id=client_id, credentials=credentials, tls=tls, ground=ground,
        )  # fmt: skip
        self._background.run(self._open())

    def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """As `SimpleConsumer.receive`; at most one message of each lite topic."""
        return self._background.run(self._running().receive(max_messages, invisible_ms, wait_ms))

    def ack(self, message: ReceivedMessage) -> None:
        """Finish it for the group; then the next one of its lite topic comes. Raises InvalidReceiptHandle if its
        invisible time is over and it was given away.
        """
        self._background.run(self._running().receiving.ack(message))

    def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """As `SimpleConsumer.change_invisible`; its lite topic waits."""
        return self._background.run(self._running().receiving.change_invisible(message, invisible_ms))

    def suspend(self, message: ReceivedMessage, pause_ms: int) -> None:
        """Pause its lite topic: the message comes again after `pause_ms`, and that counts as no attempt."""
        receiving = self._running().receiving
        self._background.run(receiving.change_invisible(message, pause_ms, suspend=True))


class LitePushConsumer(_LiteConsumer):
    """Brings messages of the lite topics it asked for to a listener in a pool of threads, one message a call."""

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
        """The listener gets a list of one message. An exception, False or a `Retry`: it comes again after a growing
        pause, and its lite topic waits; `Retry(delay_level=-1)`: to the dead-letter topic; a `Suspend`: after that
        pause, and it counts as no attempt. `consume_threads` 1 .. 1,000: lite topics that are worked on at a time.
        `on_error` as in `evenq.PushConsumer`.
        """
        check_function("listener", listener, "messages", awaited_by="evenq.aio.LitePushConsumer")
        check_callbacks(None, on_error, awaited_by="evenq.aio.LitePushConsumer")
        plan = lite_plan(
            group=group, topic=topic, lite_topics=lite_topics, options=options, consume_threads=consume_threads
        )
        super().__init__(
            plan, endpoint=endpoint, on_unsubscribed=on_unsubscribed, client_id=client_id, credentials=credentials,
            tls=tls, ground=ground,
        )  # fmt: skip
        self._listener = listener
        self._on_error = on_error

    def start(self) -> Self:
        """Subscribe and begin to receive. Starting twice is an error. Raises as `subscribe_lite`."""
        if self._member is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        self._threads = ThreadPoolExecutor(self._plan.slots, thread_name_prefix="evenq-listener")
        self._background.run(self._open(self._listen, self._reporter()))
        return self

    def _reporter(self) -> Report | None:
        return None if self._on_error is None else reporter(self._on_error, self._threads)

    def close(self) -> None:
        """Finish what listeners hold (at most `options.drain_ms`) and say goodbye. Closing twice is no error."""
        started = self._member is not None and not self._closed
        super().close()
        if started:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self if self._member is not None else self.start()

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> object:
        return await listened(self._threads, self._listener, messages, instead="evenq.aio.LitePushConsumer")
