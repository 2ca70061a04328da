"""Push consumer for asyncio, `evenq.aio.PushConsumer`, and the part that it shares with the sync one.

await evenq.aio.PushConsumer(group="billing", listener=listen, subscriptions={"orders": "*"}).run()
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Self

from evenq.allocation import Strategy
from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.core.clients.observer import ClientIdentity
from evenq.client.core.clients.user_functions import check_function
from evenq.client.faces import AsyncFace, SdkClient, awaited, awaited_listener
from evenq.client.loops.clients.user_code import reporter
from evenq.client.loops.consumers.pushing import PushLoop
from evenq.client.options import PushOptions
from evenq.client.plans import check_callbacks, filters, push_plan
from evenq.client.running import AsyncRun
from evenq.client.wiring import ClientContext, new_client_id, pushing_parts
from evenq.errors import Error
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

Listener = Callable[[list[ReceivedMessage]], object]
"""Called with a list of messages of one queue in offset order. An exception or False: none of them is finished, and all
are redelivered. A `Retry` names those that are not finished. Any other result: all are finished. With asyncio it is a
coroutine function (or a plain, fast function), otherwise a plain one, which runs in a thread."""
OnRebalance = Callable[[list[MessageQueue], list[MessageQueue]], object]
"""Called with gained queues before their first message, and with lost queues after their last."""
OnError = Callable[[Error], object]
"""Called once for each error that a retry cannot solve: a missing topic, a missing grant."""


class PushClient(SdkClient):
    """The part that both push consumers share."""

    _awaited_by: ClassVar[str] = ""
    """The class that accepts a coroutine function, if this one does not."""

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
        ordered: bool | None = None,
        on_rebalance: OnRebalance | None = None,
        on_error: OnError | None = None,
        options: PushOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`subscriptions`: topic to tags (`a || b`, `*`) or to a FilterExpression.

        `assignment`: `auto` follows the group's strategy on the server, also one that it gets later; without one, each
        member computes the shares with `strategy`. `client` always computes them, `server` always queries the server.

        `start_from` applies where the group never read: LAST, FIRST, or TIMESTAMP with `start_timestamp_ms` (ms since
        the epoch, or a text yyyyMMddHHmmss). None: as the group is configured. Classic names like
        CONSUME_FROM_LAST_OFFSET are accepted.

        `consume_threads` 1 .. 1,000: threads of the listener; with asyncio its calls at a time. `ordered`: one call at
        a time per queue, in offset order; a failed message blocks its queue (OC-15). None: only for topics of type
        FIFO.

        `on_error` is called, in a thread of its own (asyncio: in the loop), once for each error that a retry cannot
        solve (TopicNotFound, Forbidden, Unauthorized ...). None: the error is logged. The consumer continues to try,
        and works once the topic or the grant exists.
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
        check_function("listener", listener, "messages", items=ReceivedMessage, awaited_by=self._awaited_by)
        check_callbacks(on_rebalance, on_error, awaited_by=self._awaited_by)
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._identity = ClientIdentity(
            client_id=self.client_id, endpoint=self._context.endpoint, group=group, model=self._plan.model
        )
        self._listener = listener
        self._on_rebalance = on_rebalance
        self._on_error = on_error
        self._lifetime = Lifetime(group)

    def subscribe(self, topic: str, expression: str | FilterExpression = "*") -> None:
        """Adds a topic. All members of a group should have the same subscriptions (RG-8)."""
        pushing, parsed = self._running(), filters({topic: expression})[topic]
        self._soon(lambda: pushing.subscribe(topic, parsed))

    def unsubscribe(self, topic: str) -> None:
        """Removes a topic: its queues are released (RB-5)."""
        pushing = self._running()
        self._soon(lambda: pushing.unsubscribe(topic))

    def pause(self) -> None:
        """Fetches nothing until `resume`; messages fetched before are consumed. The member keeps its queues unread
        until they are assigned to others: a member that joins gets its share (CS-9).
        """
        pushing = self._running()
        self._soon(lambda: pushing.pause(paused=True))

    def resume(self) -> None:
        """Continues after `pause`."""
        pushing = self._running()
        self._soon(lambda: pushing.pause(paused=False))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, sorted."""
        return self._in_loop(self._pushing.owned) if self._lifetime.running else []

    @property
    def balanced(self) -> bool:
        """True if this member knows its share of every topic and reads exactly that: the moment to report "ready"."""
        return self._lifetime.running and self._pushing.balanced

    def _open(self) -> None:
        self._calls, self._pushing = pushing_parts(
            self._context,
            self.client_id,
            self._plan,
            identity=self._identity,
            run_listener=self._listen,
            tell=None if self._on_rebalance is None else partial(self._notify, self._on_rebalance),
            report=None if self._on_error is None else reporter(partial(self._notify, self._on_error)),
        )
        self._pushing.start()
        self._lifetime.started = True

    async def _shut(self) -> None:
        await self._pushing.close()
        await self._context.let_go(self._calls.net)

    def _running(self) -> PushLoop:
        self._lifetime.check_running()
        return self._pushing

    @abstractmethod
    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        """Calls the listener."""

    @abstractmethod
    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        """Calls one of the user's callbacks."""


class PushConsumer(AsyncRun, AsyncFace, PushClient):
    """One member of a consumer group; see `evenq.PushConsumer`. `consume_threads`: listener calls at a time."""

    async def start(self) -> Self:
        """Joins the group and begins to read; returns immediately. Starting twice is an error."""
        self._lifetime.check_new()
        self._open()
        return self

    async def close(self) -> None:
        """Leaves the group, also if it is cancelled; see `evenq.PushConsumer.close`. A second call does nothing."""
        if self._lifetime.end():
            await self._to_its_end(self._shut(), self._ended)

    async def __aenter__(self) -> Self:
        return self if self._lifetime.started else await self.start()

    async def _listen(self, messages: list[ReceivedMessage]) -> object:
        return await awaited_listener(self._identity, self._listener, messages)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await awaited(callback, *arguments)
