"""The hand-over of a broker group to another leader: calls the leader, then waits until the new one serves.

The leader's connections end with its term, so its answer may be lost: only the observed leader counts. A repeated call
contains the previous epoch, and so cannot move the group twice. Used by both admins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.client.core.admin.broker_group_views import BrokerGroupView, LeaderMoveView, MoveAnswer
from evenq.client.core.admin.views import ClusterView
from evenq.errors import ConnectionFailed, PreconditionFailed, RequestTimeout
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.admin import AdminCalls

LOOK_MS = 50
LOST_MS = 5_000
"""If no other copy leads this long after a lost answer, the hand-over did not happen."""


async def leader_moved(
    calls: AdminCalls, clock: Clock, broker: str, *, to: int | None = None, wait_ms: int
) -> LeaderMoveView:
    """Moves the leader and waits until it serves. Raises PreconditionFailed if another copy than `to` took over."""
    before = _of(await calls.describe_cluster(), broker)
    begun_ms = clock.monotonic_ms()
    lost: ConnectionFailed | RequestTimeout | None = None
    outcome = MoveAnswer(-1, 0)
    try:
        outcome = await calls.move_leader(broker, to=to, epoch=0 if before is None else before.epoch)
    except (ConnectionFailed, RequestTimeout) as error:
        if before is None:
            raise
        lost = error
    old = None if before is None else before.leader
    if lost is None and outcome.leader == old:
        return LeaderMoveView(
            broker_name=broker, before=old, leader=outcome.leader, epoch=outcome.epoch, served=True, took_ms=0
        )
    deadline_ms = begun_ms + (wait_ms if lost is None else min(wait_ms, LOST_MS))
    epoch_before = 0 if before is None else before.epoch
    while True:
        group = await _look(calls, broker)
        served = group is not None and group.epoch > epoch_before and group.served
        now_ms = clock.monotonic_ms()
        if served or now_ms >= deadline_ms:
            break
        await clock.sleep_ms(LOOK_MS)
    if served:
        assert group is not None
        assert group.leader is not None
        outcome = MoveAnswer(group.leader, group.epoch)
    elif lost is not None:
        raise lost
    if to is not None and outcome.leader != to:
        raise PreconditionFailed(
            f"copy {outcome.leader} of broker group {broker} took over, not copy {to}; check `evenq cluster show`, "
            "then move it again"
        )
    took_ms = now_ms - begun_ms
    return LeaderMoveView(
        broker_name=broker, before=old, leader=outcome.leader, epoch=outcome.epoch, served=served, took_ms=took_ms
    )


async def _look(calls: AdminCalls, broker: str) -> BrokerGroupView | None:
    """Returns the group; None: no broker that answers reports it now."""
    try:
        return _of(await calls.describe_cluster(), broker)
    except (ConnectionFailed, RequestTimeout):
        return None


def _of(cluster: ClusterView, broker: str) -> BrokerGroupView | None:
    return next((group for group in cluster.broker_groups if group.broker_name == broker), None)
