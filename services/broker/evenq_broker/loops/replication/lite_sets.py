"""What clients want of lite topics, as the leader of this copy's group knows it: a copy that leads next begins with it.

Sets are in no log, and official SDKs repeat theirs every 30 s only: a new leader that knew none would give their lite
consumers nothing for that long (decision 91). So each follower asks its leader again and again; the answer is empty
while nothing has changed. Always true: what is kept is what one leader said last. What was subscribed or unsubscribed
in the last `LOOK_MS` before a leader is lost is repeated by the client. Owned by `replicated_app.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq_broker.core.lite.subscriptions import LiteSet
from evenq_broker.loops.wire.lite import LiteNews, ask_leader_for_lite_sets, lite_news_of

__all__ = ["ANSWER_MS", "LOOK_MS", "METHOD", "LeaderLiteSets"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/LiteSubscriptions"
LOOK_MS = 500
ANSWER_MS = 2_000
"""The longest wait for an answer."""


class LeaderLiteSets:
    """Of one copy."""

    def __init__(self, net: Net, leader: Callable[[], str], *, group: str, clock: Clock) -> None:
        """`leader`: where it answers the other copies now; empty: none is known, or this copy leads. `group`: the
        broker's name.
        """
        self._net, self._leader, self._group, self._clock = net, leader, group, clock
        self._source = ""
        """The address that sent the sets."""
        self._news = LiteNews(0, ())
        self._heard_ms = 0
        """When the leader said last that these are its sets, monotonic ms."""

    def newest(self) -> list[LiteSet]:
        """The sets, for a term that begins. Each as old as the leader's last word: it had dropped those that are not
        repeated.
        """
        age_ms = self._clock.monotonic_ms() - self._heard_ms
        return [LiteSet(one.subscriber, one.names, age_ms) for one in self._news.sets]

    async def follow(self) -> None:
        """Ask the leader, again and again. Runs as a loop of the copy."""
        while True:
            address = self._leader()
            if address:
                await self._ask(address)
            await self._clock.sleep_ms(LOOK_MS)

    async def _ask(self, address: str) -> None:
        known = self._news.version if address == self._source else 0
        try:
            response = await self._net.unary(
                address, METHOD, ask_leader_for_lite_sets(self._group, known), timeout_ms=ANSWER_MS
            )
            news = lite_news_of(response)
        except Error as error:  # gone, not a leader yet, or of an older version
            log.debug("the leader of %s sent no lite subscriptions: %s", self._group, error)
            return
        self._heard_ms = self._clock.monotonic_ms()
        if not known or news.version != known:
            self._source, self._news = address, news
