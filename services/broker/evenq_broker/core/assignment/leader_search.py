"""Which rebalancer to try next: the configured addresses in turn, and where those who do not lead send us.

Called by `loops/assignment/rebalancer_link.py`. Pure. Always true: after at most `HOPS_MAX` redirects in a row, and
after each failure, the caller waits before it goes on; a leader that was named and does not answer is forgotten, and
the next configured address is tried.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NO_LEADER", "LeaderSearch"]

HOPS_MAX = 3
NO_LEADER = "?"
"""What a rebalancer answers that knows no leader."""


class LeaderSearch:
    """See the module."""

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
        """Where to report now."""
        return self._named or self._addresses[self._index]

    def redirected(self, leader: str) -> bool:
        """The target does not lead and named `leader`; True: go there at once, False: wait a little first."""
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
        """The target did not answer, or its stream broke: wait a little, then try `target`."""
        self._next()

    def found(self) -> None:
        """The target leads."""
        self._hops = 0

    def _next(self) -> None:
        self._hops = 0
        if self._named:
            self._named = ""  # whom we had asked before knows who follows, if it lives
        else:
            self._index = (self._index + 1) % len(self._addresses)
