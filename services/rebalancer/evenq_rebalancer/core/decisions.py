"""One decision for a whole (group, topic): who reads what, which version that is, and why.

Called by `core/board.py`. `share` is the pure heart: from the same inputs it always divides alike, so members that are
answered from one decision can never disagree (the weak point of asking any broker, XO-7). `decide` compares with the
decision before and keeps, for each queue, since when and why its owner has it. Three ways to divide:

- a strategy (AVG ...): each queue has one owner among the clustering members;
- none: every member gets every broker, queue id -1, and POP balances by competition (wire contract 6.2);
- a request mode POP with a share number: each member also pops the shares of the next members, as RocketMQ 5 does.

Broadcasting members always get all queues (RB-17).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evenq.allocation import Strategy, by_name, divide
from evenq.errors import BadRequest
from evenq.model import MessageModel, MessageQueue
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.told import NO_GENERATION, Generation, MemberFact

__all__ = [
    "ALL_BROKERS",
    "BROADCASTING",
    "EVERYBODY",
    "NO_GENERATION",
    "Decision",
    "Generation",
    "Holding",
    "Inputs",
    "decide",
    "named",
    "share",
]

ALL_BROKERS = "ALL_BROKERS"
"""What is named as the strategy when every member gets every broker."""
BROADCASTING = "BROADCASTING"
EVERYBODY = "*"
"""The owner of a queue that all members share."""
ALL_QUEUES = -1
NAMED_MAX = 3  # so many members or queues are named in a reason, the rest is counted

Shares = dict[str, tuple[MessageQueue, ...]]
StrategyByName = Callable[[str], Strategy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a division depends on."""

    strategy: str
    """Empty: none was asked for."""
    mode: RequestModeSetting | None
    queues: tuple[MessageQueue, ...]
    """Ascending."""
    members: tuple[MemberFact, ...]
    """Ascending client id."""

    @property
    def dividing(self) -> str:
        """The name of what divides: a strategy, ALL_BROKERS or BROADCASTING."""
        if self.members and not self.clustering:
            return BROADCASTING
        ids = len(self.clustering)
        match self.mode:
            case None:
                return self.strategy or ALL_BROKERS
            case RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=number) if not 0 < number < ids - 1:
                return ALL_BROKERS  # RocketMQ 5: nobody is left outside of the share, so everybody pops everything
        return self.strategy or "AVG"

    @property
    def request_mode(self) -> RequestMode:
        """PULL or POP, for all members."""
        if self.dividing == ALL_BROKERS:
            return RequestMode.POP
        return self.mode.mode if self.mode else RequestMode.PULL

    @property
    def clustering(self) -> list[str]:
        """Ids of the members that share the queues."""
        return [member.client_id for member in self.members if member.model is MessageModel.CLUSTERING]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One queue in one member's hands, or in nobody's."""

    queue: MessageQueue
    owner: str
    """Client id; `*`: every member; empty: nobody."""
    since_ms: int
    """Ms since the epoch."""
    reason: str
    previous_owner: str
    """Who had it before `since_ms`; empty: nobody, or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer for all members of a group about one topic."""

    group: str
    topic: str
    generation: Generation
    inputs: Inputs
    shares: Mapping[str, tuple[MessageQueue, ...]]
    """By client id; a member without queues has an empty tuple."""
    holdings: tuple[Holding, ...]
    """Ascending queue, then owner. Those of clustering members where a group has both kinds."""
    moves: int
    """Queues that changed from one owner to another with this decision."""
    reason: str

    @property
    def strategy(self) -> str:
        """What decided."""
        return self.inputs.dividing

    @property
    def unowned(self) -> int:
        """Number of queues that nobody has."""
        return sum(not holding.owner for holding in self.holdings)

    @property
    def idle(self) -> list[str]:
        """Members without any queue (AL-9), ascending."""
        return [client_id for client_id, queues in self.shares.items() if not queues]

    @property
    def owners(self) -> int:
        """Number of members with at least one queue."""
        return sum(bool(queues) for queues in self.shares.values())


def named(name: str, rooms: Sequence[str]) -> Strategy:
    """The strategy, if a server can decide by it. Raises BadRequest if it is unknown or lacks what it needs."""
    if name == "CONFIG":
        raise BadRequest("CONFIG is each member's own list, a server cannot decide by it; use it in the client only")
    if name == "MACHINE_ROOM" and not rooms:
        raise BadRequest("MACHINE_ROOM needs the rooms to divide; set machine_rooms of the rebalancer, or use NEARBY")
    return by_name(name, rooms=rooms)


def share(group: str, inputs: Inputs, by: StrategyByName) -> Shares:
    """What each member gets. Raises BadRequest where the strategy does (then nothing may change, RB-12)."""
    ids, queues = inputs.clustering, inputs.queues
    shares: Shares = {member.client_id: () for member in inputs.members}
    if not queues:
        return shares
    if inputs.dividing == ALL_BROKERS:
        brokers = dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, ALL_QUEUES) for queue in queues)
        shares |= dict.fromkeys(ids, tuple(brokers))
    elif ids:
        divided = divide(by(inputs.dividing), group, queues, ids)
        shares |= {client_id: tuple(divided[client_id]) for client_id in ids}
        if inputs.mode and inputs.mode.pop_share_queue_num:
            shares |= _popped_together(ids, queues, shares, inputs.mode.pop_share_queue_num)
    shares |= {m.client_id: queues for m in inputs.members if m.model is MessageModel.BROADCASTING}
    return shares


def _popped_together(ids: list[str], queues: tuple[MessageQueue, ...], shares: Shares, number: int) -> Shares:
    """RocketMQ 5's POP sharing: own share and those of the next `number` members; more members than queues: one queue
    each.
    """
    if len(ids) > len(queues):
        return {client_id: (queues[index % len(queues)],) for index, client_id in enumerate(ids)}
    count = len(ids)
    return {
        client_id: tuple(
            dict.fromkeys(queue for step in range(number + 1) for queue in shares[ids[(index + step) % count]])
        )
        for index, client_id in enumerate(ids)
    }


def decide(
    *,
    group: str,
    topic: str,
    inputs: Inputs,
    before: Decision | None,
    generation: Generation,
    now_ms: int,
    by: StrategyByName,
) -> Decision:
    """The decision that follows `before`. `now_ms` is wall time. Raises BadRequest where the strategy does."""
    shares = share(group, inputs, by)
    reason = _difference(before.inputs if before else None, inputs)
    holdings = _holdings(inputs, shares, before, reason=reason, now_ms=now_ms)
    kept = set(before.holdings if before else ())
    moves = sum(holding not in kept and _moved(holding) for holding in holdings)
    return Decision(
        group=group,
        topic=topic,
        generation=generation,
        inputs=inputs,
        shares=shares,
        holdings=holdings,
        moves=moves,
        reason=reason + _mismatch(topic, inputs),
    )


def _holdings(
    inputs: Inputs, shares: Shares, before: Decision | None, *, reason: str, now_ms: int
) -> tuple[Holding, ...]:
    owners = _owners(inputs, shares)
    old: dict[MessageQueue, dict[str, Holding]] = {}
    for holding in before.holdings if before else ():
        old.setdefault(holding.queue, {})[holding.owner] = holding
    holdings: list[Holding] = []
    for queue in sorted(owners):
        held = old.get(queue, {})
        lost = [owner for owner in held if owner not in owners[queue]]
        previous = lost[0] if len(lost) == 1 else ""
        holdings.extend(
            held.get(owner)
            or Holding(queue=queue, owner=owner, since_ms=now_ms, reason=reason, previous_owner=previous)
            for owner in owners[queue]
        )
    return tuple(holdings)


def _owners(inputs: Inputs, shares: Shares) -> dict[MessageQueue, list[str]]:
    """Who has each queue; nobody is the empty name."""
    if not inputs.members:
        return {queue: [""] for queue in inputs.queues}
    if inputs.dividing == BROADCASTING:
        return {queue: [EVERYBODY] for queue in inputs.queues}
    ids = inputs.clustering
    if inputs.dividing == ALL_BROKERS:
        return {queue: [EVERYBODY] for queue in shares[ids[0]]}
    owners: dict[MessageQueue, list[str]] = {queue: [] for queue in inputs.queues}
    for client_id in ids:
        for queue in shares[client_id]:
            owners[queue].append(client_id)
    return {queue: names or [""] for queue, names in owners.items()}


def _moved(holding: Holding) -> bool:
    """True if one member gave the queue to another."""
    return not {holding.owner, holding.previous_owner} & {"", EVERYBODY}


def _difference(before: Inputs | None, now: Inputs) -> str:
    """Why a new decision was due, as one phrase."""
    if before is None:
        return "first decision for this group and topic"
    old, new = {m.client_id for m in before.members}, {m.client_id for m in now.members}
    parts = [
        _counted([m.client_id for m in now.members if m.client_id not in old], "joined"),
        _counted([m.client_id for m in before.members if m.client_id not in new], "left"),
    ]
    if before.queues != now.queues:
        parts.append(f"queues changed from {len(before.queues)} to {len(now.queues)}")
    if before.dividing != now.dividing:
        parts.append(f"strategy changed from {before.dividing} to {now.dividing}")
    elif before.mode != now.mode:
        parts.append("the request mode was set")
    if before.members != now.members and old == new:
        parts.append("a member changed its model or subscription")
    return "; ".join(part for part in parts if part) or "asked again"


def _counted(names: list[str], verb: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{', '.join(names[:NAMED_MAX])}{more} {verb}"


def _mismatch(topic: str, inputs: Inputs) -> str:
    """RG-8 is not enforced, so a member may own queues of a topic that it does not read: told, not changed."""
    strangers = [member.client_id for member in inputs.members if member.topics and topic not in member.topics]
    if not strangers or len(strangers) == len(inputs.members):
        return ""
    verb = "does" if len(strangers) == 1 else "do"
    return f"; {_counted(strangers, f'{verb} not subscribe to {topic}')}, though all members of a group should"
