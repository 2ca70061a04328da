"""The warning for a caller that gives a group the strategy MACHINE_ROOM: it gives no member anything without rooms
(AL-20).
"""

from __future__ import annotations

from evenq.errors import BadRequest
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.runtime import Runtime

__all__ = ["about_rooms"]


def about_rooms(runtime: Runtime, group: str, *, membership: GroupTables) -> list[str]:
    """Warnings, if this broker knows of no room and so cannot say that there are any. Raises BadRequest if there can be
    none: without a rebalancer.
    """
    settings = runtime.settings
    if not settings.rebalancer:
        raise BadRequest(
            "MACHINE_ROOM divides the queues of rooms, which only a rebalancer knows, and this cluster has none: "
            "take MACHINE_ROOM_NEARBY-AVG, or give each consumer strategy=MachineRoom(frozenset({'room-1'}))"
        )
    if settings.zone or any(member.zone for member in membership.members.members(group)):
        return []
    warning = (
        f"MACHINE_ROOM divides the queues of rooms, and broker {settings.broker_name} knows of none. Unless the "
        "rebalancer does (its setting machine_rooms, or the zones of its Kubernetes nodes), no member gets a queue: "
        f"set `zone` of brokers and consumers. evenq group doctor {group} says whether it works"
    )
    return [warning]
