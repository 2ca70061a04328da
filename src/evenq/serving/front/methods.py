"""Everything that a server serves: a program's own calls, and health and reflection beside them.

Called by both servers. Calls come back resolved, so that clients may name things in any way.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenq.serving.auth.namespaces import resolved
from evenq.serving.front import reflection
from evenq.serving.front.health import Health
from evenq.serving.rpc import Rpc

__all__ = ["all_served"]


def all_served(rpcs: Sequence[Rpc], health: Health) -> list[Rpc]:
    """Raises ValueError if two of them have one method."""
    served = [*health.rpcs(), *reflection.rpcs([rpc.method for rpc in rpcs]), *rpcs]
    if len({rpc.method for rpc in served}) != len(served):
        raise ValueError("two Rpcs have one method")
    return [resolved(rpc) for rpc in served]
