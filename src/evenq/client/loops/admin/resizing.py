"""The shrinking of topics and draining of brokers: calls are repeated until nothing is left to wait for.

Brokers keep the state between the steps, so a call that timed out can be repeated. Used by both admins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evenq.client.core.admin.views import (
    DrainView,
    ResizeView,
    ScaleInView,
    UnfinishedView,
    WithdrawView,
)
from evenq.errors import BadRequest, Error, RequestTimeout
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.admin import AdminCalls

AGAIN_MS = 500
GROUPS_NAMED_MAX = 5
SCHEDULES_NAMED_MAX = 5


async def scaled(
    calls: AdminCalls,
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
    """Repeats steps until done; one step with `wait_ms` 0 or `dry_run`. Raises RequestTimeout after `wait_ms`."""
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
                "call again to wait longer, with force=True to close them unread, or with more queues to undo it"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


async def drained(calls: AdminCalls, clock: Clock, broker: str, *, wait_ms: int) -> DrainView:
    """Repeats steps until the broker is empty; one step with `wait_ms` 0. Raises RequestTimeout after `wait_ms`."""
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        view = await _drain_step(calls, broker)
        if not wait_ms or view.empty:
            return view
        if clock.monotonic_ms() >= deadline_ms:
            raise RequestTimeout(
                f"broker {view.broker_name} has messages to be read after {wait_ms} ms: {_who(view.unfinished)}; "
                f"{view.delayed} delayed messages and open transactions; call again to wait longer, or resume_broker"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


async def _drain_step(calls: AdminCalls, broker: str) -> DrainView:
    """Drains, and moves schedules to other brokers; one that cannot be moved stays, with the reason in the result."""
    view = await calls.drain_broker(broker)
    if not view.schedules:
        return view
    problems: dict[str, str] = {}
    for one in view.schedule_names:
        topic, _, name = one.partition(" ")
        try:
            await calls.move_schedule(topic, name, "")
        except Error as error:
            problems[one] = error.message
    view = await calls.drain_broker(broker)
    return replace(view, schedule_problems={one: problems[one] for one in view.schedule_names if one in problems})


async def withdrawn(
    calls: AdminCalls,
    clock: Clock,
    topic: str,
    broker: str,
    *,
    close_unread: bool,
    force: bool,
    dry_run: bool = False,
    wait_ms: int,
) -> WithdrawView:
    """Repeats steps until done; one step with `wait_ms` 0 or `dry_run`. Raises RequestTimeout after `wait_ms`."""
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
                f"{view.unread} messages that no group reads and {view.schedules} schedules (close_unread=True ends "
                f"them); {view.delayed} delayed messages and open transactions; call again to wait longer, or with "
                "force=True to end all of it"
            )
        await clock.sleep_ms(min(AGAIN_MS, deadline_ms - clock.monotonic_ms()))


def schedules_text(count: int, names: Sequence[str]) -> str:
    """Returns the number of schedules and the first names."""
    shown = [*names[:SCHEDULES_NAMED_MAX]]
    more = f" and {count - len(shown)} more" * (count > len(shown))
    return f"{count} schedule{'s' * (count != 1)} ({', '.join(shown)}{more})"


def problems_text(problems: Mapping[str, str]) -> str:
    """Returns a sentence for each of the first schedules that could not be moved, with a space before it."""
    return "".join(f" Schedule {one} stays: {why}." for one, why in [*problems.items()][:SCHEDULES_NAMED_MAX])


def _who(left: Iterable[UnfinishedView]) -> str:
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    named = [f"{group} {lag}" for group, lag in lags.most_common(GROUPS_NAMED_MAX)]
    more = len(lags) - len(named)
    return ", ".join(named) + (f" and {more} more groups" if more > 0 else "") or "no group"


async def scale_in_checked(calls: AdminCalls, brokers: Iterable[str], *, allow_unread: bool) -> list[ScaleInView]:
    """Checks whether brokers may be removed: whether a group would lose messages. Returns one result for each distinct
    name, in order.
    """
    if isinstance(brokers, str):
        raise BadRequest(f"brokers is the text {brokers!r}; give a list of broker names")
    live = sorted(broker.name for broker in await calls.list_brokers())
    missing = {broker.name for broker in await calls.list_missing_brokers()}
    results = []
    for name in dict.fromkeys(brokers):
        left = await calls.look_at_broker(name) if name in live else None
        state = "LIVE" if left is not None else "MISSING" if name in missing else "UNKNOWN"
        problem = f"no broker has that name; the cluster has {', '.join(live)}"
        if left is not None:
            problem = why_kept(name, left, allow_unread=allow_unread)
        elif name in missing:
            problem = f"it is not there: start it, or `evenq broker forget {name} --yes`"
        results.append(ScaleInView(broker_name=name, state=state, problem=problem, left=left))
    return results


def why_kept(name: str, left: DrainView, *, allow_unread: bool) -> str:
    """Returns why a live broker may not be removed; empty: it may. The only rule, for drains and for checks."""
    if not left.draining:
        return f"it accepts messages: `evenq broker drain {name}`"
    if not left.empty:
        return f"groups have not read all of it: `evenq broker drain {name} --wait 3600`"
    if not allow_unread and (left.unread or left.dead_letters):
        return "it holds messages that no group waits for: read or replay them, or add --yes"
    if not allow_unread and left.schedules:
        return (
            f"it keeps {schedules_text(left.schedules, left.schedule_names)}, which nothing sends without it: `evenq "
            "schedule move TOPIC NAME` or `evenq schedule delete TOPIC NAME`, or add --yes"
        )
    if not left.other_writers:
        return "no other broker accepts messages"
    return ""
