"""STICKY: even shares with the fewest moves, for servers that know the current owners.

Problem: AVG and most other strategies compute shares from sorted lists only, so one join or leave moves queues between
members that stay. Each moved queue pauses while its lock changes hands (decision 8).

Idea: start from the current owners and change only what balance needs. The goals, in this order:

1. Sizes differ by at most 1: of Q queues and C members each gets Q // C, and Q mod C members get one more.
2. As few queues as possible change their owner.
3. Among such results, queues go to members in the zone of their broker, by a greedy search.

Example: 10 queues of topic `orders` on one broker, members a, b and c with 4, 3 and 3. When d joins, a and b give it
one queue each: 2 moves, where AVG has 4. When b leaves then, its 2 queues go to d: 2 moves, where AVG has 4.

Invariants:

- Each queue has exactly one owner.
- From even shares a join moves queues only to the new member, and a leave only those of the member that left.
- The order of the arguments does not matter. A hash of topic and client id decides ties, so that the first members do
  not get the remainder of every topic.
- At most `moves_max` queues that have an owner move for balance; queues without one are always given.

`evened.py` counts queues. With weights of queues or different capacities, `weighed.py` evens the load instead; it
promises neither the fewest moves nor the invariants of joins and leaves. A client cannot use STICKY, because a member
knows only its own queues; a broker without a rebalancer uses AVG (`stand_in`). Promise XO-7; Kafka's sticky assignor
(KIP-54) has the same goals.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from evenq.allocation.context import Context
from evenq.allocation.strategy import checked_all
from evenq.allocation.unweighted import evened
from evenq.allocation.weighed import weighed
from evenq.errors import BadRequest
from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class Sticky:
    """Strategy with three goals: balance, then few moves, then short distance."""

    name: str = "STICKY"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Always raises BadRequest: members would disagree, because none knows the queues of the others."""
        del own_id, queues, ids
        raise BadRequest(
            f"a member of group {group[:80]!r} cannot divide by STICKY: it does not know the other owners; leave the "
            "client's strategy out and give the group STICKY where a rebalancer decides (mode 3), or use AVG"
        )

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """Returns all members' shares, each ascending. Errors: AL-2, and a weight or capacity out of range."""
        del group
        checked_all(queues, ids)
        if not ids:
            return {}
        ordered = sorted(queues, key=_place)
        topic = ordered[0].topic
        tied = sorted(set(ids), key=lambda client_id: (zlib.crc32(f"{topic}/{client_id}".encode()), client_id))
        owned = (weighed if _by_load(tied, context) else evened)(ordered, tied, context)
        return {client_id: sorted(owned[client_id], key=_place) for client_id in ids}


def _by_load(ids: Sequence[str], context: Context) -> bool:
    """True if load decides instead of counts. Equal weights count too, because they soon differ again."""
    capacities = context.capacity_of_member
    return bool(context.weight_of_queue) or len({capacities.get(client_id, 1.0) for client_id in ids}) > 1


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return (queue.topic, queue.broker_name, queue.queue_id)
