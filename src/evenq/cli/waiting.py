"""Pauses and progress texts of commands that wait until groups have read the messages of a broker or queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evenq.cli.output import Column, Listing, progress_console
from evenq.client.core.admin.views import UnfinishedView
from evenq.runtime.clock import SystemClock

AGAIN_MS = 500
GROUPS_NAMED_MAX = 5
_UNFINISHED = (
    Column("broker", "broker"),
    Column("topic", "topic"),
    Column("queue", "queue", "number"),
    Column("group", "group"),
    Column("lag", "lag", "number"),
    Column("inflight", "in flight", "number"),
)


class Patience:
    """The pauses between repeated calls, for at most `wait_s` seconds in total."""

    def __init__(self, wait_s: int) -> None:
        self._clock = SystemClock()
        self._deadline_ms = self._clock.monotonic_ms() + wait_s * 1000
        self._shown = ""

    async def pause(self, text: str) -> bool:
        """Prints the progress if it changed, and waits; returns False when the time is up."""
        if text != self._shown:
            self._shown = text
            progress_console().print(text)
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        await self._clock.sleep_ms(min(AGAIN_MS, left_ms))
        return True


def who(left: Iterable[UnfinishedView]) -> str:
    """Returns groups with their lag, the largest first."""
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    shown = [f"{group} {lag:,}" for group, lag in lags.most_common(GROUPS_NAMED_MAX)]
    more = len(lags) - len(shown)
    return ", ".join(shown) + (f" and {more} more groups" if more > 0 else "") or "none"


def hidden_text(unread: int) -> str:
    """Returns a warning: groups that are created later miss the messages of closed queues."""
    if unread:
        return f"No group has read {unread:,} of them: groups that are created later will not get them."
    return "Groups that are created later will not get the messages stored there."


def unfinished_listing(left: Iterable[UnfinishedView]) -> Listing:
    rows = [
        (one.queue.broker_name, one.queue.topic, one.queue.queue_id, one.group, one.lag, one.inflight) for one in left
    ]
    return Listing(key="unfinished", columns=_UNFINISHED, rows=rows, title="To be read", empty="nothing")
