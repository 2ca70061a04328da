"""Whether brokers may be taken away: what each of them holds that a group would miss. Used by both admins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from evenq.client.core.admin.views import BrokerView, DrainView, MissingBrokerView, ScaleInView
from evenq.errors import BadRequest

__all__ = ["scale_in_checked", "why_kept"]


class ScaleInCalls(Protocol):
    """What it needs of the wire."""

    async def list_brokers(self) -> list[BrokerView]:
        """Those that live."""
        ...

    async def list_missing_brokers(self) -> list[MissingBrokerView]:
        """Those that others knew."""
        ...

    async def look_at_broker(self, broker: str) -> DrainView:
        """What it holds; changes nothing."""
        ...


async def scale_in_checked(calls: ScaleInCalls, brokers: Iterable[str], *, allow_unread: bool) -> list[ScaleInView]:
    """One result for each name, in their order; a name that is repeated counts once."""
    if isinstance(brokers, str):
        raise BadRequest(f"brokers is the text {brokers!r}, which would be a broker for each letter; give a list")
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
    """Why a live broker may not be taken away; empty: it may. The one rule, for draining and for looking."""
    if not left.draining:
        return f"it takes messages: `evenq broker drain {name}`"
    if not left.empty:
        return f"it is not read empty: `evenq broker drain {name} --wait 3600`"
    if not allow_unread and (left.unread or left.dead_letters):
        return "no group waits for what it holds: read or replay it, or add --yes"
    if not left.other_writers:
        return "no other broker takes messages"
    return ""
