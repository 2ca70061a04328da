"""Links that other brokers of the group opened here: one for each sender, and how each of them ends.

The opening identifies a link. An address may lead elsewhere by now, so a link is rejected if its cluster, group,
sender or receiver is a different one. A newer link of a sender ends the older one: its
process started anew, or its network broke unnoticed. A sender whose link was closed for its messages waits longer
before each next one is accepted. `rpc.replication` reads the links, `peer_links.PeerLinks` owns this table.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from evenq.errors import BadRequest
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.replication import LinkEnd, LinkOpening

log = logging.getLogger(__name__)

BEAT_MS = 1_000
"""Between two signs that a link is alive."""
OPENING_MS = 5_000
"""The longest time from a call to its opening."""
UNOPENED_MAX = 32
"""Calls without an opening at the same time."""
PAUSE_FIRST_MS, PAUSE_MAX_MS = 1_000, 60_000
"""Before a link is accepted again from a sender whose link was closed for its messages."""
FORGIVEN_MS = 120_000
"""After this time without a fault, the next pause is the first one again."""
TWINS, TWINS_MS = 3, 60_000
"""This number of replaced links of one sender within this time means two processes."""
NO_SENDER = -1


class LinkRefused(BadRequest):
    """A link is not accepted; the call ends with the reason."""


class IncomingLink:
    """One call, from its begin to its end."""

    def __init__(self, peer: str, clock: Clock) -> None:
        self.peer = peer
        """`host:port` of the caller."""
        self.sender = NO_SENDER
        """Broker id, once the link is opened."""
        self.end: LinkEnd | None = None
        """Why it is closed; None: it is open."""
        self._clock = clock
        self._since_ms = clock.monotonic_ms()
        self._changed = Signal()
        self._seen = 0

    @property
    def opened(self) -> bool:
        """True: its opening was accepted."""
        return self.sender != NO_SENDER

    def open(self, sender: int) -> None:
        """Notes the accepted opening."""
        self.sender = sender
        self._changed.notify()

    def close(self, reason: str, *, taken_over: bool = False) -> None:
        """Ends the link. The first reason counts. `taken_over`: a newer link of the same sender replaced it."""
        if self.end is None:
            self.end = LinkEnd(reason, taken_over=taken_over)
            self._changed.notify()

    async def news(self) -> LinkEnd | None:
        """Waits for the next message to the caller, `BEAT_MS` at most; None: the link is alive or not opened yet."""
        if self.end is None:
            await self._changed.wait(self._seen, clock=self._clock, timeout_ms=BEAT_MS)
            self._seen = self._changed.count
        if not self.opened and self._clock.monotonic_ms() - self._since_ms >= OPENING_MS:
            self.close(f"no opening came within {OPENING_MS} ms")
        return self.end


class _Fault:
    """A sender that must wait."""

    def __init__(self, rng: random.Random) -> None:
        self.backoff = Backoff(rng, first_ms=PAUSE_FIRST_MS, max_ms=PAUSE_MAX_MS)
        self.at_ms = 0
        self.until_ms = 0
        self.reason = ""


class IncomingLinks:
    """Table of the links from other brokers."""

    def __init__(
        self,
        *,
        cluster: str,
        group: str,
        own_id: int,
        members: Collection[int],
        clock: Clock,
        rng: random.Random,
        on_opened: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_opened`: called with the broker id of each accepted link."""
        self.cluster, self.group, self.own_id = cluster, group, own_id
        self._members = frozenset(members) - {own_id}
        self._clock, self._rng, self._on_opened = clock, rng, on_opened
        self._links: dict[int, IncomingLink] = {}
        self._read_crc32: set[int] = set()
        """Broker ids whose newest link said so; also while they are away."""
        self._unopened: list[IncomingLink] = []
        self._faults: dict[int, _Fault] = {}
        self._closed = ""
        self._last_refusal = ""
        self._replaced: dict[int, list[int]] = {}
        """Times when newer links replaced older ones lately, by sender."""

    def set_members(self, members: Collection[int]) -> None:
        """Sets the group's copies; links of brokers that are not members any more end, with the reason."""
        self._members = frozenset(members) - {self.own_id}
        for sender in self._links.keys() - self._members:
            self._links[sender].close(self._why_stranger(sender))
        for sender in self._faults.keys() - self._members:
            del self._faults[sender]
        self._read_crc32 &= self._members

    @property
    def members(self) -> frozenset[int]:
        """The group's other copies."""
        return self._members

    @property
    def senders(self) -> set[int]:
        """Broker ids with an open link here."""
        return set(self._links)

    def all_read_crc32(self) -> bool:
        """Returns True if each other copy accepts messages with a CRC32; False for one that has not connected yet."""
        return self._members <= self._read_crc32

    def arrived(self, peer: str) -> IncomingLink:
        """Registers a call; its opening will identify the caller. Raises LinkRefused."""
        if self._closed:
            raise LinkRefused(self._closed)
        # The caller is not known before the opening: anyone who reaches the port can hold this many calls and no more.
        if len(self._unopened) >= UNOPENED_MAX:
            raise LinkRefused(f"{UNOPENED_MAX} links wait for their opening, the maximum; try again")
        link = IncomingLink(peer, self._clock)
        self._unopened.append(link)
        return link

    def opened(self, link: IncomingLink, opening: LinkOpening) -> None:
        """Accepts the first message of a link; an older link of the same sender ends. Raises LinkRefused."""
        if link in self._unopened:
            self._unopened.remove(link)
        sender = opening.sender
        refusal = self._closed or self.fault_of(opening) or self._pause_of(sender)
        if refusal:
            raise LinkRefused(refusal)
        older = self._links.get(sender)
        if older is not None:
            # The newer one wins: the older one's process may be gone without a sign from the network.
            older.close(
                f"a newer link of broker {sender}, from {link.peer}, took its place: if this repeats, two processes "
                f"run as broker {sender} (replication.broker_id) of group {self.group!r}, and one must be stopped",
                taken_over=True,
            )
            self._watch_twins(sender, older, link)
        self._links[sender] = link
        self._read_crc32.discard(sender)  # its process may have another version than the one before
        if opening.reads_crc32:
            self._read_crc32.add(sender)
        link.open(sender)
        self._on_opened(sender)

    def _watch_twins(self, sender: int, older: IncomingLink, link: IncomingLink) -> None:
        """Warns of two processes: a link may replace one whose end was not noticed yet, but not repeatedly."""
        now_ms = self._clock.monotonic_ms()
        times = [at_ms for at_ms in self._replaced.get(sender, ()) if now_ms - at_ms < TWINS_MS]
        self._replaced[sender] = [*times[-TWINS:], now_ms]
        if len(times) == TWINS - 1:
            log.warning(
                "replication of %s: links of broker %d take each other's place, now one from %s that of one from %s: "
                "two processes run with replication.broker_id=%d; stop one of them",
                self.group,
                sender,
                link.peer,
                older.peer,
                sender,
                extra={"group": self.group, "peer": sender},
            )

    def left(self, link: IncomingLink) -> None:
        """Removes the link of an ended call. Idempotent."""
        link.close("the call ended")
        if link in self._unopened:
            self._unopened.remove(link)
        # Otherwise a newer link of the sender has its place.
        if self._links.get(link.sender) is link:
            del self._links[link.sender]

    def refuse(self, link: IncomingLink, reason: str) -> None:
        """Closes a link for its messages; its sender has to wait. Unknown callers are logged once for each reason."""
        link.close(reason)
        if link.opened:
            self.pause(link.sender, reason)
        elif reason != self._last_refusal:
            self._last_refusal = reason
            log.warning(
                "replication of %s: a link from %s is rejected: %s",
                self.group,
                link.peer,
                reason,
                extra={"group": self.group, "peer": link.peer},
            )

    def pause(self, sender: int, reason: str) -> int:
        """Ends the link of a sender for its fault, and accepts none for a while; returns the pause, ms."""
        now_ms = self._clock.monotonic_ms()
        fault = self._faults.get(sender)
        if fault is None:
            fault = self._faults[sender] = _Fault(self._rng)
        elif now_ms < fault.until_ms:
            # A later message of the same link: it must not lengthen the pause.
            return fault.until_ms - now_ms
        elif now_ms - fault.at_ms >= FORGIVEN_MS:
            fault.backoff.reset()
        pause_ms = fault.backoff.next_ms()
        fault.at_ms, fault.until_ms, fault.reason = now_ms, now_ms + pause_ms, reason
        link = self._links.get(sender)
        if link is not None:
            link.close(reason)
        log.warning(
            "replication of %s: links with broker %d are closed for %d ms: %s",
            self.group,
            sender,
            pause_ms,
            reason,
            extra={"group": self.group, "peer": sender, "pause_ms": pause_ms},
        )
        return pause_ms

    def close(self, reason: str) -> None:
        """Ends all links, and accepts no more. Idempotent."""
        self._closed = self._closed or reason
        for link in (*self._links.values(), *self._unopened):
            link.close(reason)

    def fault_of(self, opening: LinkOpening) -> str:
        """Returns why a peer may not link to this broker of this group; empty: it may."""
        if opening.cluster != self.cluster:
            return (
                f"this is cluster {self.cluster!r}, not {opening.cluster[:80]!r}: all copies of a group need the same "
                "`cluster`, and each address of replication.members must be a copy of it"
            )
        if opening.broker_name != self.group:
            return (
                f"this is a broker of group {self.group!r}, not of {opening.broker_name[:80]!r}: all copies of a group "
                "need the same `broker_name`, and each address of replication.members must be a copy of it"
            )
        if opening.receiver != self.own_id:
            return (
                f"this is broker {self.own_id} of group {self.group!r}, not {opening.receiver}: replication.members "
                f"gives broker {opening.receiver} this address, or it has another replication.broker_id"
            )
        if opening.sender not in self._members:
            return self._why_stranger(opening.sender)
        return ""

    def _why_stranger(self, sender: int) -> str:
        others = ", ".join(map(str, sorted(self._members))) or "none"
        return (
            f"broker {sender} is not another member of group {self.group!r} (others of broker {self.own_id}: "
            f"{others}); a new copy, or one that was removed, counts after `evenq broker add-replica`"
        )

    def _pause_of(self, sender: int) -> str:
        fault = self._faults.get(sender)
        left_ms = 0 if fault is None else fault.until_ms - self._clock.monotonic_ms()
        if fault is None or left_ms <= 0:
            return ""
        return f"links of broker {sender} are closed for a while: {fault.reason}"
