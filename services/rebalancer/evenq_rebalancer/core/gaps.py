"""Log sentences about the gaps of a decision: queues without an owner, rooms without a reader, members without a queue
(AL-9, AL-14, AL-20). Pure; the loop that publishes decisions logs each sentence once, and again when it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenq.allocation import coverage
from evenq.model import MessageQueue
from evenq.model.names import is_system_topic
from evenq_rebalancer.core.decisions import Decision

NAMED_MAX = 5


def gaps(decision: Decision) -> str:
    """Returns the queues that no member reads, as a sentence; empty if every queue has a reader or is held."""
    inputs = decision.inputs
    if not inputs.one_owner or not decision.shares or not decision.unowned:
        return ""
    seen = coverage(inputs.queues, decision.shares, inputs.zones)
    unowned = [queue for queue in seen.unowned if queue not in inputs.held]
    rooms = f", all of rooms {', '.join(seen.uncovered_rooms[:NAMED_MAX])} among them" if seen.uncovered_rooms else ""
    count = f"{len(unowned)} of {len(inputs.queues)}"
    return (
        f"{decision.strategy} gives {count} queues to no member ({_named(unowned)}){rooms}; "
        f"run evenq group doctor {decision.group} for advice"
    )


def idle(decision: Decision) -> str:
    """Returns the members without a queue, as a sentence; empty if all have one, and for system topics."""
    if not decision.inputs.one_owner or not decision.idle or is_system_topic(decision.topic):
        return ""
    return f"{len(decision.idle)} of {len(decision.shares)} members have no queue, among them {decision.idle[0]}"


def _named(queues: Sequence[MessageQueue]) -> str:
    named = [f"{queue.broker_name}/{queue.queue_id}" for queue in queues[:NAMED_MAX]]
    more = [f"{len(queues) - NAMED_MAX} more"] if len(queues) > NAMED_MAX else []
    return ", ".join([*named, *more])
