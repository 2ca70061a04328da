"""A push consumer of lite topics of our own SDK, as a world starts and stops it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from evenq_proofs.sim import ProcessClock, ProcessNet

from evenq.client.loops.lite.lite_member import LiteMember, LitePlan
from evenq.client.options import LiteOptions
from evenq.client.rpc.lite import RpcLiteCalls
from evenq.errors import Error
from evenq.model import MessageQueue, ReceivedMessage
from evenq.runtime.tasks import spawn

AGAIN_MS = 500


class LiteReader:
    """One consumer; its start is tried until it succeeds."""

    def __init__(
        self,
        net: ProcessNet,
        *,
        endpoint: str,
        client_id: str,
        clock: ProcessClock,
        rng: random.Random,
        group: str,
        topic: str,
        lite_topics: Sequence[str],
        listen: Callable[[Sequence[ReceivedMessage]], Awaitable[object]],
        ended: Callable[[str], Awaitable[object]],
    ) -> None:
        options = LiteOptions(sync_interval_ms=5_000, heartbeat_interval_ms=2_000, route_refresh_ms=5_000)
        calls = RpcLiteCalls(net, endpoint=endpoint, client_id=client_id, timeout_ms=options.timeout_ms, push=True)
        plan = LitePlan(group=group, topic=topic, lite_topics=tuple(lite_topics), options=options, slots=4)
        self._member = LiteMember(calls, plan, clock=clock, rng=rng, tell=ended, run_listener=listen)
        self._clock = clock
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._starting = spawn(self._start(), name="lite start")

    async def _start(self) -> None:
        while True:
            try:
                await self._member.start()
            except Error:
                await self._clock.sleep_ms(AGAIN_MS)
            else:
                return

    @property
    def lite_topics(self) -> list[str]:
        """What it is subscribed to."""
        return self._member.subscribing.names

    def owned(self) -> list[MessageQueue]:
        """Nothing: lite topics are shared message by message."""
        return []

    async def close(self) -> None:
        """As a program ends it."""
        assert self._starting is not None
        self._starting.cancel()
        await self._member.close()
