"""Simulation of a changed group: the same division over other inputs. Pure, changes no decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evenq.errors import BadRequest
from evenq.model import Generation, MessageQueue
from evenq_rebalancer.core.decisions import Decision, QueueOwnership, decide
from evenq_rebalancer.core.inputs import ALL_BROKERS, Inputs
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import ALL_MEMBERS, EQUAL_WEIGHTS, StrategyByName

MEMBERS_MAX = 1_000
QUEUES_MAX = 4_096  # of a topic on one broker, as in evenq.model.TopicConfig
ROWS_MAX = 100_000  # queues times their owners, so that one call cannot block the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Imagined change. 0 and empty: as now."""

    members: int = 0
    """Fewer: the last ids leave. More: new ids sort after all others."""
    queues: int = 0
    """Per broker."""
    strategy: str = ""
    lose_zone: str = ""
    """Zone whose members and brokers are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Result of a simulation; `previous_owner` of each row is the current owner."""

    holdings: tuple[QueueOwnership, ...]
    moves: int
    """Queues that would go from one member to another."""
    queues_per_member_min: int
    queues_per_member_max: int
    cross_zone_now: int
    """Queues whose owner is in another zone than their broker."""
    cross_zone_then: int
    topic_queues: int
    """Readable queues that the topic would have."""
    strategy: str
    """Strategy that would divide them."""


def simulate(
    now: Decision,
    wish: Wish,
    *,
    now_ms: int,
    by: StrategyByName,
    weights: Mapping[MessageQueue, float] = EQUAL_WEIGHTS,
) -> Simulation:
    """Returns the division after the imagined change. Raises BadRequest for numbers out of range or an unknown zone."""
    if not 0 <= wish.members <= MEMBERS_MAX:
        raise BadRequest(f"members is {wish.members}, the range is 0 (as now) to {MEMBERS_MAX}")
    if not 0 <= wish.queues <= QUEUES_MAX:
        raise BadRequest(f"queues is {wish.queues}, the range is 0 (as now) to {QUEUES_MAX} per broker")
    if now.inputs.own_strategies:
        now = _by_members(now, now_ms=now_ms, by=by)
    inputs = now.inputs
    if wish.lose_zone:
        inputs = _without_zone(inputs, wish.lose_zone)
    if wish.members:
        inputs = replace(inputs, members=_so_many(inputs, wish.members))
    if wish.queues:
        inputs = replace(inputs, queues=_so_wide(inputs, wish.queues))
    if wish.strategy:
        inputs = replace(inputs, strategy=wish.strategy, instead_of="")
    rows_count = len(inputs.queues) * (1 + inputs.shared)
    if rows_count > ROWS_MAX:
        raise BadRequest(f"the simulation would have {rows_count} rows, the limit is {ROWS_MAX}; give fewer queues")
    then = decide(
        group=now.group,
        topic=now.topic,
        inputs=inputs,
        before=now,
        generation=Generation(0, 0),
        now_ms=now_ms,
        by=by,
        weights=weights,
    )
    every = inputs.dividing == ALL_BROKERS
    sizes = [len(inputs.queues) if every and share else len(share) for share in then.shares.values()]
    owner_now = dict(zip(now.rows.queues, now.rows.owners, strict=True))
    default = ALL_MEMBERS if now.inputs.dividing == ALL_BROKERS else ""
    rows = tuple(replace(row, previous_owner=owner_now.get(row.queue, default)) for row in then.holdings)
    return Simulation(
        holdings=rows,
        moves=then.moves,
        queues_per_member_min=min(sizes, default=0),
        queues_per_member_max=max(sizes, default=0),
        cross_zone_now=now.cross_zone,
        cross_zone_then=then.cross_zone,
        topic_queues=len(inputs.queues),
        strategy=then.strategy,
    )


def _by_members(now: Decision, *, now_ms: int, by: StrategyByName) -> Decision:
    """Returns the division that members make by themselves in a group without a strategy. Raises BadRequest."""
    strategies = now.inputs.own_strategies
    if len(strategies) > 1:
        raise BadRequest(
            f"the members divide the queues by themselves with different strategies ({', '.join(strategies)}); give "
            f"all the same one, or set the group's: evenq group create {now.group} --strategy NAME"
        )
    owners = tuple(member for member in now.inputs.members if member.owns)
    try:
        return decide(
            group=now.group,
            topic=now.topic,
            inputs=replace(now.inputs, strategy=strategies[0], mode=None, members=owners),
            before=None,
            generation=now.generation,
            now_ms=now_ms,
            by=by,
        )
    except BadRequest as error:
        raise BadRequest(f"the members divide the queues by themselves by {strategies[0]}: {error.message}") from error


def _without_zone(inputs: Inputs, zone: str) -> Inputs:
    lost = {name for name, there in inputs.zones.items() if there == zone}
    members = tuple(member for member in inputs.members if member.zone != zone)
    if not lost and len(members) == len(inputs.members):
        known = sorted({*inputs.zones.values(), *inputs.zone_of_member.values()})
        raise BadRequest(f"nothing is known to be in zone {zone!r}; known zones: {', '.join(known) or 'none'}")
    queues = tuple(queue for queue in inputs.queues if queue.broker_name not in lost)
    held = {queue: hold for queue, hold in inputs.held.items() if queue.broker_name not in lost}
    return replace(inputs, members=members, queues=queues, held=held)


def _so_many(inputs: Inputs, members: int) -> tuple[MemberFact, ...]:
    kept = inputs.members[:members]
    # '~' sorts after every letter and digit, so existing ids keep their positions
    like = kept[0] if kept else MemberFact(client_id="")
    return kept + tuple(
        MemberFact(client_id=f"~simulated-{number:04}", owns=like.owns, strategy=like.strategy)
        for number in range(1, members - len(kept) + 1)
    )


def _so_wide(inputs: Inputs, queues: int) -> tuple[MessageQueue, ...]:
    brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in inputs.queues)
    return tuple(
        MessageQueue(topic, broker_name, queue_id) for topic, broker_name in brokers for queue_id in range(queues)
    )
