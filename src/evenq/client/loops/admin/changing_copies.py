"""Changes to the copies of a broker group that need several calls. Used by both admins.

A copy that leads is not removed before another one leads. A replacement adds the new copy, waits until it is in sync,
and then removes the old one: no record ever has fewer copies than before. A group that grows requires more copies in
sync only once they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evenq.client.core.admin.broker_group_views import BrokerGroupView
from evenq.client.loops.admin.moving import leader_moved
from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    HaNotAvailable,
    NotFound,
    PreconditionFailed,
    RequestTimeout,
)
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.admin import AdminCalls

LOOK_MS = 250
LEAD_MS = 10_000
"""Longest wait for a new leader."""


async def copy_removed(calls: AdminCalls, clock: Clock, broker: str, copy: int) -> BrokerGroupView:
    """Removes a copy; if it leads, first moves the leader to the best other copy. Raises the servers' errors."""
    group = await _group(calls, broker)
    if group is not None and group.leader == copy and len(group.copies) > 1:
        if len(group.copies) <= group.in_sync_min:
            raise PreconditionFailed(
                f"broker group {broker} needs {group.in_sync_min} copies and has {len(group.copies)}; add another one "
                "first, or require fewer (`evenq broker set-min-in-sync`)"
            )
        if group.in_sync <= group.in_sync_min:  # the next leader would reject the removal
            missing = ", ".join(f"copy {one.copy}" for one in group.copies if not one.in_sync)
            raise PreconditionFailed(
                f"without copy {copy} fewer than the {group.in_sync_min} copies that broker group {broker} needs would "
                f"be in sync; not in sync: {missing}. Nothing was changed, and copy {copy} still leads"
            )
        moved = await leader_moved(calls, clock, broker, wait_ms=LEAD_MS)
        if not moved.served:
            raise PreconditionFailed(
                f"copy {moved.leader} of broker group {broker} leads now, and was not seen to serve within {LEAD_MS} "
                f"ms; copy {copy} was not removed: try again"
            )
    return await calls.remove_copy(broker, copy)


async def copy_replaced(
    calls: AdminCalls, clock: Clock, broker: str, copy: int, *, new: int, address: str, wait_ms: int
) -> BrokerGroupView:
    """Adds the copy `new`, waits until it is in sync, at most `wait_ms`, then removes `copy`. Raises the servers'
    errors, and RequestTimeout: then the new copy stays, and a repeated call continues.
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
                f"removed. Is it started, at {address}? Repeat the call to continue waiting, or remove copy {new}"
            )
        await clock.sleep_ms(LOOK_MS)
        group = await _group(calls, broker) or group
    return await copy_removed(calls, clock, broker, copy)


async def copies_grown(
    calls: AdminCalls, clock: Clock, broker: str, members: Mapping[int, str], *, in_sync_min: int, wait_ms: int
) -> BrokerGroupView:
    """Adds the `members` (copy -> address) that the group lacks, waits until all are in sync, then requires
    `in_sync_min` of them. Changes nothing in a complete group. Continues after calls that fail while brokers restart.

    Raises BadRequest for fewer members than `in_sync_min`, and RequestTimeout after `wait_ms`: then finished steps
    stay, and a repeated call continues.
    """
    if in_sync_min > len(members):
        raise BadRequest(f"{in_sync_min} copies cannot be in sync, as the group is to have {len(members)}")
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        missing = f"no broker that answers reports broker group {broker}"
        try:
            group = await _group(calls, broker)
            if group is not None:
                missing = await _grow(calls, group, members, in_sync_min)
                if not missing:
                    return group
        except (ConnectionFailed, RequestTimeout, HaNotAvailable, NotFound, PreconditionFailed) as error:
            missing = error.message
        if clock.monotonic_ms() >= deadline_ms:
            raise RequestTimeout(f"not done within {wait_ms:,} ms: {missing}. Repeat the call to continue")
        await clock.sleep_ms(LOOK_MS)


def must_accept(accept_data_loss: bool) -> None:
    """Raises BadRequest unless the caller accepts the loss of acknowledged messages."""
    if accept_data_loss is not True:
        raise BadRequest(
            "an unclean election gives up acknowledged messages: pass accept_data_loss=True once every copy that may "
            "lead is lost for good; plan_unclean_election returns what would be lost"
        )


async def _grow(calls: AdminCalls, group: BrokerGroupView, members: Mapping[int, str], in_sync_min: int) -> str:
    """Executes the next step. Returns what is missing, as a text; empty: nothing is."""
    broker = group.broker_name
    if not group.mode:
        return f"broker {broker} has no copies: it was not restarted with its replication settings yet"
    present = {one.copy for one in group.copies}
    absent = sorted(members.keys() - present)
    for copy in absent:
        await calls.add_copy(broker, copy, members[copy])
    behind = [one.copy for one in group.copies if one.copy in members and not (one.in_sync and one.may_lead)]
    if absent or behind:
        return f"copies {', '.join(map(str, sorted([*absent, *behind])))} of broker group {broker} are not in sync"
    if group.in_sync_min < in_sync_min:
        await calls.set_in_sync_min(broker, in_sync_min)
        return f"broker group {broker} needs {group.in_sync_min} copies in sync, not {in_sync_min}"
    return ""


async def _group(calls: AdminCalls, broker: str) -> BrokerGroupView | None:
    """Returns the group; None: no broker that answers reports it now."""
    try:
        cluster = await calls.describe_cluster()
    except (ConnectionFailed, RequestTimeout):
        return None
    return next((group for group in cluster.broker_groups if group.broker_name == broker), None)
