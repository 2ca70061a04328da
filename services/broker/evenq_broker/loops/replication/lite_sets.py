"""What clients want of lite topics, told by a group's leader to the other copies: one that leads next begins with it.

Sets are in no log, and official SDKs repeat theirs every 30 s only: a new leader that knew none would give their lite
consumers nothing for that long (decision 91). So a leader tells each other copy within `LOOK_MS` what has changed, and
all of it again every `REPEAT_MS`, for copies that have started since. Where no client has a set nothing is sent. What
was subscribed in the last `LOOK_MS` before a leader is lost is repeated by the client. Owned by `replicated_app.py`, on
each copy, whichever leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.loops.wire.lite import LiteNews, lite_sets_for_copy
from evenq_broker.loops.wire.lite import accepted as must_accept

__all__ = ["ANSWER_MS", "LOOK_MS", "METHOD", "REPEAT_MS", "CopiedLiteSets"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/LiteSubscriptions"
LOOK_MS = 500
REPEAT_MS = 10_000
ANSWER_MS = 2_000
"""The longest wait for a copy's answer."""


class CopiedLiteSets:
    """Of one copy: what it tells while it leads, and what it was told while it follows."""

    def __init__(
        self,
        net: Net,
        *,
        group: str,
        news: Callable[[], LiteNews | None],
        others: Callable[[], Sequence[str]],
        clock: Clock,
    ) -> None:
        """`news`: of the term that this copy leads; None: it leads none. `others`: where the other copies answer.
        `group`: the broker's name.
        """
        self._net, self._group, self._clock = net, group, clock
        self._news, self._others = news, others
        self._sent: dict[str, tuple[int, int]] = {}
        """By address: the version that the copy there has, and since when, monotonic ms."""
        self._wake = asyncio.Event()
        self._kept: list[LiteSet] = []
        self._kept_ms = 0

    def keep(self, sets: Iterable[LiteSet]) -> None:
        """The leader says that these are its sets."""
        self._kept, self._kept_ms = list(sets), self._clock.monotonic_ms()

    def newest(self) -> list[LiteSet]:
        """The sets, for a term that begins. Each as old as the leader's last word: it had dropped those that clients do
        not repeat.
        """
        age_ms = self._clock.monotonic_ms() - self._kept_ms
        return [LiteSet(one.subscriber, one.names, age_ms) for one in self._kept]

    def changed(self) -> None:
        """This copy's sets have changed, or it leads from now on."""
        self._wake.set()

    async def tell(self) -> None:
        """Tell the other copies while this one leads. Runs as a loop of the copy."""
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
        """Now, or when it is to be repeated."""
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
            log.debug("the copy of %s at %s was told no lite subscriptions: %s", self._group, address, error)
        else:
            self._sent[address] = (news.version, self._clock.monotonic_ms())
