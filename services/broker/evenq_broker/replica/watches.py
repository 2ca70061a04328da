"""The looks that a copy takes for as long as it lives, in case it leads: has it room, and can anything be confirmed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from evenq.runtime.clock import Clock
from evenq.store import StoreOptions
from evenq.store.io.disk import Disk
from evenq_broker.loops.replication.group_control import ReplicaControl
from evenq_broker.loops.replication.isolation import ServesClients, watch_isolation
from evenq_broker.loops.replication.relief import watch_room
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog
from evenq_broker.settings import BrokerSettings

__all__ = ["watches"]


def watches(
    settings: BrokerSettings, driver: ReplicaDriver, replica_log: ReplicaLog, control: ReplicaControl, *,
    options: StoreOptions, segment_bytes: int, disk: Disk, term: Callable[[], ServesClients | None], clock: Clock,
) -> tuple[Coroutine[None, None, None], ...]:  # fmt: skip
    """To be spawned, each as a task. `options`: of the store; `segment_bytes`: of its log files; `term`: who serves
    clients now.
    """
    group = settings.broker_name
    return (
        watch_room(
            driver, replica_log, control, options, segment_bytes=segment_bytes, blocks=disk.blocks, clock=clock,
            group=group,
        ),
        watch_isolation(driver, replica_log, term=term, clock=clock, group=group),
    )  # fmt: skip
