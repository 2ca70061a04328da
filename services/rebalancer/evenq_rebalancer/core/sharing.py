"""The division of queues among members. Pure: the same arguments give the same division, for all members (XO-7).

- With a strategy (AVG, STICKY ...) each queue has one owner among the clustering members.
- Without one every member gets every broker, queue id -1, and POP balances by competition (wire contract 6.2).
- With request mode POP and a share number each member also pops the shares of the next members, as in RocketMQ 5.

Broadcasting members always get all queues (RB-17). Strategies may be user code: any exception, and any unknown or
repeated queue or member, becomes one BadRequest that names the strategy, and nothing changes (RB-12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from evenq.allocation import Context, Strategy, by_name, divide, verified
from evenq.allocation.strategy import ContextDivider
from evenq.errors import BadRequest
from evenq.model import MessageModel, MessageQueue
from evenq.model.balance import Weight
from evenq_rebalancer.core.inputs import ALL_BROKERS, BROADCASTING, Inputs

ALL_MEMBERS = "*"
"""The owner of a queue that all members share."""
ALL_QUEUES = -1
EQUAL_WEIGHTS: Mapping[MessageQueue, float] = MappingProxyType({})
"""No weights: every queue counts the same."""

Shares = dict[str, tuple[MessageQueue, ...]]
StrategyByName = Callable[[str], Strategy]
Owners = Callable[[], Mapping[MessageQueue, str]]
"""Returns the previous owners; called only for strategies that use them."""


def no_owners() -> Mapping[MessageQueue, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Division:
    """Result of a division. `queues` and `owners` are parallel: one row for each owner of each queue."""

    shares: Shares
    """Queues by client id, for all members in their order."""
    queues: Sequence[MessageQueue]
    """Ascending. Where every member gets every broker: one with id -1 per broker."""
    owners: list[str]
    """Client id, `*` for every member, empty for none."""
    one_row_each: bool = True
    """False if a queue may have several owners."""


def named(name: str, rooms: Sequence[str], *, zones: bool = False) -> Strategy:
    """Returns the strategy. Raises BadRequest if it is unknown, or a server cannot decide by it.

    `zones`: zones are known, and serve as rooms where none are set.
    """
    if name == "CONFIG":
        raise BadRequest("CONFIG is each member's own list, a server cannot decide by it; use it in the client only")
    if name == "MACHINE_ROOM" and not rooms and not zones:
        raise BadRequest(
            "MACHINE_ROOM needs the rooms to divide; set machine_rooms of the rebalancer, or zones, or use NEARBY"
        )
    return by_name(name, rooms=rooms)


def divided(
    group: str,
    inputs: Inputs,
    by: StrategyByName,
    *,
    owners: Owners = no_owners,
    weights: Mapping[MessageQueue, float] = EQUAL_WEIGHTS,
) -> Division:
    """Divides the queues among the members. Raises BadRequest where the strategy does (RB-12)."""
    ids, queues = inputs.readers, inputs.queues
    shares: Shares = {member.client_id: () for member in inputs.members}
    rows: Sequence[MessageQueue] = queues
    names = [""] * len(queues)
    if not queues:
        return Division(shares, queues, names)
    if inputs.dividing == ALL_BROKERS:
        if inputs.clustering:
            rows = list(dict.fromkeys(MessageQueue(queue.topic, queue.broker_name, ALL_QUEUES) for queue in queues))
            shares |= dict.fromkeys(inputs.clustering, tuple(rows))
            names = [ALL_MEMBERS] * len(rows)
    elif inputs.dividing == BROADCASTING:
        names = [ALL_MEMBERS] * len(queues)
    elif ids:
        # Strategies do not see held queues, so that none, and no user's own, must handle holds.
        free = [queue for queue in queues if queue not in inputs.held] if inputs.held else queues
        if free:
            names = _by_strategy(group, inputs, free, by, owners, weights, shares)
        if inputs.shared:
            shares |= _popped_together(ids, queues, shares, inputs.shared)
            rows, names = _rows(queues, ids, shares)
    shares |= {m.client_id: queues for m in inputs.members if m.model is MessageModel.BROADCASTING}
    return Division(shares, rows, names, one_row_each=not inputs.shared)


def _by_strategy(
    group: str,
    inputs: Inputs,
    free: Sequence[MessageQueue],
    by: StrategyByName,
    owners: Owners,
    weights: Mapping[MessageQueue, float],
    shares: Shares,
) -> list[str]:
    """Divides by the strategy into `shares`. Returns the owner of each of the inputs' queues."""
    name, ids, queues = inputs.dividing, inputs.readers, inputs.queues
    strategy = by(name)
    context = Context(
        owners=owners() if isinstance(strategy, ContextDivider) else {},
        zone_of_broker=inputs.zones,
        zone_of_member=inputs.zone_of_member,
        weight_of_queue=weights if inputs.balance.weight is Weight.LAG else {},
        capacity_of_member=_capacities(inputs) if inputs.balance.weight is Weight.CAPACITY else {},
        moves_max=inputs.balance.moves_max,
    )
    try:
        given = divide(strategy, group, free, ids, context)
        owners_now = _owners_by_place(given, queues, free, set(ids))
        if owners_now is None:
            verified(given, free, ids, strategy=name)  # slower, and raises with the exact fault
    except BadRequest:
        raise
    except Exception as error:  # user code may raise anything
        raise BadRequest(f"strategy {name} failed with {type(error).__name__}: {str(error)[:200]}") from error
    if owners_now is None:
        raise BadRequest(f"strategy {name} gives a queue twice")
    shares |= {client_id: tuple(mine) for client_id, mine in given.items()}
    return owners_now


def _owners_by_place(
    given: Mapping[str, Sequence[MessageQueue]],
    queues: Sequence[MessageQueue],
    free: Sequence[MessageQueue],
    ids: set[str],
) -> list[str] | None:
    """Returns the owner of each queue; None if the result of a strategy is not valid. Queues are compared by identity,
    which is much cheaper than hashing, and by value only where a strategy made new objects.
    """
    places = {id(queue): index for index, queue in enumerate(queues)}
    place_of = places if free is queues else {id(queue): places[id(queue)] for queue in free}
    by_value: dict[MessageQueue, int] = {}
    owners = [""] * len(queues)
    for client_id, mine in given.items():
        if client_id not in ids:
            return None
        for queue in mine:
            index = place_of.get(id(queue))
            if index is None:
                by_value = by_value or {known: places[id(known)] for known in free}
                index = by_value.get(queue)
            if index is None or owners[index]:
                return None
            owners[index] = client_id
    return owners


def _capacities(inputs: Inputs) -> dict[str, float]:
    return {member.client_id: member.capacity for member in inputs.members if member.capacity != 1.0}


def _popped_together(ids: list[str], queues: tuple[MessageQueue, ...], shares: Shares, number: int) -> Shares:
    """POP sharing of RocketMQ 5: shares of the next `number` members too; with fewer queues than members, one each."""
    if len(ids) > len(queues):
        return {client_id: (queues[index % len(queues)],) for index, client_id in enumerate(ids)}
    count = len(ids)
    return {
        client_id: tuple(
            dict.fromkeys(queue for step in range(number + 1) for queue in shares[ids[(index + step) % count]])
        )
        for index, client_id in enumerate(ids)
    }


def _rows(queues: tuple[MessageQueue, ...], ids: list[str], shares: Shares) -> tuple[list[MessageQueue], list[str]]:
    owners: dict[MessageQueue, list[str]] = {queue: [] for queue in queues}
    for client_id in ids:
        for queue in shares[client_id]:
            owners[queue].append(client_id)
    pairs = [(queue, owner) for queue, names in owners.items() for owner in (names or [""])]
    return [queue for queue, _ in pairs], [owner for _, owner in pairs]
