"""Hand-over of a leader with a full disk to a copy in sync that has space (R22); followers report their space.

The core chooses the copy and the interval (`Leader.relief`). The hand-over is that of operators: a leader whose nominee
does not take over continues to lead, and its store writes nothing for it. Run by `replicated_app`.
"""

from __future__ import annotations

import logging

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.store import StoreOptions
from evenq.store.io.disk import Usage
from evenq.store.log import volume
from evenq_broker.core.replication.rules import NOTHING
from evenq_broker.loops.replication.group_control import ReplicaControl
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog

log = logging.getLogger(__name__)

LOOK_MS = 1_000


def has_room(usage: Usage, options: StoreOptions, *, segment_bytes: int, blocks: bool = True) -> bool:
    """True if a copy can still take its reserve, or one log file, before it is as full as this leader."""
    reserve = volume.free_min_bytes(options, usage, blocks=blocks)
    return usage.free - reserve >= max(reserve, segment_bytes)


async def watch_room(
    driver: ReplicaDriver,
    replica_log: ReplicaLog,
    control: ReplicaControl,
    options: StoreOptions,
    *,
    segment_bytes: int,
    blocks: bool,
    clock: Clock,
    group: str,
) -> None:
    """Runs for as long as the broker lives. `options`: of the store; `blocks`: whether it is on a disk."""
    replica, disk, rests_until_ms = driver.replica, replica_log.disk, 0
    while True:
        usage = disk.usage
        free = usage is not None and has_room(usage, options, segment_bytes=segment_bytes, blocks=blocks)
        driver.tell(replica.disk_measured(has_room=free and not disk.problem))
        now_ms = clock.monotonic_ms()
        to = replica.leader.relief(now_ms) if replica_log.full and now_ms >= rests_until_ms else NOTHING
        if to != NOTHING:
            rests_until_ms = now_ms + replica.config.timing.relief_ms  # also if it is rejected before it begins
            log.warning(
                "replica %s: this leader's disk has no space for messages, copy %d has some: it is nominated to lead",
                group,
                to,
                extra={"broker": group, "to": to},
            )
            try:
                await control.hand_over(to)
            except Error as error:
                log.warning("replica %s: %s", group, error.message, extra={"broker": group, "to": to})
        await clock.sleep_ms(LOOK_MS)
