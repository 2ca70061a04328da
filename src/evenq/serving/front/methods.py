"""All calls of a server: those of the program, and health and reflection.

Used by both servers. The calls are wrapped in `resolved`, so that clients may use any namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenq.serving.auth.namespaces import resolved
from evenq.serving.front import reflection
from evenq.serving.front.health import Health
from evenq.serving.rpc import Rpc


def all_served(rpcs: Sequence[Rpc], health: Health) -> list[Rpc]:
    """Returns all calls. Raises ValueError if two of them have one method."""
    served = [*health.rpcs(), *reflection.rpcs([rpc.method for rpc in rpcs]), *rpcs]
    if len({rpc.method for rpc in served}) != len(served):
        raise ValueError("two Rpcs have one method")
    return [resolved(rpc) for rpc in served]
