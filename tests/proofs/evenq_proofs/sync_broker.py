"""A broker in the loop thread of the SDK, for clients of the sync face: a test's own thread may block as a user's does."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_broker.store_settings import StoreSettings

import evenq
from evenq.client.loops.clients.background import Background
from evenq.client.wiring import ClientContext
from evenq.model import BrokerAddress
from evenq.runtime.clock import SystemClock
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.waiting import until

Result = TypeVar("Result")
WAIT_S = 60


class SyncBroker:
    """One broker at `a:8081`, and the clients of one test."""

    def __init__(self, net: LoopNet, *, duplicates_window_ms: int = 0, store: StoreSettings | None = None) -> None:
        self.background = Background.shared()
        settings = BrokerSettings(
            broker_name="a",
            duplicates_window_ms=duplicates_window_ms,
            default_start_from="FIRST",
            store=store or StoreSettings(),
        )
        self.broker = Broker(settings, clock=SystemClock(), rng=random.Random(1), net=net)
        self.run(self._start(net))
        self._clients: list[Any] = []
        self._net = net

    async def _start(self, net: LoopNet) -> None:
        await self.broker.open()
        net.serve("a:8081", self.broker.rpcs())
        await self.broker.start([BrokerAddress("default", "a", 8081)])

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Work of the broker's loop."""
        return self.background.run(work, timeout_ms=WAIT_S * 1_000)

    def context(self) -> ClientContext:
        return ClientContext(clock=SystemClock(), rng=random.Random(len(self._clients)), net=self._net)

    def make(self, kind: Callable[..., Result], **arguments: Any) -> Result:
        """A client, closed when the test ends."""
        made = kind(endpoint="a:8081", context=self.context(), **arguments)
        self._clients.append(made)
        return made

    def create(self, topic: str, queues: int = 1, message_type: str = "NORMAL") -> None:
        """One topic."""
        self.make(evenq.Admin).create_topic(topic, queues=queues, message_type=message_type)

    def until(self, state: Callable[[], object]) -> None:
        """Wait for a state that other threads bring."""
        until(state, seconds=WAIT_S)

    def close(self) -> None:
        """Clients, then the broker."""
        for client in self._clients:
            client.close()
        self.run(self.broker.close())
