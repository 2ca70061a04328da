"""The sync pull consumer: its user asks for messages when it wants them, and says where to read (CS-11, RB-49).

with evenq.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in consumer.poll():
        print(message.body)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from evenq.allocation import Strategy
from evenq.client.loops.background import Background
from evenq.client.loops.polling import Polling
from evenq.client.loops.user_code import in_thread
from evenq.client.options import PullOptions
from evenq.client.plans import check_callbacks, filters, pull_plan
from evenq.client.wiring import Ground, new_client_id, polling_parts
from evenq.errors import Unsupported
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["OnRebalance", "PullConsumer"]

Result = TypeVar("Result")
OnRebalance = Callable[[Sequence[MessageQueue], Sequence[MessageQueue]], object]


class PullConsumer:
    """Shares a group's queues as a push consumer does, or reads queues of its user's choice. One poll at a time."""

    def __init__(
        self,
        *,
        group: str,
        subscriptions: Mapping[str, str | FilterExpression] | None = None,
        endpoint: str = "",
        model: MessageModel | str = MessageModel.CLUSTERING,
        assignment: str = "auto",
        strategy: str | Strategy = "AVG",
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        on_rebalance: OnRebalance | None = None,
        options: PullOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        ground: Ground | None = None,
    ) -> None:
        """With `subscriptions` it joins the group and gets its share; without, `assign` says what to read, and nobody
        else in the group knows of it. Other arguments as in `evenq.PushConsumer`.
        """
        self._plan = pull_plan(
            group=group,
            subscriptions=subscriptions or {},
            model=model,
            assignment=assignment,
            strategy=strategy,
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            options=options,
        )
        check_callbacks(on_rebalance, awaited_by="evenq.aio.PullConsumer")
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._on_rebalance = on_rebalance
        self._polling: Polling | None = None
        self._closed = False

    def start(self) -> Self:
        """Join the group and begin to fetch ahead; returns at once. Starting twice is an error."""
        if self._polling is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        self._background = Background.shared()
        self._teller = ThreadPoolExecutor(1, thread_name_prefix="evenq-on-rebalance")
        self._background.run(self._open())
        return self

    def close(self, *, consumed: bool = True) -> None:
        """Leave the group in bounded time. With automatic commits what the last poll returned counts as consumed,
        unless `consumed` is False (leaving a `with` block by an exception); then it comes again. Closing twice is no
        error.
        """
        if self._closed:
            return
        self._closed = True
        if self._polling is not None:
            self._background.run(self._shut(self._polling, consumed))
            self._teller.shutdown(wait=False, cancel_futures=True)

    def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Up to `max_messages` (1 .. 10,000) of one queue in offset order; waits up to `wait_ms`, then an empty list.

        With automatic commits, what the poll before returned is consumed now. Raises Unsupported while another thread
        polls.
        """
        polling = self._running()
        try:
            return self._background.run(polling.poll(max_messages, wait_ms))
        except KeyboardInterrupt:  # what it may have taken must not count as consumed
            self._background.call_soon(polling.interrupt)
            raise

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now: behind everything polled, or these offsets (the next ones to read, also backward). Raises
        PreconditionFailed for a queue that is not ours, ConnectionFailed if a broker did not take it.
        """
        self._background.run(self._running().commit(offsets))

    def committed(self, queue: MessageQueue) -> int:
        """The group's stored offset, asked of the store; -1 if there is none (OF-8)."""
        return self._background.run(self._running().committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset that the next poll of the queue begins at."""
        return self._background.run(self._soon(lambda polling: polling.position(queue)))

    def assign(
        self, queues: Sequence[MessageQueue], wanted: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Read exactly these queues from the group's stored offsets on, without sharing; returns when they are ready.
        Raises RequestTimeout, and Unsupported on a consumer that subscribes.
        """
        told = filters({queue.topic: wanted for queue in queues})
        self._background.run(
            self._running().assign(queues, next(iter(told.values()), FilterExpression()), timeout_ms=timeout_ms)
        )

    def subscribe(self, topic: str, wanted: str | FilterExpression = "*") -> None:
        """One topic more."""
        told = filters({topic: wanted})[topic]
        self._background.run(self._soon(lambda polling: polling.subscribe(topic, told)))

    def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are handed over."""
        self._background.run(self._soon(lambda polling: polling.unsubscribe(topic)))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read the queue from `offset` on, forward or back. Raises PreconditionFailed if it is not ours now."""
        self._background.run(self._soon(lambda polling: polling.seek(queue, offset)))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read from the oldest message that is kept."""
        self._background.run(self._running().seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        self._background.run(self._running().seek_to_end(queue))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time, ms since the epoch."""
        return self._background.run(self._running().offset_at(queue, timestamp_ms))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Polls leave these queues out, and nothing is fetched for them, until `resume`."""
        told = list(queues)
        self._background.run(self._soon(lambda polling: polling.pause(told, paused=True)))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Poll these queues again."""
        told = list(queues)
        self._background.run(self._soon(lambda polling: polling.pause(told, paused=False)))

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted; to choose from."""
        return self._background.run(self._running().queues_of(topic))

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this consumer reads now, sorted."""
        if self._polling is None or self._closed:
            return []
        return self._background.run(self._soon(lambda polling: polling.owned()))

    def __enter__(self) -> Self:
        return self if self._polling is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(consumed=kind is None)

    def _running(self) -> Polling:
        if self._polling is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._polling

    async def _soon(self, function: Callable[[Polling], Result]) -> Result:
        return function(self._running())

    async def _open(self) -> None:
        tell = None if self._on_rebalance is None else self._tell
        self._calls, self._polling = polling_parts(self._ground, self.client_id, self._plan, tell=tell)
        self._polling.start()

    async def _shut(self, polling: Polling, consumed: bool) -> None:
        await polling.close(consumed=consumed)
        await self._ground.let_go(self._calls.net)

    async def _tell(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        assert self._on_rebalance is not None
        await in_thread(self._teller, self._on_rebalance, gained, lost)
