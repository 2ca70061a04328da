"""Looks at every broker five times a second, and writes down when one is away. A broker that does not answer is looked
for: of a broker group another copy may lead by then, at another address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.verify.outages import Outages
from evenq.wire.addresses import BROKER_HEADER, meant_broker
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

__all__ = ["BrokerWatcher"]

PERIOD_MS: Final = 200
TIMEOUT_MS: Final = 2_000
PATH: Final = "/apache.rocketmq.v2.MessagingService/Heartbeat"


class BrokerWatcher:
    """One broker."""

    def __init__(
        self, net: Net, broker: str, address: str, outages: Outages, *, clock: Clock,
        client_id: str, find: Callable[[str], Awaitable[str]],
    ) -> None:  # fmt: skip
        """`find` gives the address of a broker by its name as it is now; empty if no broker knows it."""
        self._net = net
        self._broker = broker
        self._outages = outages
        self._clock = clock
        self._find = find
        self._headers = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}
        self._go_to(address)

    def _go_to(self, address: str) -> None:
        self._address, meant = meant_broker(address)
        self._headers.pop(BROKER_HEADER, None)
        if meant:
            self._headers[BROKER_HEADER] = meant

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        request = service_pb2.HeartbeatRequest(client_type=definition_pb2.PRODUCER).SerializeToString()
        seen_ms = self._clock.now_ms()
        while True:
            try:
                await self._net.unary(self._address, PATH, request, timeout_ms=TIMEOUT_MS, metadata=self._headers)
            except Error:
                self._outages.away(self._broker, since_ms=seen_ms)
                with suppress(Error):
                    if address := await self._find(self._broker):
                        self._go_to(address)
            else:
                seen_ms = self._clock.now_ms()
                self._outages.back(self._broker, seen_ms)
            await self._clock.sleep_ms(PERIOD_MS)
