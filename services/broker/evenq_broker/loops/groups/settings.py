"""Settings of groups that changed while a broker was away: brokers query each other when they meet, the newer ones
count.

An operator's change goes to every live broker at the same time, complete, with the time of the request
(`GroupConfig.revised_ms`). A broker that appears later is queried once for all such settings, and queries back. A group
that does not exist here is made only on the settings of a broker that runs for longer than this one: otherwise it was
deleted meanwhile. Settings that no operator requested (`revised_ms` 0) are not spread.
"""

from __future__ import annotations

import asyncio
import logging

from evenq.allocation import by_name
from evenq.errors import BadRequest, Error
from evenq.model import StartFrom
from evenq.runtime.tasks import done_within
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.cluster.unconfirmed_changes import UnconfirmedChanges
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.peers import PeerSettings, ask_settings, page_of, settings_page

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/GroupSettings"
PAGE = 500
FIRST_WAIT_MS = 1_000
AGAIN_MS = 5_000
"""Pause before a peer that is in the routes and did not answer is queried again."""
NAMED_MAX = 5


class GroupSettings:
    """Exchange of group settings with other brokers."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, unconfirmed: UnconfirmedChanges) -> None:
        """`unconfirmed`: deletions, because a broker that was away sends settings of deleted groups."""
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._unconfirmed = cluster, unconfirmed
        self._queried: dict[str, str] = {}
        """Peer -> the incarnation that has answered."""
        self._back: set[str] = set()
        """Peers that have just queried this broker: they need not do so again when it queries them."""
        self._silent: dict[str, str] = {}
        """Peer -> the incarnation that did not answer; it was logged."""
        self._first = asyncio.Event()

    async def start(self) -> None:
        """Queries the present peers, and waits a second at most: members should not get outdated settings first."""
        self._runtime.spawn(self._learn(), name="group settings")
        await done_within(asyncio.ensure_future(self._first.wait()), FIRST_WAIT_MS, clock=self._runtime.clock)

    def ask_again(self) -> None:
        """Queries all peers again: some peer has newer settings."""
        self._queried.clear()
        self._catalog.changes.routes.notify()

    def answer(self, broker_name: str, *, back: bool, after: str) -> bytes:
        """Returns a page of operators' settings here, behind `after`. The caller may have newer ones, unless `back`."""
        if not back and broker_name in self._queried:
            del self._queried[broker_name]
            self._back.add(broker_name)
            self._catalog.changes.routes.notify()
        groups = [group for group in self._catalog.groups.all() if group.revised_ms and group.name > after]
        return settings_page(groups[:PAGE], more=len(groups) > PAGE)

    async def adopt(self, settings: PeerSettings, *, create: bool = True) -> bool:
        """Takes over a group's settings unless those here are as new; True if they changed. Durable when it returns.
        `create`: also makes the group. Raises BadRequest for invalid settings, IllegalGroup, TooManyRequests.
        """
        old = self._catalog.groups.get(settings.group)
        known_ms = old.revised_ms if old is not None else -1
        deleted_ms = self._unconfirmed.group_deleted_ms(settings.group)
        if settings.revised_ms <= known_ms or settings.revised_ms < deleted_ms or (old is None and not create):
            # The settings or the deletion here may rest on a record that is not safe yet (decision 62).
            await self._catalog.settled()
            return False
        if settings.strategy:
            by_name(settings.strategy)
        if settings.start_from not in set(StartFrom):
            raise BadRequest(f"start_from {settings.start_from[:40]!r} is unknown; give one of {', '.join(StartFrom)}")
        await self._catalog.create_group(
            settings.group,
            ordered=settings.ordered,
            max_attempts=settings.max_attempts,
            strategy=settings.strategy,
            start_from=StartFrom(settings.start_from),
            retry=settings.retry(),
            balance=settings.balance(),
            revised_ms=settings.revised_ms,
        )
        return True

    async def _learn(self) -> None:
        while True:
            seen = self._catalog.changes.routes.count
            peers = {view.name: view for view in self._cluster.peers.all()}
            self._queried = {name: incarnation for name, incarnation in self._queried.items() if name in peers}
            self._silent = {name: incarnation for name, incarnation in self._silent.items() if name in peers}
            news = [view for view in peers.values() if self._queried.get(view.name) != view.incarnation]
            heard = await asyncio.gather(*map(self._ask, news))
            self._first.set()
            again_ms = None if all(heard) else AGAIN_MS
            await self._catalog.changes.routes.wait(seen, clock=self._runtime.clock, timeout_ms=again_ms)

    async def _ask(self, peer: RegisteredBroker) -> bool:
        """False: it should be queried again."""
        back = peer.name in self._back
        self._back.discard(peer.name)
        self._queried[peer.name] = peer.incarnation
        try:
            await self._hear(peer, back=back)
        except Error as error:  # a broker of an older version, or one that has gone again
            if self._silent.get(peer.name) != peer.incarnation:
                log.info("broker %s sent no group settings: %s", peer.name, error.message, extra={"peer": peer.name})
            self._silent[peer.name] = peer.incarnation
            if error.retryable:
                self._queried.pop(peer.name, None)
                return False
        return True

    async def _hear(self, peer: RegisteredBroker, *, back: bool) -> None:
        changed: list[str] = []
        own, after = self._runtime.settings.broker_name, ""
        while True:
            request = ask_settings(own, back=back, after=after)
            page = page_of(await self._cluster.peers.ask(peer.name, METHOD, request))
            changed += [settings.group for settings in page.groups if await self._take(peer, settings)]
            if not page.more or not page.groups or page.groups[-1].group <= after:
                break
            after = page.groups[-1].group
        if changed:
            fields = {"peer": peer.name, "groups": len(changed), "names": changed[:NAMED_MAX]}
            log.info("newer group settings taken over from broker %s: %s", peer.name, fields["names"], extra=fields)

    async def _take(self, peer: RegisteredBroker, settings: PeerSettings) -> bool:
        try:
            return await self.adopt(settings, create=peer.start_ms < self._runtime.started_ms)
        except Error as error:  # a strategy that is not installed here, or the table is full
            log.warning(
                "settings of group %s of broker %s not taken over: %s",
                settings.group,
                peer.name,
                error.message,
                extra={"peer": peer.name, "group": settings.group},
            )
            return False
