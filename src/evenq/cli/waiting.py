"""Waiting until groups have read what is left: the pauses between two looks, and the words for what is waited for.

Part of the commands that shrink topics, drain brokers and let topics leave them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evenq.cli.output import Column, Listing, progress_console
from evenq.client.core.admin.views import UnfinishedView
from evenq.runtime.clock import SystemClock

__all__ = ["Patience", "hidden_text", "unfinished_listing", "who"]

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
    """Repeats a call until nothing is left to wait for, `wait_s` seconds at most."""

    def __init__(self, wait_s: int) -> None:
        self._clock = SystemClock()
        self._deadline_ms = self._clock.monotonic_ms() + wait_s * 1000
        self._shown = ""

    async def pause(self, text: str) -> bool:
        """Tell the progress if it is news; False when the time is over."""
        if text != self._shown:
            self._shown = text
            progress_console().print(text)
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        await self._clock.sleep_ms(min(AGAIN_MS, left_ms))
        return True


def who(left: Iterable[UnfinishedView]) -> str:
    """Groups with what they have to read, those with most first."""
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    shown = [f"{group} {lag:,}" for group, lag in lags.most_common(GROUPS_NAMED_MAX)]
    more = len(lags) - len(shown)
    return ", ".join(shown) + (f" and {more} more groups" if more > 0 else "") or "none"


def hidden_text(unread: int) -> str:
    """What groups that come later miss when queues are closed."""
    if unread:
        return f"{unread:,} of them no group has read: groups that are created later will not get them."
    return "Groups that are created later will not get the messages stored there."


def unfinished_listing(left: Iterable[UnfinishedView]) -> Listing:
    """What has to be read, queue by queue."""
    rows = [
        (one.queue.broker_name, one.queue.topic, one.queue.queue_id, one.group, one.lag, one.inflight) for one in left
    ]
    return Listing(key="unfinished", columns=_UNFINISHED, rows=rows, title="To be read", empty="nothing")
