"""What would change if: the same division over other inputs. Pure, touches no decision.

Called by `core/board.py` for the Simulate call, and usable in tests and notebooks as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq.errors import BadRequest
from evenq.model import MessageQueue
from evenq_rebalancer.core.decisions import Decision, Generation, Holding, Inputs, StrategyByName, decide
from evenq_rebalancer.core.groups import MemberFact

__all__ = ["MEMBERS_MAX", "QUEUES_MAX", "Simulation", "simulate"]

MEMBERS_MAX = 1_000
QUEUES_MAX = 4_096  # of a topic on one broker, as in evenq.model.TopicConfig
ROWS_MAX = 100_000  # queues in all, so that one question cannot hold the process up


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The answer; `previous_owner` of each row is the owner now."""

    holdings: tuple[Holding, ...]
    moves: int
    """Queues that would go from one member to another."""
    queues_per_member_min: int
    queues_per_member_max: int


def simulate(
    now: Decision, *, members: int = 0, queues: int = 0, strategy: str = "", now_ms: int, by: StrategyByName
) -> Simulation:
    """Divide again with so many `members`, `queues` per broker and another `strategy`; 0 and empty: as now.

    Fewer members: the last ids go. More: ids are made up that sort behind all others. Raises BadRequest out of range.
    """
    if not 0 <= members <= MEMBERS_MAX:
        raise BadRequest(f"members is {members}, the range is 0 (as now) to {MEMBERS_MAX}")
    if not 0 <= queues <= QUEUES_MAX:
        raise BadRequest(f"queues is {queues}, the range is 0 (as now) to {QUEUES_MAX} per broker")
    inputs = now.inputs
    if members:
        inputs = replace(inputs, members=_so_many(inputs, members))
    if queues:
        inputs = replace(inputs, queues=_so_wide(inputs, queues))
    if strategy:
        inputs = replace(inputs, strategy=strategy)
    rows_count = len(inputs.queues) * (1 + (inputs.mode.pop_share_queue_num if inputs.mode else 0))
    if rows_count > ROWS_MAX:
        raise BadRequest(f"the simulation would have {rows_count} rows, the limit is {ROWS_MAX}; ask for fewer queues")
    then = decide(
        group=now.group,
        topic=now.topic,
        inputs=inputs,
        before=now,
        generation=Generation(0, 0),
        now_ms=now_ms,
        by=by,
    )
    sizes = [len(share) for share in then.shares.values()]
    owner_now = {holding.queue: holding.owner for holding in now.holdings}
    rows = tuple(replace(row, previous_owner=owner_now.get(row.queue, "")) for row in then.holdings)
    return Simulation(
        holdings=rows,
        moves=then.moves,
        queues_per_member_min=min(sizes, default=0),
        queues_per_member_max=max(sizes, default=0),
    )


def _so_many(inputs: Inputs, members: int) -> tuple[MemberFact, ...]:
    kept = inputs.members[:members]
    # '~' sorts behind every letter and digit, so the ids that exist keep their places
    return kept + tuple(MemberFact(client_id=f"~simulated-{number:04}") for number in range(1, members - len(kept) + 1))


def _so_wide(inputs: Inputs, queues: int) -> tuple[MessageQueue, ...]:
    brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in inputs.queues)
    return tuple(
        MessageQueue(topic, broker_name, queue_id) for topic, broker_name in brokers for queue_id in range(queues)
    )
