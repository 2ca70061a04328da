"""The copies for the scans of one range: the leader of its broker, and with readFrom=any also its followers (HA-9).

Called by `scanning`, in Spark's workers. The leader is called first. A follower is read while the leader does not
answer, or after it reported that the range begins far behind the end of its log, by the rules of the SDK
(`evenq.client.core.reading.read_places`). Routes are queried before a call to a leader that failed or is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from evenq import errors
from evenq.client.core.reading.read_places import ReadPlace, ReadPlaces
from evenq.model.queue import MessageQueue
from evenq.runtime.clock import SystemClock
from pyspark_evenq.brokers import cluster

log = logging.getLogger(__name__)
SCAN_MS = 15_000
"""Maximum of one scan: it detects a broker that hangs, and a slow reader continues with another scan."""
ANY_SCAN_MS = 5_000
"""The same if another copy may answer instead."""
_monotonic_ms = SystemClock().monotonic_ms


class ScanPlaces:
    """The choice of copies for the scans of one queue."""

    def __init__(
        self, queue: MessageQueue, endpoints: Sequence[str], *, leader: str, followers: Sequence[str], any_copy: bool
    ) -> None:
        self.leader = leader
        """Its last address; empty: not known, so the route is queried."""
        self._queue, self._endpoints = queue, endpoints
        self._followers = tuple(followers)
        self._copies = ReadPlaces() if any_copy else None
        self._is_old = not leader
        """True if the route must be queried before the leader is called."""

    @property
    def scan_ms(self) -> int:
        return SCAN_MS if self._copies is None else ANY_SCAN_MS

    def next(self) -> ReadPlace:
        """Returns the copy to scan now. Raises as `find`, and ConnectionFailed if no copy can be called."""
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
        """Queries the route. Raises TopicNotFound, and ConnectionFailed if no live broker serves the queue."""
        located = cluster.locate(self._endpoints, [self._queue.topic]).must_exist()
        # Otherwise the old ones: a route without the gone leader lacks its followers just when they are needed.
        self._followers = located.followers_of(self._queue) or self._followers
        address = located.addresses.get(self._queue, "")
        if not address:
            why = located.away.get(self._queue, "the route does not name it")
            raise errors.ConnectionFailed(f"no broker serves {self._queue} now: {why}")
        self.leader, self._is_old = address, False

    def answered(self, place: ReadPlace, *, far_behind: bool) -> bool:
        """Records a block from a copy. Returns True if the next one should come from another copy."""
        if self._copies is None:
            return False
        now_ms = _monotonic_ms()
        self._copies.answered(place, empty=False, far_behind=far_behind, now_ms=now_ms)
        return far_behind and place.leads and self._copies.next(self.leader, self._followers, now_ms) != place

    def refused(self) -> None:
        """Records that the leader refused: it is called again, after a query of the route."""
        self._is_old = True

    def failed(self, place: ReadPlace | None) -> bool:
        """Records that a copy, or none, did not answer. True: pause, because the next call goes to the same copy."""
        if place is None or place.leads:
            self._is_old = True
        if self._copies is None or place is None:
            return True
        now_ms = _monotonic_ms()
        self._copies.failed(place, now_ms)
        return self._copies.next(self.leader, self._followers, now_ms) in {None, place}
