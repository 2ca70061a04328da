"""Settings of groups that were changed while a broker was away: brokers ask each other when they meet, the newer count.

An operator's change goes to every live broker at once, complete, with the time at which it was asked for
(`GroupConfig.revised_ms`). Who comes into sight later is asked once for all such settings, and asks back. Groups that
are not here are made only as a broker tells them that runs for longer than this one: what this one had and does not
have any more was deleted meanwhile. What nobody ever asked for (`revised_ms` 0) is not spread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from evenq.allocation import by_name
from evenq.errors import BadRequest, Error
from evenq.model import StartFrom
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import groups_pb2, peers_pb2
from evenq_broker.core.routes import BrokerView
from evenq_broker.loops.signals import done_within
from evenq_broker.loops.translation import balance_of, group_settings, retry_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["GroupSettings"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/GroupSettings"
PAGE = 500
FIRST_WAIT_MS = 1_000
AGAIN_MS = 5_000
"""Pause before a peer that is in the routes and did not answer is asked again."""
NAMED_MAX = 5
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


class GroupSettings:
    """What this broker tells of its groups' settings, and takes over from others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asked: dict[str, str] = {}
        """Peer -> the incarnation that has answered."""
        self._back: set[str] = set()
        """Peers that have just asked us: they need not ask again when we do."""
        self._silent: dict[str, str] = {}
        """Peer -> the incarnation that did not answer; it was logged."""
        self._first = asyncio.Event()

    async def start(self) -> None:
        """Ask those in sight, and wait a second at most: members should not hear of old settings first."""
        self._broker.spawn(self._learn(), name="group settings")
        await done_within(asyncio.ensure_future(self._first.wait()), FIRST_WAIT_MS, clock=self._broker.clock)

    def ask_again(self) -> None:
        """Some peer has newer settings than we have: ask all."""
        self._asked.clear()
        self._broker.cluster.route_changes.notify()

    def answer(self, asked: peers_pb2.GroupSettingsRequest) -> peers_pb2.GroupSettingsResponse:
        """One page of what an operator asked for here. Who asks has come into sight just now, or we into its: it may
        know more than we do, too.
        """
        if not asked.back and asked.broker_name in self._asked:
            del self._asked[asked.broker_name]
            self._back.add(asked.broker_name)
            self._broker.cluster.route_changes.notify()
        found = [group for group in self._broker.groups.all() if group.revised_ms and group.name > asked.after]
        return peers_pb2.GroupSettingsResponse(
            status=OK,
            groups=[
                peers_pb2.NamedSettings(group=group.name, settings=group_settings(group)) for group in found[:PAGE]
            ],
            more=len(found) > PAGE,
        )

    async def adopt(self, name: str, told: groups_pb2.GroupSettings, *, create: bool = True) -> bool:
        """Take over a group's settings unless those here are as new; True if they changed. Durable when it returns.

        `create`: also make the group. Raises BadRequest for what makes no sense, IllegalGroup, TooManyRequests.
        """
        old = self._broker.groups.get(name)
        if old is None and not create:
            return False
        if old is not None and told.revised_ms <= old.revised_ms:
            return False
        if told.strategy:
            by_name(told.strategy)
        if told.start_from not in set(StartFrom):
            raise BadRequest(f"start_from {told.start_from[:40]!r} is unknown; give one of {', '.join(StartFrom)}")
        await self._broker.create_group(
            name,
            ordered=told.ordered,
            max_attempts=told.max_attempts,
            strategy=told.strategy,
            start_from=StartFrom(told.start_from),
            retry=retry_of(told.retry),
            balance=balance_of(told.balance),
            revised_ms=told.revised_ms,
        )
        return True

    async def _learn(self) -> None:
        cluster = self._broker.cluster
        while True:
            seen = cluster.route_changes.count
            peers = {view.name: view for view in cluster.peers()}
            self._asked = {name: told for name, told in self._asked.items() if name in peers}
            self._silent = {name: told for name, told in self._silent.items() if name in peers}
            news = [view for view in peers.values() if self._asked.get(view.name) != view.incarnation]
            heard = await asyncio.gather(*map(self._ask, news))
            self._first.set()
            again_ms = None if all(heard) else AGAIN_MS
            await cluster.route_changes.wait(seen, clock=self._broker.clock, timeout_ms=again_ms)

    async def _ask(self, peer: BrokerView) -> bool:
        """False: it should be asked again."""
        back = peer.name in self._back
        self._back.discard(peer.name)
        self._asked[peer.name] = peer.incarnation
        try:
            await self._hear(peer, back=back)
        except Error as error:  # an older one, or gone again
            if self._silent.get(peer.name) != peer.incarnation:
                log.info("a peer tells no group settings", extra={"peer": peer.name, "error": str(error)})
            self._silent[peer.name] = peer.incarnation
            if error.retryable:
                self._asked.pop(peer.name, None)
                return False
        return True

    async def _hear(self, peer: BrokerView, *, back: bool) -> None:
        changed: list[str] = []
        request = peers_pb2.GroupSettingsRequest(broker_name=self._broker.settings.broker_name, back=back)
        while True:
            answer = peers_pb2.GroupSettingsResponse.FromString(
                await self._broker.cluster.ask(peer.name, METHOD, request.SerializeToString())
            )
            check(answer.status)
            changed += [told.group for told in answer.groups if await self._take(peer, told)]
            if not answer.more or not answer.groups or answer.groups[-1].group <= request.after:
                break
            request.after = answer.groups[-1].group
        if changed:
            fields = {"peer": peer.name, "groups": len(changed), "names": changed[:NAMED_MAX]}
            log.info("newer group settings taken over", extra=fields)

    async def _take(self, peer: BrokerView, told: peers_pb2.NamedSettings) -> bool:
        try:
            return await self.adopt(told.group, told.settings, create=peer.start_ms < self._broker.started_ms)
        except Error as error:  # a strategy that is not installed here, or the table is full
            log.warning(
                "group settings of a peer not taken over",
                extra={"peer": peer.name, "group": told.group, "error": str(error)},
            )
            return False
