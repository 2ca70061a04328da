"""Where the scans of one range go: to the leader of its broker, or with readFrom=any to a follower as well (HA-9).

Called by `scanning`, in Spark's workers. The leader is asked first. While it does not answer, or after it has said that
the range begins far behind the end of its log, a follower is read; the rules are those of the SDK's readers
(`evenq.client.core.reading.read_places`). Routes are queried when the leader is to be called and failed, or was not
known.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from evenq import errors
from evenq.client.core.reading.read_places import ReadPlace, ReadPlaces
from evenq.model.queue import MessageQueue
from evenq.runtime.clock import SystemClock
from pyspark_evenq import cluster

__all__ = ["ScanPlaces"]

log = logging.getLogger(__name__)
SCAN_MS = 15_000
"""One scan lasts no longer: a broker that hangs is noticed, and a slow reader just asks for the rest again."""
ANY_SCAN_MS = 5_000
"""The same where another copy would answer instead."""
_monotonic_ms = SystemClock().monotonic_ms


class ScanPlaces:
    """Of one queue."""

    def __init__(
        self, queue: MessageQueue, endpoints: Sequence[str], *, leader: str, followers: Sequence[str], any_copy: bool
    ) -> None:
        """`leader` empty: it has to be asked for."""
        self.leader = leader
        """Where it was last; empty: not known."""
        self._queue, self._endpoints = queue, endpoints
        self._followers = tuple(followers)
        self._copies = ReadPlaces() if any_copy else None
        self._is_old = not leader
        """Whether the route is to be asked for before the leader is called."""

    @property
    def scan_ms(self) -> int:
        """How long one scan may take."""
        return SCAN_MS if self._copies is None else ANY_SCAN_MS

    def next(self) -> ReadPlace:
        """Where to scan now. Raises ConnectionFailed if no broker is known that serves the queue, and what a call for
        the route raises.
        """
        if self._copies is None:
            if self._is_old:
                self.find()
            return ReadPlace(self.leader, leads=True)
        place = self._copies.next(self.leader, self._followers, _monotonic_ms())
        if self._is_old and (place is None or place.leads):
            try:
                self.find()
            except errors.Error as failure:
                if place is None and not self._followers:
                    raise
                log.info("%s: the route could not be refreshed: %s", self._queue, failure)
            place = self._copies.next(self.leader, self._followers, _monotonic_ms())
        if place is None:
            name = self._queue.broker_name
            raise errors.ConnectionFailed(
                f"neither the leader of broker {name} nor a follower answers for {self._queue}"
            )
        return place

    def find(self) -> None:
        """Ask for the route. Raises TopicNotFound, and ConnectionFailed if no live broker serves the queue."""
        located = cluster.locate(self._endpoints, [self._queue.topic]).must_exist()
        # The old ones if the route names none: it loses a broker whose leader is gone just when followers are wanted.
        self._followers = located.followers_of(self._queue) or self._followers
        address = located.addresses.get(self._queue, "")
        if not address:
            why = located.away.get(self._queue, "the route does not name it")
            raise errors.ConnectionFailed(f"no broker serves {self._queue} now: {why}")
        self.leader, self._is_old = address, False

    def answered(self, place: ReadPlace, *, far_behind: bool) -> bool:
        """It gave a block. True: the next one had better come from somewhere else."""
        if self._copies is None:
            return False
        now_ms = _monotonic_ms()
        self._copies.answered(place, empty=False, far_behind=far_behind, now_ms=now_ms)
        return far_behind and place.leads and self._copies.next(self.leader, self._followers, now_ms) != place

    def refused(self) -> None:
        """The leader gave nothing, and is asked again: at its place by a new route."""
        self._is_old = True

    def failed(self, place: ReadPlace | None) -> bool:
        """It did not answer, or could not; None: no place was known. True: pause before the next call, which goes to
        where the last one failed.
        """
        if place is None or place.leads:
            self._is_old = True
        if self._copies is None or place is None:
            return True
        now_ms = _monotonic_ms()
        self._copies.failed(place, now_ms)
        return self._copies.next(self.leader, self._followers, now_ms) in {None, place}
