"""The sync push consumer: brings messages to a listener in a pool of threads (semantics 8, 9, 12, 14, 16).

def listen(messages):
    for message in messages:
        print(message.body)

with evenq.PushConsumer(group="billing", listener=listen, subscriptions={"orders": "*"}):
    input()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from evenq.allocation import Strategy
from evenq.client.core.user_functions import check_function
from evenq.client.loops.background import Background
from evenq.client.loops.pushing import Pushing
from evenq.client.loops.user_code import in_thread, listened, reporter
from evenq.client.options import PushOptions
from evenq.client.plans import check_callbacks, filters, push_plan
from evenq.client.wiring import Ground, new_client_id, pushing_parts
from evenq.errors import Error, Unsupported
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.runtime.closing import Closing
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["Listener", "OnError", "OnRebalance", "PushConsumer"]

Listener = Callable[[Sequence[ReceivedMessage]], object]
"""Gets messages of one queue in offset order. An exception or False: none of them is done, and all come again; a
`Retry` names those that are not done. Anything else: all are done."""
OnRebalance = Callable[[Sequence[MessageQueue], Sequence[MessageQueue]], object]
"""Hears of gained queues before their first message, of lost ones after their last."""
OnError = Callable[[Error], object]
"""Hears once of each error that trying again cannot help: a missing topic, a missing grant."""


class PushConsumer(Closing):
    """One member of a consumer group. Delivery is at least once (TQ-10); orderly joins and leaves repeat nothing."""

    def __init__(
        self,
        *,
        group: str,
        listener: Listener,
        subscriptions: Mapping[str, str | FilterExpression],
        endpoint: str = "",
        model: MessageModel | str = MessageModel.CLUSTERING,
        assignment: str = "auto",
        strategy: str | Strategy = "AVG",
        consume_threads: int = 20,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        ordered: bool = False,
        on_rebalance: OnRebalance | None = None,
        on_error: OnError | None = None,
        options: PushOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        ground: Ground | None = None,
    ) -> None:
        """`subscriptions`: topic to tags (`a || b`, `*`) or a FilterExpression.

        `assignment`: `auto` follows the group's own strategy on the server if it has one, also one it gets later, and
        else divides with `strategy` in every member; `client` always divides, `server` always asks.
        `start_from` where the group never read: LAST, FIRST, TIMESTAMP (with `start_timestamp_ms`, ms since the epoch);
        None: as the group is configured; classic names like CONSUME_FROM_LAST_OFFSET are taken, and the time may be a
        text yyyyMMddHHmmss. `consume_threads` 1 .. 1,000 run the listener. `ordered`: one call at a time per queue, in
        offset order; a failed message holds its queue (OC-15). `on_error` hears, in a thread of its own, once of each
        error that trying again cannot help (TopicNotFound, Forbidden, Unauthorized ...); None: it is logged as one. The
        consumer keeps trying, and goes on once the topic or the grant is there.
        """
        self._plan = push_plan(
            group=group,
            subscriptions=subscriptions,
            model=model,
            assignment=assignment,
            strategy=strategy,
            consume_threads=consume_threads,
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            options=options,
            ordered=ordered,
        )
        check_function("listener", listener, "messages", awaited_by="evenq.aio.PushConsumer")
        check_callbacks(on_rebalance, on_error, awaited_by="evenq.aio.PushConsumer")
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._listener = listener
        self._on_rebalance = on_rebalance
        self._on_error = on_error
        self._pushing: Pushing | None = None
        self._closed = False

    def start(self) -> Self:
        """Join the group and begin to read; returns at once, queues come as they are granted. Starting twice is an
        error.
        """
        if self._pushing is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        self._background = Background.shared()
        self._threads = ThreadPoolExecutor(self._plan.slots, thread_name_prefix="evenq-listener")
        self._teller = ThreadPoolExecutor(1, thread_name_prefix="evenq-callbacks")
        self._background.run(self._open())
        return self

    def close(self) -> None:
        """Leave the group: finish what listeners hold (at most `options.drain_ms`), commit, let the queues go. Closing
        twice is no error.
        """
        if self._closed:
            return
        self._closed = True
        if self._pushing is not None:
            self._background.run(self._shut())
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._teller.shutdown(wait=False, cancel_futures=True)

    def subscribe(self, topic: str, wanted: str | FilterExpression = "*") -> None:
        """One topic more. All members of a group should subscribe alike (RG-8)."""
        pushing = self._running()
        told = filters({topic: wanted})[topic]
        self._background.call_soon(lambda: pushing.subscribe(topic, told))

    def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are handed over (RB-5)."""
        pushing = self._running()
        self._background.call_soon(lambda: pushing.unsubscribe(topic))

    def pause(self) -> None:
        """Fetch nothing until `resume`; what is in hand is consumed. Queues stay ours, unread, until others are to
        have them: a member that joins gets its share (CS-9).
        """
        pushing = self._running()
        self._background.call_soon(lambda: pushing.pause(paused=True))

    def resume(self) -> None:
        """Go on."""
        pushing = self._running()
        self._background.call_soon(lambda: pushing.pause(paused=False))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this member reads now, sorted."""
        if self._pushing is None or self._closed:
            return []
        return self._background.run(self._owned(self._pushing))

    @property
    def balanced(self) -> bool:
        """True if this member knows its share of every topic and reads exactly that; the moment to say "ready"."""
        return self._pushing is not None and not self._closed and self._pushing.balanced

    def __enter__(self) -> Self:
        return self if self._pushing is not None else self.start()

    def _running(self) -> Pushing:
        if self._pushing is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._pushing

    async def _open(self) -> None:
        tell = None if self._on_rebalance is None else self._tell
        report = None if self._on_error is None else reporter(self._on_error, self._teller)
        self._calls, self._pushing = pushing_parts(
            self._ground,
            self.client_id,
            self._plan,
            run_listener=self._listen,
            tell=tell,
            report=report,
        )
        self._pushing.start()

    async def _shut(self) -> None:
        assert self._pushing is not None
        await self._pushing.close()
        await self._ground.let_go(self._calls.net)

    async def _owned(self, pushing: Pushing) -> list[MessageQueue]:
        return pushing.owned()

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> object:
        return await listened(self._threads, self._listener, messages, instead="evenq.aio.PushConsumer")

    async def _tell(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        assert self._on_rebalance is not None
        await in_thread(self._teller, self._on_rebalance, gained, lost)
