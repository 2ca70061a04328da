"""CONSISTENT_HASH: members and queues lie on a ring; when a member leaves, only its queues move (AL-28 to AL-35).

The documents leave the details open; these are RocketMQ's (XO-8), so that members of both kinds agree: 10 virtual nodes
per member with key `<id>-<index>`, a queue's text is `MessageQueue [topic=T, brokerName=b, queueId=0]`, and the hash is
the first 4 bytes of MD5 over UTF-8, big-endian, unsigned.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenq.allocation.strategy import checked, checked_all
from evenq.errors import BadRequest
from evenq.model import MessageQueue

VIRTUAL_NODES = 10  # XO-8


def md5_hash(key: str) -> int:
    """Returns the first 4 bytes of MD5, big-endian, unsigned: 0 to 2**32 - 1. Positions on a ring, not security."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Strategy with few moves; shares may be uneven."""

    virtual_nodes: int = VIRTUAL_NODES
    """Positions of each member on the ring, 0 or more. With 0 no member gets a queue (AL-31)."""
    hash_function: Callable[[str], int] = md5_hash
    name: str = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if not callable(self.hash_function):
            raise BadRequest("the hash function is null: give a function from text to int, or leave it out for MD5")
        if self.virtual_nodes < 0:
            raise BadRequest(f"virtual_nodes is {self.virtual_nodes}, it must be 0 or more; 10 is usual")

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Errors: AL-2; own id not among the ids: nothing (AL-3)."""
        del group
        if not checked(own_id, queues, ids):
            return []
        owners = self._owners(queues, ids)
        return [queue for queue, owner in zip(queues, owners, strict=True) if owner == own_id]

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        del group
        checked_all(queues, ids)
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in ids}
        for queue, owner in zip(queues, self._owners(queues, ids), strict=True):
            if owner is not None:
                shares[owner].append(queue)
        return shares

    def _owners(self, queues: Sequence[MessageQueue], ids: Sequence[str]) -> list[str | None]:
        nodes = self._ring(ids)
        places = sorted(nodes)
        if not places:
            return [None] * len(queues)
        owners: list[str | None] = []
        for queue in queues:
            at = bisect_left(places, self.hash_function(queue_text(queue)))
            owners.append(nodes[places[at % len(places)]])  # after the last node the ring starts again
        return owners

    def _ring(self, ids: Sequence[str]) -> dict[int, str]:
        """Member of each virtual node, by hash. Of two nodes with one hash the later stays (AL-34)."""
        nodes: dict[int, str] = {}
        count_of: dict[str, int] = {}
        for client_id in ids:
            first = count_of.get(client_id, 0)  # a repeated id adds nodes after its own (AL-28)
            for index in range(first, first + self.virtual_nodes):
                nodes[self.hash_function(f"{client_id}-{index}")] = client_id
            count_of[client_id] = first + self.virtual_nodes
        return nodes
