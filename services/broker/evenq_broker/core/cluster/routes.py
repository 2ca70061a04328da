"""The cluster as this broker sees it: the watched tables of all nameservers, merged.

Nameservers do not exchange data (NS-2), so two may differ for a while (NS-7). Of each broker name, the view with the
highest leader epoch wins, then the newest incarnation, then the newest data. A nameserver that is away, or restarted
and without all registrations, removes no broker. Its last views count for `stale_ms` more or until it settled; while no
nameserver answers they count for ever. A broker that another nameserver removes is gone. The broker's own state always
comes from itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from evenq.model import BrokerAddress, Listener, MessageQueue, MessageType, QueueCounts
from evenq_broker.core.cluster.listeners import ANY_COPY, INTERNAL

STALE_MS = 60_000
LEFT_MS = 60_000
LEFT_MAX = 1_000
AWAY_MS = 600_000
"""Time for which a broker that left may still be missed: it comes back, or others must act in its absence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBroker:
    """One broker and all topics it stores, as a nameserver sent it."""

    name: str
    broker_id: int = 0  # 0 = master (RT-4)
    cluster: str = ""
    epoch: int = 1
    incarnation: str = ""
    addresses: tuple[BrokerAddress, ...]  # at least one; the first is the default
    version: str = ""
    start_ms: int = 0
    copies: int = 1  # copies of its log in the broker group that it leads
    followers: tuple[str, ...] = ()
    """Addresses at which the other copies answer reads: `host:port`, with `evenqs://` in front for TLS."""
    data_version: int = 0
    topics: Mapping[str, QueueCounts] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, int, str, int]:
        """Sort key: of two views of one name the greater one is believed."""
        return (self.epoch, self.start_ms, self.incarnation, self.data_version)

    def address(self, listener: Listener, *, any_copy: bool = False) -> BrokerAddress:
        """Returns the address for a client that came through `listener` of any broker. It is that of the listener with
        this name and scheme, otherwise of another one with this scheme, otherwise the default. `any_copy`: the address
        of any copy of its group, if there is one, replaces the default.
        """
        fitting = [address for address in self.addresses if address.tls == listener.tls]
        named = next((address for address in fitting if address.listener == listener.name), None)
        others = (address for address in fitting if address.listener not in {ANY_COPY, INTERNAL})
        known = named or next(others, self.addresses[0])
        if any_copy and known is self.addresses[0]:
            return next((address for address in fitting if address.listener == ANY_COPY), known)
        return known

    @property
    def is_replaced(self) -> bool:
        """True: a send that finds the process gone waits for the next one. Another copy will lead, or an address of
        any copy shows that the broker's place outlives its process, and maybe gets copies.
        """
        return self.copies > 1 or any(address.listener == ANY_COPY for address in self.addresses)

    def peer_address(self, *, tls: bool) -> BrokerAddress:
        """Returns the address for other servers: `internal`, unless `tls` and it has no TLS; otherwise the first one
        that matches `tls`; otherwise the default.
        """
        internal = next((address for address in self.addresses if address.listener == INTERNAL), None)
        if internal is not None and (internal.tls or not tls):
            return internal
        return next((address for address in self.addresses if address.tls == tls), self.addresses[0])


@dataclass(frozen=True, slots=True)
class TopicAt:
    broker: RegisteredBroker
    counts: QueueCounts


@dataclass(slots=True)
class _NameserverRoutes:
    """Views that one nameserver sent."""

    identity: str = ""
    connected: bool = False
    settling: bool = False  # True: live brokers may be missing in `views`
    away_since_ms: int = 0
    views: dict[str, RegisteredBroker] = field(default_factory=dict)
    carried: dict[str, tuple[RegisteredBroker, int]] = field(default_factory=dict)
    """From before its restart: broker name -> view, and until when it counts (monotonic ms)."""


class RouteTable:
    """Merged view of all nameservers. Times are monotonic ms handed in."""

    def __init__(self, *, stale_ms: int = STALE_MS) -> None:
        self._sources: dict[str, _NameserverRoutes] = {}
        self._own: RegisteredBroker | None = None
        self._merged: dict[str, RegisteredBroker] = {}
        self._left: dict[str, tuple[RegisteredBroker, int]] = {}
        """Brokers that are no longer live, and since when; the latest last."""
        self._changed_topics: dict[str, None] = {}
        self._stale_ms = stale_ms
        self.version = 0  # grows with each change of the merged view

    # --- updates ------------------------------------------------------------------------------------------------------

    def set_own(self, view: RegisteredBroker, now_ms: int) -> None:
        """Sets this broker's own state, which wins over every nameserver's view of it."""
        self._own = view
        self._merge(now_ms)

    def snapshot(
        self,
        address: str,
        identity: str,
        brokers: Iterable[RegisteredBroker],
        now_ms: int,
        *,
        settling: bool = False,
        left: Iterable[tuple[RegisteredBroker, int]] = (),
    ) -> None:
        """Takes in the whole table of a nameserver. `identity` is random for each start of it. `settling`: it started
        lately, and not every broker has registered yet. `left`: brokers that are gone, and how long ago they left, ms.
        """
        source = self._sources.setdefault(address, _NameserverRoutes())
        views = {view.name: view for view in brokers}
        kept: dict[str, tuple[RegisteredBroker, int]] = {}
        if settling or source.identity not in {"", identity}:
            kept.update(source.carried)  # also from before its previous start
            # A nameserver that started anew has an empty table until brokers have registered with it.
            kept.update({name: (view, now_ms + self._stale_ms) for name, view in source.views.items()})
        source.carried = {name: one for name, one in kept.items() if name not in views}
        source.identity, source.connected, source.settling, source.views = identity, True, settling, views
        self._merge(now_ms)
        for view, ago_ms in left:
            # Another nameserver may still have it, and what this broker saw itself is as good.
            if view.name not in self._merged:
                self._left.setdefault(view.name, (view, now_ms - ago_ms))

    def changed(self, address: str, brokers: Iterable[RegisteredBroker], removed: Iterable[str], now_ms: int) -> None:
        """Takes in a change that a nameserver sent."""
        source = self._sources.setdefault(address, _NameserverRoutes())
        source.connected = True
        for name in removed:
            gone = source.views.pop(name, None)
            self._forget_elsewhere(name, gone)
        for view in brokers:
            source.views[view.name] = view
            source.carried.pop(view.name, None)
        self._merge(now_ms)

    def away(self, address: str, now_ms: int) -> None:
        """Notes that the stream to a nameserver broke. Its views stay, and expire while others answer."""
        source = self._sources.get(address)
        if source is not None and source.connected:
            source.connected = False
            source.away_since_ms = now_ms
            self._merge(now_ms)

    def tick(self, now_ms: int) -> None:
        """Drops views that have expired."""
        if any(source.carried or not source.connected for source in self._sources.values()):
            self._merge(now_ms)

    @property
    def sure(self) -> bool:
        """True if a connected nameserver has the registrations of all brokers."""
        return any(source.connected and not source.settling for source in self._sources.values())

    # --- queries ------------------------------------------------------------------------------------------------------

    def brokers(self) -> list[RegisteredBroker]:
        """Returns all live brokers, ascending by name."""
        return [self._merged[name] for name in sorted(self._merged)]

    def broker(self, name: str) -> RegisteredBroker | None:
        return self._merged.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._merged

    def reachable(self, name: str, now_ms: int) -> RegisteredBroker | None:
        """Returns a live broker, or one that left within `LEFT_MS`: it may still take last commits of its clients."""
        view, since_ms = self._left.get(name, (None, 0))
        return self._merged.get(name) or (view if now_ms - since_ms < LEFT_MS else None)

    def left(self, topic: str, now_ms: int) -> list[RegisteredBroker]:
        """Returns brokers that had the topic when they left, at most `AWAY_MS` ago, ascending by name."""
        return [
            view
            for _, (view, since_ms) in sorted(self._left.items())
            if view.broker_id == 0 and topic in view.topics and now_ms - since_ms < AWAY_MS
        ]

    def shared(self, listener: Listener) -> bool:
        """Returns True if two brokers have one address for clients of `listener`: it leads to any of them."""
        addresses = [view.address(listener) for view in self._merged.values()]
        return len({(address.host, address.port) for address in addresses}) < len(addresses)

    def route(self, topic: str) -> list[TopicAt]:
        """Returns the brokers that have the topic: masters only, ascending by name (RT-1, RT-2)."""
        return [
            TopicAt(view, counts)
            for view in self.brokers()
            if view.broker_id == 0 and (counts := view.topics.get(topic)) is not None
        ]

    def kind_of(self, topic: str) -> MessageType | None:
        """Returns the type of the topic at the first of its brokers; None if no broker has it."""
        return next((at.counts.message_type for at in self.route(topic)), None)

    def readable(self, topic: str) -> list[MessageQueue]:
        """Returns the queues consumers share, sorted (RT-6, RT-7)."""
        return [
            MessageQueue(topic, at.broker.name, queue_id)
            for at in self.route(topic)
            if at.counts.permission.readable
            for queue_id in range(at.counts.read_queues)
        ]

    def take_changed_topics(self) -> list[str]:
        """Returns topics whose queues or brokers changed since the last call (NS-8)."""
        changed = list(self._changed_topics)
        self._changed_topics.clear()
        return changed

    def topics(self) -> list[str]:
        """Returns every topic of the cluster, sorted."""
        return sorted({topic for view in self._merged.values() for topic in view.topics})

    # --- inside -------------------------------------------------------------------------------------------------------

    def _forget_elsewhere(self, name: str, gone: RegisteredBroker | None) -> None:
        for other in self._sources.values():
            other.carried.pop(name, None)
            stale = other.views.get(name)
            if not other.connected and stale is not None and (gone is None or stale.rank <= gone.rank):
                del other.views[name]

    def _views(self, now_ms: int) -> Iterable[RegisteredBroker]:
        # While no nameserver answers, their last views stay, however old: their silence says nothing about brokers.
        connected = any(source.connected for source in self._sources.values())
        for source in self._sources.values():
            if source.connected or not connected or now_ms - source.away_since_ms < self._stale_ms:
                yield from source.views.values()
                yield from (view for view, until_ms in source.carried.values() if now_ms < until_ms or not connected)

    def _merge(self, now_ms: int) -> None:
        best: dict[str, RegisteredBroker] = {}
        for view in self._views(now_ms):
            known = best.get(view.name)
            if known is None or view.rank > known.rank:
                best[view.name] = view
        if self._own is not None:
            # Last: the views that nameservers have of this broker are older than its own.
            best[self._own.name] = self._own
        if best != self._merged:
            self._note_changes(best)
            self._left.update({name: (view, now_ms) for name, view in self._merged.items() if name not in best})
            # A broker leaves the routes before it closes; last commits may come through other brokers (decision 31).
            self._left = dict([left for left in self._left.items() if left[0] not in best][-LEFT_MAX:])
            self._merged = best
            self.version += 1

    def _note_changes(self, best: Mapping[str, RegisteredBroker]) -> None:
        for name in {**best, **self._merged}:
            before = self._merged[name].topics if name in self._merged else {}
            after = best[name].topics if name in best else {}
            self._changed_topics.update(
                dict.fromkeys(topic for topic in {**before, **after} if before.get(topic) != after.get(topic))
            )
