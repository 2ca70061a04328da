"""Search for the leading rebalancer: the configured addresses in turn, and the leaders that they name.

Called by `loops/assignment/rebalancer_link.py`. Pure. Always true: the caller waits after each failure, and after at
most `HOPS_MAX` redirects in a row. A named leader that does not answer is forgotten, and the configured address that
led to it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

HOPS_MAX = 3
NO_LEADER = "?"
"""Answer of a rebalancer that does not know the leader."""


class LeaderSearch:
    def __init__(self, addresses: Sequence[str]) -> None:
        """`addresses`: at least one `host:port`; one of them may stand for several rebalancers (a Service)."""
        if not addresses:
            raise ValueError("a search needs an address to begin at")
        self._addresses = list(addresses)
        self._index = 0
        self._named = ""
        self._hops = 0

    @property
    def target(self) -> str:
        """Address to report to now."""
        return self._named or self._addresses[self._index]

    def redirected(self, leader: str) -> bool:
        """Follows a redirect of the target. Returns True to connect immediately, False to wait first."""
        if leader in {"", NO_LEADER, self.target}:
            self._next()
            return False
        self._named = leader
        self._hops += 1
        if self._hops < HOPS_MAX:
            return True
        self._hops = 0
        return False

    def failed(self) -> None:
        """Notes that the target did not answer or its stream broke: the caller waits, then tries `target`."""
        self._next()

    def found(self) -> None:
        """Notes that the target leads."""
        self._hops = 0

    def _next(self) -> None:
        self._hops = 0
        if self._named:
            self._named = ""  # the configured address may know the successor
        else:
            self._index = (self._index + 1) % len(self._addresses)
