"""Clients' lite subscriptions, sent by a group's leader to the other copies: the next leader begins with them.

The sets are in no log, and official SDKs repeat theirs only every 30 s: a new leader without them would send their lite
consumers nothing for that long (decision 91). So a leader sends changes to each other copy within `LOOK_MS`, and all
sets every `REPEAT_MS`, for copies that have started since. Without sets nothing is sent. A subscription of the last
`LOOK_MS` before a leader is lost is repeated by its client. Owned by `replica/composition.py`, on each copy,
whichever leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.loops.wire.peers import LiteNews, lite_sets_for_copy
from evenq_broker.loops.wire.peers import accepted as must_accept

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/LiteSubscriptions"
LOOK_MS = 500
REPEAT_MS = 10_000
ANSWER_MS = 2_000
"""The longest wait for a copy's answer."""


class CopiedLiteSets:
    """The sets at one copy: sent while it leads, received while it follows."""

    def __init__(
        self,
        net: Net,
        *,
        group: str,
        news: Callable[[], LiteNews | None],
        others: Callable[[], Sequence[str]],
        clock: Clock,
    ) -> None:
        """`news`: of the term that this copy leads, or None. `others`: addresses of the other copies."""
        self._net, self._group, self._clock = net, group, clock
        self._news, self._others = news, others
        self._sent: dict[str, tuple[int, int]] = {}
        """By address: the version that the copy there has, and since when, monotonic ms."""
        self._wake = asyncio.Event()
        self._kept: list[LiteSet] = []
        self._kept_ms = 0

    def keep(self, sets: Iterable[LiteSet]) -> None:
        """Stores the sets of the leader."""
        self._kept, self._kept_ms = list(sets), self._clock.monotonic_ms()

    def newest(self) -> list[LiteSet]:
        """Returns the sets for a term that begins, as old as the leader's last message."""
        age_ms = self._clock.monotonic_ms() - self._kept_ms
        return [LiteSet(one.subscriber, one.names, age_ms) for one in self._kept]

    def changed(self) -> None:
        """Notes that this copy's sets have changed, or that it leads from now on."""
        self._wake.set()

    async def tell(self) -> None:
        """Sends sets to the other copies while this one leads. Runs as a loop of the copy."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (news := self._news()) is not None and self._is_anything_due(news):
                for address in self._others():
                    if self._is_due(address, news):
                        await self._send(address, news)
                await self._clock.sleep_ms(LOOK_MS)
            if news is None:
                self._sent.clear()

    def _is_anything_due(self, news: LiteNews) -> bool:
        """True if sets are due now or will be repeated."""
        return bool(news.sets) or any(version != news.version for version, _ in self._sent.values())

    def _is_due(self, address: str, news: LiteNews) -> bool:
        version, since_ms = self._sent.get(address, (-1, 0))
        if version != news.version:
            return bool(news.sets) or version >= 0
        return bool(news.sets) and self._clock.monotonic_ms() - since_ms >= REPEAT_MS

    async def _send(self, address: str, news: LiteNews) -> None:
        try:
            must_accept(
                await self._net.unary(address, METHOD, lite_sets_for_copy(self._group, news.sets), timeout_ms=ANSWER_MS)
            )
        except Error as error:  # it is away, or of an older version
            log.debug("the copy of %s at %s did not take lite subscriptions: %s", self._group, address, error)
        else:
            self._sent[address] = (news.version, self._clock.monotonic_ms())
