"""A consumer of lite topics: its subscriptions, its receiver and, for a push consumer, its listener. Used by both
faces.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenq.client.core.clients.observer import ClientIdentity
from evenq.client.loops.clients.troubles import Report, Troubles
from evenq.client.loops.consumers.receiving import ReceiveLoop
from evenq.client.loops.lite.lite_pushing import LitePushLoop
from evenq.client.loops.lite.subscribing import LiteSubscriber, TellEnded
from evenq.client.loops.reading.listening import RunListener
from evenq.client.options import LiteOptions
from evenq.model import FilterExpression, ReceivedMessage
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.lite import RpcLiteCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePlan:
    group: str
    topic: str
    lite_topics: tuple[str, ...]
    """Subscribed at the start."""
    options: LiteOptions
    slots: int = 0
    """Listener calls at the same time; 0: there is no listener, the user calls `receive`."""


class LiteMember:
    def __init__(
        self,
        calls: RpcLiteCalls,
        plan: LitePlan,
        *,
        clock: Clock,
        rng: random.Random,
        tell: TellEnded | None,
        run_listener: RunListener | None = None,
        report: Report | None = None,
        identity: ClientIdentity | None = None,
    ) -> None:
        options = plan.options
        troubles = Troubles(clock, who=f"group {plan.group}", report=report)
        self._plan = plan
        self._clock = clock
        self.receiving = ReceiveLoop(
            calls,
            group=plan.group,
            subscriptions={plan.topic: FilterExpression()},
            clock=clock,
            rng=rng,
            options=options,
            anywhere=True,
        )
        self.subscribing = LiteSubscriber(
            calls,
            group=plan.group,
            topic=plan.topic,
            clock=clock,
            rng=rng,
            options=options,
            addresses=self.receiving.addresses,
            tell=tell,
            troubles=troubles,
        )
        self._pushing: LitePushLoop | None = None
        if run_listener is not None:
            self._pushing = LitePushLoop(
                calls,
                self.receiving,
                receive=self.receive,
                group=plan.group,
                slots=plan.slots,
                clock=clock,
                rng=rng,
                options=options,
                run_listener=run_listener,
                topic=plan.topic,
                troubles=troubles,
                identity=identity,
            )

    async def start(self) -> None:
        """Subscribes, then receives. Raises as `LiteSubscriber.subscribe`; then nothing runs."""
        await self.subscribing.start(self._plan.lite_topics)
        self.receiving.start()
        if self._pushing is not None:
            self._pushing.start()

    async def receive(self, max_messages: int, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        """Receives as `ReceiveLoop.receive`; without a subscription it calls no broker."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        if not await self.subscribing.has_some(wait_ms):
            return []
        return await self.receiving.receive(max_messages, invisible_ms, max(0, until_ms - self._clock.monotonic_ms()))

    async def close(self) -> None:
        """Waits for the listeners, then leaves, which ends the subscriptions."""
        if self._pushing is not None:
            await self._pushing.close()
        await self.subscribing.close()
        await self.receiving.close()
