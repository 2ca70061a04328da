"""Long polls of the whole cluster, counted: which brokers have polls parked for a group and topic, and their notices.

`Waiters` is kept by the broker that has messages: which peers have parked polls, and whose turn it is. `PeerNotices` is
kept by the broker that has the polls, one for each peer: what that peer assumes, so that only changes are sent. A
notice uses up a poll, so both sides count one less without another message. Always true: a peer is in the table only
with a count of one or more. Pure; used by `loops.polls.cluster_polls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_PAUSE_FIRST_MS = 20
_PAUSE_MAX_MS = 1_000


class Want(NamedTuple):
    """Group and topic that a parked poll waits for. Names, not numbers: those differ between brokers."""

    group: str
    topic: str
    push: bool = False


class Waiters:
    """Wants -> peers with parked polls. `wants_max` bounds the wants of one peer."""

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
        """Sets the number of polls that the peer has parked. Returns False and does not if it has too many wants."""
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
        """Returns the wants of other brokers for this topic."""
        return list(self._by_topic.get(topic, ()))

    def waits(self, want: Want) -> bool:
        """Returns True if a poll elsewhere waits for it."""
        return want in self._by_topic.get(want.topic, ())

    def take(self, want: Want) -> str | None:
        """Uses up a poll of the peer whose turn it is, and returns that peer, to be notified; None: no poll."""
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
    """Counts that one peer was sent, and pauses after empty fetches from it."""

    __slots__ = ("_counts", "_pauses", "fade_ms")

    def __init__(self, *, fade_ms: int = 250) -> None:
        self.fade_ms = fade_ms
        """Time for which a want outlives its last poll: a consumer between two polls comes back immediately."""
        self._counts: dict[Want, int] = {}
        self._pauses: dict[Want, tuple[int, int]] = {}  # until when nothing is sent (ms), length of the pause

    def used(self, want: Want) -> None:
        """Counts a notice from the peer, which now assumes one poll less."""
        left = self._counts.get(want, 0) - 1
        if left > 0:
            self._counts[want] = left
        else:
            self._counts.pop(want, None)

    def fetched(self, want: Want, now_ms: int, *, found: bool) -> None:
        """Takes in the result of a notice. Consecutive empty fetches pause the want for longer and longer, so that two
        brokers with different views do not wake each other without end.
        """
        if found:
            self._pauses.pop(want, None)
            return
        _, length = self._pauses.get(want, (0, 0))
        # The first empty fetch is normal: another broker was faster.
        self._pauses[want] = (now_ms + length, min(max(2 * length, _PAUSE_FIRST_MS), _PAUSE_MAX_MS))

    def changes(
        self, wants: Iterable[Want], counts: Mapping[Want, int], since: Mapping[Want, int], now_ms: int
    ) -> Iterator[tuple[Want, int, int]]:
        """Yields what to do for each want: (want, count to send now, 0), or (want, -1, when to look again, ms).

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
        """Notes that a notice found no poll: the peer is about to be sent a count of 0."""
        self._counts.pop(want, None)

    def known(self, want: Want) -> bool:
        """Returns True while the peer assumes a poll."""
        return want in self._counts
