"""This broker among the others: what it tells of itself, whom it watches, and what it asks of its peers.

`ClusterLink` is the broker's one door to the cluster. Creating a topic or group everywhere is one decision (TQ-2): the
first live broker by name decides type and counts, the others follow, so two brokers that create the same topic at the
same moment end with equal counts. A call to a peer always has a deadline, and a peer that does not answer is named, not
waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from evenq.errors import ConnectionFailed, Error, NotFound
from evenq.model import MIXED_KINDS, GroupConfig, MessageType
from evenq.runtime.version import software_version
from evenq.wire import status
from evenq.wire.addresses import split_addresses
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.assignment import LastAnswers
from evenq_broker.core.routes import BrokerView
from evenq_broker.core.uids import TopicUids
from evenq_broker.loops.known_brokers import BrokerMemory
from evenq_broker.loops.rebalancer_link import RebalancerLink
from evenq_broker.loops.registration import Registration, own_view
from evenq_broker.loops.routes import RouteWatch
from evenq_broker.loops.sessions import Sessions
from evenq_broker.loops.signals import Signal, done_within
from evenq_broker.loops.translation import counts_of, entry_of, group_settings, message_type_number, message_type_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["ClusterLink", "Placement"]

log = logging.getLogger(__name__)

ROUTE_WAIT_MS = 1_000
ROUNDS_MAX = 3

Placement = admin_pb2.TopicPlacement


class ClusterLink:
    """Registration, route watch, sessions, rebalancer line and calls to peers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.incarnation = f"{broker.rng.getrandbits(64):016x}"
        """Random per start: tells a restart from a twin with the same name."""
        self.sessions = Sessions(broker)
        self.answers = LastAnswers()
        self.known = BrokerMemory(broker)
        """Brokers that belong to the cluster, whether they are there or not."""
        self.uids = TopicUids(broker.rng)
        self.nameservers = split_addresses(broker.settings.nameservers)
        self._topic_changes = Signal()
        self._fact_changes = Signal()
        self._route_changes = Signal()
        self._topics_version = -1
        self._registrations = [Registration(broker, address, self._topic_changes) for address in self.nameservers]
        self._watches = [RouteWatch(broker, address) for address in self.nameservers]
        rebalancers = split_addresses(broker.settings.rebalancer)
        self.rebalancer = RebalancerLink(broker, rebalancers, self._fact_changes) if rebalancers else None
        self._own: BrokerView | None = None
        self._started = False
        self._unsure_until_ms = -1
        """Monotonic ms until which peers may be missing in the routes; -1: none are."""
        self._heard_routes = False

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start all loops; the broker's addresses are known by now. Waits a second at most for the nameservers' first
        word, so that a broker that says it is ready knows its peers.
        """
        self._started = True
        if self.nameservers and self._broker.topics.all():  # a restart; an empty broker has no peers to miss
            wait_ms = self._broker.settings.route_settle_ms
            self._unsure_until_ms = self._broker.clock.monotonic_ms() + wait_ms if wait_ms else -1
        self._own = None
        self.facts_changed()
        for registration in self._registrations:
            self._broker.spawn(registration.run(), name="registration")
        for watch in self._watches:
            self._broker.spawn(watch.run(), name="route watch")
        if self.rebalancer is not None:
            self._broker.spawn(self.rebalancer.run(), name="rebalancer link")
        self._broker.spawn(self.sessions.sweep(), name="session sweep")
        first = asyncio.ensure_future(self._first_word())
        await done_within(first, ROUTE_WAIT_MS, clock=self._broker.clock)

    async def leave(self, drain_ms: int = 0) -> None:
        """Tell members and nameservers that this broker goes: first of all at a shutdown, while it still answers.
        Members get `drain_ms` to finish and commit what they hold of its queues; then their sessions end.
        """
        if not self._started:
            return
        await self.known.goodbye()
        goodbyes = [registration.goodbye() for registration in self._registrations]
        if drain_ms > 0:
            await asyncio.gather(self.sessions.hand_over(drain_ms), *goodbyes)
            self.sessions.close()
        else:
            await asyncio.gather(*goodbyes)

    async def close(self) -> None:
        """End all sessions, leave the routes. Idempotent."""
        self.sessions.close()
        await self.leave()
        self._started = False

    # ------------------------------------------------------------------------------------------------ what changes

    def own(self) -> BrokerView:
        """What this broker says of itself, as of now."""
        if self._own is None or self._own.data_version != self._broker.topics.version:
            self._own = own_view(self._broker, self.incarnation, software_version())
        return self._own

    def facts_changed(self, *, group: str = "", topic: str = "") -> None:
        """This topic, or this group or its members, changed here; neither named: anything may have. Tell whoever should
        know, at once.
        """
        if self.rebalancer is not None:
            self.rebalancer.changed(group=group, topic=topic)
        if not self._started:
            return
        if self._broker.topics.version != self._topics_version:
            self._topics_version = self._broker.topics.version
            self._topic_changes.notify()
            self._broker.routes.set_own(self.own(), self._broker.clock.monotonic_ms())
            self.routes_changed()
        self._fact_changes.notify()

    def routes_told(self) -> None:
        """A nameserver told its table. If it is the first one, its other brokers get the time to come from now on."""
        if self._unsure_until_ms >= 0 and not self._heard_routes:
            self._unsure_until_ms = self._broker.clock.monotonic_ms() + self._broker.settings.route_settle_ms
        self._heard_routes = True

    def register_now(self) -> None:
        """A nameserver does not know us: tell all of them that we live."""
        self._topic_changes.notify()

    def routes_changed(self) -> None:
        """The route table may have changed: tell the sessions that read a topic with another route."""
        self._route_changes.notify()
        self.known.look()
        topics = self._broker.routes.take_changed_topics()
        if topics:
            self.sessions.routes_changed(topics)

    async def routes_known(self) -> None:
        """Wait after a restart of this broker until a nameserver that has settled told the routes, at most until
        `route_settle_ms` after its first word: members would give up queues of living brokers that are not told yet.
        """
        while self._unsure_until_ms >= 0:
            seen = self._route_changes.count
            left_ms = self._unsure_until_ms - self._broker.clock.monotonic_ms()
            if left_ms <= 0 or self._broker.routes.sure:
                self._unsure_until_ms = -1
                return
            await self._route_changes.wait(seen, clock=self._broker.clock, timeout_ms=left_ms)

    # ------------------------------------------------------------------------------------------------ topics and groups

    async def create_topic_everywhere(
        self,
        name: str,
        *,
        message_type: MessageType = MessageType.NORMAL,
        queues: int = 0,
        retention_ms: int | None = None,
        brokers: Mapping[str, int] | None = None,
    ) -> list[Placement]:
        """Create or widen the topic on every live broker with equal counts; where it landed, ascending by broker name.

        `queues` per broker, 0 = as it is elsewhere, else the default; `retention_ms` as `Broker.create_topic` takes it.
        With `brokers` only there, each with its own number (0 = `queues`), and from then on no other broker takes it by
        itself (TQ-4). Raises what creating it here raises, NotFound for a broker that does not live.
        """
        await self.facts_settled()
        known = [at.counts for at in self._broker.routes.route(name)]
        kind = known[0].message_type if known else message_type
        if message_type is MessageType.MIXED and kind in MIXED_KINDS:
            kind = MessageType.MIXED
        if brokers or any(counts.chosen for counts in known):
            wanted_at = dict(brokers) if brokers else {counts.broker_name: queues for counts in known}
            return await self._place_chosen(name, kind, queues, retention_ms, wanted_at)
        uid = self.uids.shared(counts.uid for counts in known)
        counts = [counts.write_queues for counts in known]
        wanted = max([queues, *counts] if queues or counts else [self._broker.default_queues(kind)])
        placements: list[Placement] = []
        for _ in range(ROUNDS_MAX):
            placements = await self._place_topic(name, kind, wanted, retention_ms, uid)
            entries = [placement.entry for placement in placements if not placement.error]
            most = max((entry.write_queues for entry in entries), default=wanted)
            if all(entry.write_queues == most for entry in entries):
                break
            wanted = most
        await self._until_routed(name, [p.broker_name for p in placements if not p.error])
        return placements

    async def delete_topic_everywhere(self, name: str) -> list[tuple[str, Error]]:
        """Delete the topic on every live broker; the brokers that did not do it, with the reason."""
        request = admin_pb2.DeleteTopicRequest(topic=name, local=True).SerializeToString()
        await self._broker.delete_topic(name, everywhere=True)
        answers = await self.ask_peers("/evenq.v1.Admin/DeleteTopic", request)
        return _failures(answers, admin_pb2.DeleteTopicResponse)

    async def create_group_everywhere(
        self, request: admin_pb2.CreateGroupRequest, group: GroupConfig
    ) -> list[tuple[str, Error]]:
        """Create the group on all other live brokers with all its settings, as they are here now; who did not do it,
        and why. An older broker follows the request alone.
        """
        told = admin_pb2.CreateGroupRequest()
        told.CopyFrom(request)
        told.local = True
        told.settings.CopyFrom(group_settings(group))
        answers = await self.ask_peers("/evenq.v1.Admin/CreateGroup", told.SerializeToString())
        return _failures(answers, admin_pb2.CreateGroupResponse)

    async def delete_group_everywhere(self, name: str) -> list[tuple[str, Error]]:
        """Delete the group on all other live brokers; who did not do it, and why."""
        request = admin_pb2.DeleteGroupRequest(group=name, local=True).SerializeToString()
        answers = await self.ask_peers("/evenq.v1.Admin/DeleteGroup", request)
        return _failures(answers, admin_pb2.DeleteGroupResponse)

    # ------------------------------------------------------------------------------------------------ peers

    @property
    def nameservers_answering(self) -> int:
        """Nameservers that tell their routes now."""
        return sum(watch.connected for watch in self._watches)

    @property
    def route_changes(self) -> Signal:
        """Counts changes of the route table."""
        return self._route_changes

    def peers(self) -> list[BrokerView]:
        """All other live brokers, ascending by name."""
        own = self._broker.settings.broker_name
        return [view for view in self._broker.routes.brokers() if view.name != own and view.broker_id == 0]

    def address_of(self, peer: BrokerView) -> str:
        """Where another broker is called, as the net takes it."""
        return peer.peer_address(tls=self._broker.settings.tls.peers).address

    async def ask_peers(
        self, method: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> list[tuple[str, bytes | Error]]:
        """Ask all other brokers at once; name and answer, or name and what went wrong."""
        peers = self.peers()
        answers = await asyncio.gather(*(self._ask(peer, method, request, metadata) for peer in peers))
        return [(peer.name, answer) for peer, answer in zip(peers, answers, strict=True)]

    async def ask(
        self, broker_name: str, method: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Ask one other broker. Raises ConnectionFailed (also for a broker that nobody knows), RequestTimeout."""
        view = self._broker.routes.broker(broker_name)
        if view is None:
            raise ConnectionFailed(
                f"broker {broker_name!r} is not alive: no nameserver tells of it; ask for the route again"
            )
        return await self._broker.net.unary(
            self.address_of(view),
            method,
            request,
            timeout_ms=self._broker.settings.peer_timeout_ms,
            metadata=metadata,
        )

    async def facts_settled(self) -> None:
        """A broker that has just started knows no peers yet: give each nameserver's first answer a moment."""
        if self._watches and not any(watch.connected for watch in self._watches):
            await self._route_changes.wait(
                self._route_changes.count, clock=self._broker.clock, timeout_ms=ROUTE_WAIT_MS
            )

    async def _ask(
        self, peer: BrokerView, method: str, request: bytes, metadata: Mapping[str, str] | None
    ) -> bytes | Error:
        try:
            return await self.ask(peer.name, method, request, metadata=metadata)
        except Error as error:
            log.warning("peer does not answer", extra={"peer": peer.name, "method": method, "error": str(error)})
            return error

    # ------------------------------------------------------------------------------------------------ inside

    async def _first_word(self) -> bool:
        for tried in [line.tried for line in self._registrations] + [line.tried for line in self._watches]:
            await tried.wait()
        return True

    async def _place_topic(
        self, name: str, kind: MessageType, wanted: int, retention_ms: int | None, uid: str
    ) -> list[Placement]:
        own = self._broker.settings.broker_name
        names = sorted({own, *(peer.name for peer in self.peers())})
        placements: list[Placement] = []
        while names and not any(not placement.error for placement in placements):
            first = await self._place(names.pop(0), name, kind, wanted, retention_ms, uid)  # decides type and counts
            placements.append(first)
            if not first.error:
                uid = first.entry.uid or uid
                kind = _kind_of(first, kind)
                wanted = max(wanted, first.entry.write_queues)
        others = (self._place(broker, name, kind, wanted, retention_ms, uid) for broker in names)
        placements += await asyncio.gather(*others)
        return sorted(placements, key=lambda placement: placement.broker_name)

    async def _place_chosen(
        self, name: str, kind: MessageType, queues: int, retention_ms: int | None, wanted_at: dict[str, int]
    ) -> list[Placement]:
        live = {self._broker.settings.broker_name, *(peer.name for peer in self.peers())}
        missing = sorted(set(wanted_at) - live)
        if missing:
            raise NotFound(f"no live broker is named {', '.join(missing)}; the cluster has {', '.join(sorted(live))}")
        uid = self.uids.shared(at.counts.uid for at in self._broker.routes.route(name))
        elsewhere = sorted({at.broker.name for at in self._broker.routes.route(name)} - set(wanted_at))
        places = [
            *((broker, wanted_at[broker] or queues) for broker in sorted(wanted_at)),
            *(
                (broker, 0) for broker in elsewhere if broker in live
            ),  # they hear that it is chosen, and keep their counts
        ]
        placements = await asyncio.gather(
            *(self._place(broker, name, kind, wanted, retention_ms, uid, chosen=True) for broker, wanted in places)
        )
        await self._until_routed(name, [p.broker_name for p in placements if not p.error])
        return sorted(placements, key=lambda placement: placement.broker_name)

    async def _place(
        self,
        broker_name: str,
        name: str,
        kind: MessageType,
        wanted: int,
        retention_ms: int | None,
        uid: str,
        *,
        chosen: bool = False,
    ) -> Placement:
        if broker_name == self._broker.settings.broker_name:
            topic = await self._broker.create_topic(
                name, message_type=kind, queues=wanted, retention_ms=retention_ms, chosen=chosen, uid=uid
            )
            return Placement(broker_name=broker_name, entry=entry_of(name, counts_of(broker_name, topic)))
        request = admin_pb2.CreateTopicRequest(
            topic=name,
            message_type=message_type_number(kind),
            queues=wanted,
            mixed=kind is MessageType.MIXED,
            retention_ms=retention_ms,
            chosen=chosen,
            uid=uid,
            local=True,
        )
        try:
            answer = admin_pb2.CreateTopicResponse.FromString(
                await self.ask(broker_name, "/evenq.v1.Admin/CreateTopic", request.SerializeToString())
            )
            status.check(answer.status)
            return Placement(broker_name=broker_name, entry=answer.placements[0].entry)
        except Error as error:
            log.warning("topic not created", extra={"topic": name, "peer": broker_name, "error": str(error)})
            return Placement(broker_name=broker_name, error=error.message)

    async def _until_routed(self, topic: str, broker_names: Sequence[str]) -> None:
        # The route must show the whole placement before it is answered: a client keeps a half route for half a minute.
        deadline_ms = self._broker.clock.monotonic_ms() + ROUTE_WAIT_MS
        while True:
            seen = self._route_changes.count
            here = {at.broker.name for at in self._broker.routes.route(topic)}
            left_ms = deadline_ms - self._broker.clock.monotonic_ms()
            if here.issuperset(broker_names) or left_ms <= 0:
                return
            await self._route_changes.wait(seen, clock=self._broker.clock, timeout_ms=left_ms)


def _kind_of(placement: Placement, asked: MessageType) -> MessageType:
    return asked if placement.error else message_type_of(placement.entry.message_type)


def _failures(
    answers: Iterable[tuple[str, bytes | Error]],
    response: type[admin_pb2.DeleteTopicResponse | admin_pb2.CreateGroupResponse | admin_pb2.DeleteGroupResponse],
) -> list[tuple[str, Error]]:
    failed: list[tuple[str, Error]] = []
    for name, answer in answers:
        if isinstance(answer, Error):
            failed.append((name, answer))
            continue
        try:
            status.check(response.FromString(answer).status)
        except Error as error:
            failed.append((name, error))
    return failed
