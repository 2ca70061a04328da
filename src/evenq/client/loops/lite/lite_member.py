"""One consumer of lite topics, put together: what it wants (`subscribing`), what it gets (`receiving`), and for a push
consumer who listens (`lite_pushing`). Both faces drive it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from evenq.client.core.lite.events import LiteCalls
from evenq.client.loops.clients.troubles import Report, Troubles
from evenq.client.loops.consumers.receiving import Receiving
from evenq.client.loops.lite.lite_pushing import LitePushing
from evenq.client.loops.lite.subscribing import Subscribing, TellEnded
from evenq.client.loops.reading.listening import RunListener
from evenq.client.options import LiteOptions
from evenq.model import FilterExpression, ReceivedMessage
from evenq.runtime.clock import Clock

__all__ = ["LiteMember", "LitePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePlan:
    """What a consumer of lite topics was asked to be."""

    group: str
    topic: str
    lite_topics: tuple[str, ...]
    """The first ones."""
    options: LiteOptions
    slots: int = 0
    """Listener calls at a time; 0: there is no listener, the user receives."""


class LiteMember:
    """One running consumer, in one event loop."""

    def __init__(
        self,
        calls: LiteCalls,
        plan: LitePlan,
        *,
        clock: Clock,
        rng: random.Random,
        tell: TellEnded | None,
        run_listener: RunListener | None = None,
        report: Report | None = None,
    ) -> None:
        options = plan.options
        troubles = Troubles(clock, who=f"group {plan.group}", report=report)
        self._plan = plan
        self._clock = clock
        self.receiving = Receiving(
            calls, group=plan.group, subscriptions={plan.topic: FilterExpression()}, clock=clock, rng=rng,
            options=options, anywhere=True,
        )  # fmt: skip
        self.subscribing = Subscribing(
            calls, group=plan.group, topic=plan.topic, clock=clock, rng=rng, options=options,
            addresses=self.receiving.addresses, tell=tell, troubles=troubles,
        )  # fmt: skip
        self._pushing: LitePushing | None = None
        if run_listener is not None:
            self._pushing = LitePushing(
                calls, self.receiving, receive=self.receive, group=plan.group, slots=plan.slots, clock=clock,
                rng=rng, options=options, run_listener=run_listener, topic=plan.topic, troubles=troubles,
            )  # fmt: skip

    async def start(self) -> None:
        """Subscribe, then receive. Raises as `Subscribing.subscribe`, and then nothing runs."""
        await self.subscribing.start(self._plan.lite_topics)
        self.receiving.start()
        if self._pushing is not None:
            self._pushing.start()

    async def receive(self, max_messages: int, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        """As `Receiving.receive`. While no lite topic is subscribed to, no broker is called."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        if not await self.subscribing.has_some(wait_ms):
            return []
        return await self.receiving.receive(max_messages, invisible_ms, max(0, until_ms - self._clock.monotonic_ms()))

    async def close(self) -> None:
        """Finish what listeners hold, then say goodbye, which ends the subscriptions."""
        if self._pushing is not None:
            await self._pushing.close()
        await self.subscribing.close()
        await self.receiving.close()
