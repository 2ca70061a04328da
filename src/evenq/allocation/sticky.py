"""STICKY: even shares with the fewest moves. The rebalancer's own strategy: it needs to know who has what now.

In this order: sizes differ by at most 1; as few queues as possible change their owner; among such results, queues go
to members in their broker's zone. A join therefore moves queues only to the newcomer, a leave only the leaver's.
Ties go by a hash of topic and client id, so that the remainders of many topics do not pile up on the first members.
With weights or capacities, `weighed` divides by load instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from evenq.allocation.context import Context
from evenq.allocation.evened import evened
from evenq.allocation.strategy import checked_all
from evenq.allocation.weighed import weighed
from evenq.errors import BadRequest
from evenq.model import MessageQueue

__all__ = ["Sticky"]


@dataclass(frozen=True, slots=True)
class Sticky:
    """Balanced, then few moves, then near."""

    name: str = "STICKY"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Always BadRequest: one member does not know what the others have, so members would disagree."""
        del own_id, queues, ids
        raise BadRequest(
            f"a member of group {group[:80]!r} cannot divide by STICKY: it does not know who has what; leave the "
            "client's strategy out and give the group STICKY where a rebalancer decides (mode 3), or use AVG"
        )

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """All members' shares, each ascending. The order of the arguments does not matter.

        Errors: AL-2, and a weight or capacity outside of its range.
        """
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
    """True where counting queues is not enough. Equal weights count too: they differ again in a moment."""
    capacities = context.capacity_of_member
    return bool(context.weight_of_queue) or len({capacities.get(client_id, 1.0) for client_id in ids}) > 1


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return (queue.topic, queue.broker_name, queue.queue_id)
