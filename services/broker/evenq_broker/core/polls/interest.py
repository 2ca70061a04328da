"""Long polls of a whole cluster, counted: who of the brokers has polls parked for a group and topic, and notices.

`Waiters` is kept by the broker that has messages: which peers have parked polls, whose turn it is. `PeerNotices` is
kept by the broker that has the polls, one for each peer: what that peer believes, so that only news is sent. A poll
that is used up by a notice counts one less on both sides without another word. Always true: a peer is in the table only
with a count of one or more. Pure; used by `loops.polls.cluster_polls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["PeerNotices", "Waiters", "Want"]

_PAUSE_FIRST_MS = 20
_PAUSE_MAX_MS = 1_000


class Want(NamedTuple):
    """What a parked poll waits for. Names, not numbers: those differ between brokers."""

    group: str
    topic: str
    push: bool = False


class Waiters:
    """Wants -> peers with parked polls. `wants_max` bounds what one peer may tell."""

    __slots__ = ("_by_topic", "_of_peer", "wants_max")

    def __init__(self, *, wants_max: int = 100_000) -> None:
        self.wants_max = wants_max
        self._by_topic: dict[str, dict[Want, dict[str, int]]] = {}
        self._of_peer: dict[str, set[Want]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def __len__(self) -> int:
        return sum(map(len, self._of_peer.values()))

    def tell(self, peer: str, want: Want, count: int) -> bool:
        """The peer has `count` polls parked for it now. False: the peer has too many, this is not kept."""
        if count <= 0:
            self._forget(peer, want)
            return True
        mine = self._of_peer.setdefault(peer, set())
        if want not in mine and len(mine) >= self.wants_max:
            return False
        mine.add(want)
        self._by_topic.setdefault(want.topic, {}).setdefault(want, {})[peer] = count
        return True

    def wants(self, topic: str) -> Iterable[Want]:
        """What is waited for elsewhere of this topic."""
        return list(self._by_topic.get(topic, ()))

    def waits(self, want: Want) -> bool:
        """True if a poll elsewhere waits for it."""
        return want in self._by_topic.get(want.topic, ())

    def take(self, want: Want) -> str | None:
        """The peer to notify; one of its polls is used up, and its turn comes again after the others'. None: no peer
        has a poll.
        """
        peers = self._by_topic.get(want.topic, {}).get(want)
        if not peers:
            return None
        peer = next(iter(peers))
        left = peers.pop(peer) - 1
        if left > 0:
            peers[peer] = left  # to the end of the line
        else:
            peers[peer] = 0
            self._forget(peer, want)
        return peer

    def drop(self, peer: str) -> None:
        """The peer is gone, and its polls with it."""
        for want in list(self._of_peer.get(peer, ())):
            self._forget(peer, want)

    def _forget(self, peer: str, want: Want) -> None:
        wants = self._by_topic.get(want.topic)
        peers = wants.get(want) if wants is not None else None
        if wants is None or peers is None or peer not in peers:
            return
        del peers[peer]
        if not peers:
            del wants[want]
            if not wants:
                del self._by_topic[want.topic]
        mine = self._of_peer[peer]
        mine.discard(want)
        if not mine:
            del self._of_peer[peer]


class PeerNotices:
    """What one peer was sent, and which fetches from it came back empty."""

    __slots__ = ("_counts", "_pauses", "fade_ms")

    def __init__(self, *, fade_ms: int = 250) -> None:
        self.fade_ms = fade_ms
        """How long a want outlives its last poll: a consumer between two polls comes back at once."""
        self._counts: dict[Want, int] = {}
        self._pauses: dict[Want, tuple[int, int]] = {}  # until when nothing is sent (ms), length of the pause

    def used(self, want: Want) -> None:
        """The peer has sent a notice: it believes in one poll less."""
        left = self._counts.get(want, 0) - 1
        if left > 0:
            self._counts[want] = left
        else:
            self._counts.pop(want, None)

    def fetched(self, want: Want, now_ms: int, *, found: bool) -> None:
        """What came of a notice. Empty fetches one after another pause the wants longer and longer, so that two
        brokers that see things differently do not wake each other without end.
        """
        if found:
            self._pauses.pop(want, None)
            return
        _, length = self._pauses.get(want, (0, 0))
        # The first empty hand is nothing special: another broker was faster.
        self._pauses[want] = (now_ms + length, min(max(2 * length, _PAUSE_FIRST_MS), _PAUSE_MAX_MS))

    def changes(
        self, wants: Iterable[Want], counts: Mapping[Want, int], since: Mapping[Want, int], now_ms: int
    ) -> Iterator[tuple[Want, int, int]]:
        """What to do about each want: (want, count to tell now, 0), or (want, -1, when to look again, ms).

        `counts`: polls parked now. `since`: when a want's last poll ended, ms.
        """
        for want in wants:
            count = counts.get(want, 0)
            known = self._counts.get(want, 0)
            if count > 0 and known == 0:
                until_ms = self._pauses.get(want, (0, 0))[0]
                if until_ms > now_ms:
                    yield want, -1, until_ms
                    continue
                self._counts[want] = count
                yield want, count, 0
            elif count == 0:
                due_ms = since.get(want, now_ms) + self.fade_ms
                if known and due_ms > now_ms:
                    yield want, -1, due_ms
                    continue
                self._pauses.pop(want, None)
                if known:
                    del self._counts[want]
                    yield want, 0, 0

    def decline(self, want: Want) -> None:
        """A notice found no poll: the peer is about to hear that there are none."""
        self._counts.pop(want, None)

    def known(self, want: Want) -> bool:
        """True while the peer believes in a poll."""
        return want in self._counts
