"""Sentences for people: why a decision was due, why a queue is held, why a member has no queue. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.inputs import ALL_BROKERS, Inputs

NAMED_MAX = 3  # members named in a reason; the rest is counted
FIRST_DECISION = "first decision for this group and topic"
ASKED_AGAIN = "computed again"


def difference(before: Inputs | None, now: Inputs) -> str:
    """Returns why a new decision was due."""
    if before is None:
        return FIRST_DECISION
    old, new = {m.client_id for m in before.members}, {m.client_id for m in now.members}
    parts = [
        _counted([m.client_id for m in now.members if m.client_id not in old], "joined"),
        _counted([m.client_id for m in before.members if m.client_id not in new], "left"),
        _holds(before, now),
    ]
    if before.queues != now.queues:
        parts.append(f"queues changed from {len(before.queues)} to {len(now.queues)}")
    if before.dividing != now.dividing:
        parts.append(f"strategy changed from {before.dividing} to {now.dividing}")
    elif before.mode != now.mode:
        parts.append("the request mode was set")
    if before.balance != now.balance:
        parts.append("the group's balance policy was set")
    if before.zones != now.zones or (old == new and before.zone_of_member != now.zone_of_member):
        parts.append("zones changed")
    elif before.members != now.members and old == new:
        parts.append("a member changed its model or subscription")
    return "; ".join(part for part in parts if part) or ASKED_AGAIN


def mismatch(topic: str, inputs: Inputs) -> str:
    """Returns the members that do not read this topic although others do, and so get no queue (RG-8); empty: none."""
    strangers = inputs.strangers
    if not strangers:
        return ""
    verb = "does" if len(strangers) == 1 else "do"
    return f"; {_counted(strangers, f'{verb} not subscribe to {topic}')}, though all members of a group should"


def instead(inputs: Inputs, problem: str) -> str:
    """Returns that another strategy divides than the group's own, and why; empty: its own does."""
    return f"; {inputs.dividing} divides in place of {inputs.instead_of}: {problem}" if inputs.instead_of else ""


def waiting(hold: Hold) -> str:
    """Returns why a queue has no owner for now, and until when."""
    until = datetime.fromtimestamp(hold.until_wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{hold.client_id} left and {hold.place} is being refilled: held for its successor until {until}"


def idleness(inputs: Inputs, client_id: str) -> str:
    """Returns why a member has no queue of the topic."""
    if client_id in inputs.strangers:
        return f"it does not subscribe to {inputs.topic}, which others in the group do"
    readers, queues = len(inputs.readers), len(inputs.queues)
    if not queues:
        return "the topic has no readable queue"
    if inputs.dividing == ALL_BROKERS:
        return "no broker has a readable queue"
    free = queues - len(inputs.held)
    if readers > free:
        held = f", {len(inputs.held)} of them held for successors" if inputs.held else ""
        return f"{readers} members share {queues} queues{held}; add queues, or run {max(free, 1)} members at most"
    return f"{inputs.dividing} gives it none of the {free} queues"


def _holds(before: Inputs, now: Inputs) -> str:
    began = _names(hold for queue, hold in now.held.items() if queue not in before.held)
    ended = _names(hold for queue, hold in before.held.items() if queue not in now.held)
    parts = [
        f"queues held for successors of {began}" if began else "",
        f"queues held for successors of {ended} given out" if ended else "",
    ]
    return "; ".join(part for part in parts if part)


def _names(holds: Iterable[Hold]) -> str:
    return _counted(list(dict.fromkeys(hold.client_id for hold in holds)), "").rstrip()


def _counted(names: list[str], verb: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more} {verb}"
