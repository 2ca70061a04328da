"""Keeps `core.known_brokers` true: looks at the routes whenever they change, journals what that means, and says goodbye
for a drained broker that ends.

Only routes of a nameserver that has heard from everybody count: one that has just started, or is away, makes nobody
missing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.journal import BrokerForgotten, BrokerKnown
from evenq_broker.core.known_brokers import KnownBrokers
from evenq_broker.loops.resizing import left_here

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["BrokerMemory"]

log = logging.getLogger(__name__)

FORGET = "/evenq.v1.Admin/ForgetBroker"
GOODBYE_MS = 1_000


class BrokerMemory:
    """This broker's memory of the others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.brokers = KnownBrokers()

    def look(self) -> None:
        """The routes may have changed."""
        routes, own = self._broker.routes, self._broker.settings.broker_name
        if not routes.sure:
            return
        present = {view.name: view.incarnation for view in routes.brokers() if view.name != own}
        ops = self.brokers.look(present, self._broker.clock.now_ms())
        if not ops:
            return
        self._broker.journal.record(*ops)
        for op in ops:
            if isinstance(op, BrokerForgotten):
                self._broker.staging.broker_forgotten(op.name)
            if isinstance(op, BrokerKnown) and op.gone_ms:
                log.warning(
                    "broker %s is gone; what it holds is out of reach until it comes back",
                    op.name,
                    extra={"missing": op.name, "unread": op.unread, "dead_letters": op.dead_letters},
                )

    def missing(self) -> list[admin_pb2.MissingBroker]:
        """Those that are not there, ascending."""
        return [
            admin_pb2.MissingBroker(
                name=one.name, gone_ms=one.gone_ms, unread=one.unread, dead_letters=one.dead_letters
            )
            for one in self.brokers.missing()
        ]

    async def forget(self, name: str) -> bool:
        """Forget one HERE, durably; False if it was not known."""
        op = self.brokers.forget(name)
        if op is not None:
            self._broker.staging.broker_forgotten(name)
            await self._broker.journal.record(op)
        return op is not None

    async def goodbye(self) -> None:
        """This broker ends: if it was drained and nobody waits for what it holds, let the others not miss it."""
        if not self._broker.draining:
            return
        left = left_here(self._broker)
        if not left.empty:
            return
        own = self._broker.cluster.own()
        request = admin_pb2.ForgetBrokerRequest(
            broker_name=own.name,
            local=True,
            leaving=own.incarnation,
            unread=left.unread,
            dead_letters=left.dead_letters,
        )
        try:
            async with asyncio.timeout(GOODBYE_MS / 1000):
                await self._broker.cluster.ask_peers(FORGET, request.SerializeToString())
        except (TimeoutError, Error) as error:
            log.info("not all brokers were told of our end: %s", error or "no answer in time")
