"""Changing the copies of a broker group, from a program: what takes more than one call. Used by both admins.

A copy that leads is not removed before another one leads. A replacement adds the new copy, waits until it is in sync,
and only then removes the old one, so at no time has a record fewer copies than before.
"""

from __future__ import annotations

from typing import Protocol

from evenq.client.core.broker_group_views import BrokerGroupView
from evenq.client.loops.moving import MovingCalls, leader_moved
from evenq.errors import BadRequest, ConnectionFailed, NotFound, PreconditionFailed, RequestTimeout
from evenq.runtime.clock import Clock

__all__ = ["copy_removed", "copy_replaced"]

LOOK_MS = 250
LEAD_MS = 10_000
"""So long a new leader is waited for."""


class CopyCalls(MovingCalls, Protocol):
    """What it needs of the wire."""

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        """One copy more."""
        ...

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        """One copy less, which does not lead."""
        ...


async def copy_removed(calls: CopyCalls, clock: Clock, broker: str, copy: int) -> BrokerGroupView:
    """Remove a copy; if it leads, let the best other one lead first. Raises what the servers say."""
    group = await _group(calls, broker)
    if group is not None and group.leader == copy and len(group.copies) > 1:
        if len(group.copies) <= group.in_sync_min:
            raise PreconditionFailed(
                f"broker group {broker} needs {group.in_sync_min} copies and has {len(group.copies)}; add another one "
                "first, or need fewer (`evenq broker set-min-in-sync`)"
            )
        moved = await leader_moved(calls, clock, broker, wait_ms=LEAD_MS)
        if not moved.served:
            raise PreconditionFailed(
                f"copy {moved.leader} of broker group {broker} leads now, and was not seen to serve within {LEAD_MS} "
                f"ms; copy {copy} was not removed: try again"
            )
    return await calls.remove_copy(broker, copy)


async def copy_replaced(
    calls: CopyCalls, clock: Clock, broker: str, copy: int, *, new: int, address: str, wait_ms: int
) -> BrokerGroupView:
    """Add the copy `new`, wait until it is in sync, `wait_ms` at most, then remove `copy`. Raises what the servers say,
    and RequestTimeout: then the new one stays, and a repeat goes on.
    """
    if copy == new:
        raise BadRequest(
            f"copy {copy} cannot be replaced by itself: give the new one another number. A disk that was lost needs no "
            "command: start the copy with an empty folder"
        )
    deadline_ms = clock.monotonic_ms() + wait_ms
    known = await _group(calls, broker)
    if known is not None and all(one.copy != copy for one in known.copies):
        numbers = ", ".join(str(one.copy) for one in known.copies)
        raise NotFound(f"broker group {broker} has no copy {copy} to replace; its copies are {numbers}")
    group = await calls.add_copy(broker, new, address)
    while not any(one.copy == new and one.in_sync and one.may_lead for one in group.copies):
        if clock.monotonic_ms() >= deadline_ms:
            raise RequestTimeout(
                f"copy {new} of broker group {broker} was not in sync within {wait_ms:,} ms, and copy {copy} was not "
                f"removed. Is it started, at {address}? Do the same again to go on waiting, or remove copy {new}"
            )
        await clock.sleep_ms(LOOK_MS)
        group = await _group(calls, broker) or group
    return await copy_removed(calls, clock, broker, copy)


async def _group(calls: CopyCalls, broker: str) -> BrokerGroupView | None:
    """None: nobody who answers knows it just now."""
    try:
        cluster = await calls.describe_cluster()
    except (ConnectionFailed, RequestTimeout):
        return None
    return next((group for group in cluster.broker_groups if group.broker_name == broker), None)
