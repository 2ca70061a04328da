"""Every call that a broker answers, gathered from the modules that do.

`Broker.rpcs` asks for it once, for the door. Which broker a call is for is settled here, in front of all handlers
(`rpc.directing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.serving.rpc import Rpc
from evenq_broker.rpc import (
    admin,
    admin_v2,
    client_list,
    cluster,
    data,
    dead_letters,
    diagnosis,
    groups,
    messaging,
    offsets,
    peers,
    queries,
    resizing,
    routing,
    staging,
    telemetry,
    tracing,
    transactions,
)
from evenq_broker.rpc.directing import directed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["every_call"]

_MODULES = (
    messaging, telemetry, routing, admin_v2, data, dead_letters, diagnosis, groups, admin, cluster, offsets, peers,
    transactions, queries, tracing, client_list, resizing, staging,
)  # fmt: skip


def every_call(broker: Broker) -> list[Rpc]:
    """The calls with their handlers; those that name another broker go on to it."""
    return directed(broker, [rpc for module in _MODULES for rpc in module.rpcs(broker)])
