"""Shrinking topics and draining brokers from a program: the call is repeated until nothing is left to wait for.

Brokers keep the state between the steps, so a wait that ended too early is simply done again. Used by both admins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from evenq.client.core.admin.views import DrainView, ResizeView, UnfinishedView, WithdrawView
from evenq.errors import RequestTimeout
from evenq.runtime.clock import Clock

__all__ = ["drained", "scaled", "withdrawn"]

AGAIN_MS = 500
GROUPS_NAMED_MAX = 5


class ResizingCalls(Protocol):
    """What it needs of the wire."""

    async def scale_topic(
        self, topic: str, queues: int, *, broker: str, force: bool, close_unread: bool, dry_run: bool = False
    ) -> list[ResizeView]:
        """One step."""
        ...

    async def drain_broker(self, broker: str, *, resume: bool = False) -> DrainView:
        """One step."""
        ...

    async def withdraw_topic(
        self, topic: str, broker: str, *, close_unread: bool, force: bool, dry_run: bool = False
    ) -> WithdrawView:
        """One step."""
        ...


async def scaled(
    calls: ResizingCalls,
    clock: Clock,
    topic: str,
    queues: int,
    *,
    broker: str,
    force: bool,
    close_unread: bool,
    dry_run: bool = False,
    wait_ms: int,
) -> list[ResizeView]:
    """One step with `wait_ms` 0 or `dry_run`. Raises RequestTimeout if something is left after `wait_ms`."""
    if dry_run:
        return await calls.scale_topic(
            topic, queues, broker=broker, force=force, close_unread=close_unread, dry_run=True
        )
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        views = await calls.scale_topic(topic, queues, broker=broker, force=force, close_unread=close_unread)
        left = [one for view in views for one in view.unfinished if not view.done]
        if not wait_ms or all(view.done for view in views):
            return views
        if clock.monotonic_ms() >= deadline_ms:
            unread = sum(view.unread for view in views if not view.done)
            unread_text = (
                f" and {unread} messages that no group has read (close_unread=True hides them)" if unread else ""
            )
            raise RequestTimeout(
                f"topic {topic} has more than {queues} queues to read after {wait_ms} ms: {_who(left)}{unread_text}; "
                "call again to go on waiting, with force=True to close them unread, or with more queues to go back"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


async def drained(calls: ResizingCalls, clock: Clock, broker: str, *, wait_ms: int) -> DrainView:
    """`wait_ms` 0: one step, whatever is left. Raises RequestTimeout if something is left after `wait_ms`."""
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        view = await calls.drain_broker(broker)
        if not wait_ms or view.empty:
            return view
        if clock.monotonic_ms() >= deadline_ms:
            raise RequestTimeout(
                f"broker {view.broker_name} has messages to be read after {wait_ms} ms: {_who(view.unfinished)}; "
                f"{view.delayed} delayed messages and open transactions; call again to go on waiting, or resume_broker"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


async def withdrawn(
    calls: ResizingCalls,
    clock: Clock,
    topic: str,
    broker: str,
    *,
    close_unread: bool,
    force: bool,
    dry_run: bool = False,
    wait_ms: int,
) -> WithdrawView:
    """One step with `wait_ms` 0 or `dry_run`. Raises RequestTimeout if something is left after `wait_ms`."""
    if dry_run:
        return await calls.withdraw_topic(topic, broker, close_unread=close_unread, force=force, dry_run=True)
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        view = await calls.withdraw_topic(topic, broker, close_unread=close_unread, force=force)
        if not wait_ms or view.gone:
            return view
        if clock.monotonic_ms() >= deadline_ms:
            raise RequestTimeout(
                f"topic {topic} cannot leave broker {broker} after {wait_ms} ms: to be read {_who(view.unfinished)}; "
                f"{view.unread} messages that no group reads (close_unread=True ends them); {view.delayed} delayed "
                "messages and open transactions; call again to go on waiting, or with force=True to end all of it"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


def _who(left: Iterable[UnfinishedView]) -> str:
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    named = [f"{group} {lag}" for group, lag in lags.most_common(GROUPS_NAMED_MAX)]
    more = len(lags) - len(named)
    return ", ".join(named) + (f" and {more} more groups" if more > 0 else "") or "no group"
