"""The check of a strategy's result: only queues of the topic, each at most once, only to members.

`supplied.py` calls it for each user's strategy, and servers may call it for any. `coverage` reports weaknesses that are
not errors (idle members, queues left out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evenq.allocation.machine_room import room_of_broker
from evenq.errors import BadRequest
from evenq.model import MessageQueue

SHOWN_MAX = 80  # characters of a foreign value in an error


def verified(
    shares: Mapping[str, Iterable[MessageQueue]],
    queues: Sequence[MessageQueue],
    ids: Sequence[str],
    *,
    strategy: str = "unnamed",
) -> dict[str, list[MessageQueue]]:
    """Returns the shares as lists, in the order of `ids`; absent members have no queue.

    Raises BadRequest for an unknown member, an unknown queue, and a queue that was given twice.
    """
    if not isinstance(shares, Mapping):
        raise _wrong(strategy, f"gave a {type(shares).__name__}", "give a dict of client id to list of queues")
    members, owner_of = set(ids), dict.fromkeys(queues, "")
    for client_id, mine in shares.items():
        if client_id not in members:
            raise _wrong(
                strategy, f"gave queues to {_shown(client_id)}, not a member", "give only to the ids it was given"
            )
        if isinstance(mine, str) or not isinstance(mine, Iterable):
            raise _wrong(strategy, f"gave {_shown(client_id)} a {type(mine).__name__}", "give a list of queues")
    result = {client_id: list(shares.get(client_id, ())) for client_id in ids}
    for client_id, owned in result.items():
        for queue in owned:
            owner = owner_of.get(queue) if isinstance(queue, MessageQueue) else None
            if owner is None:
                raise _wrong(
                    strategy,
                    f"gave {_shown(queue)} to {_shown(client_id)}, which is not among the {len(owner_of)} queues",
                    "give only the queues it was given",
                )
            if owner:
                twice = f"gave queue {queue} twice, to {_shown(owner)} and {_shown(client_id)}"
                raise _wrong(strategy, twice, "give each queue to one member, from the same arguments for all")
            owner_of[queue] = client_id
    return result


def _wrong(strategy: str, what: str, fix: str) -> BadRequest:
    return BadRequest(f"allocate strategy {strategy[:SHOWN_MAX]!r} {what}; fix the strategy: {fix}")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Gaps and overlaps of an allocation, compared with the topic's queues without changing it. All tuples ascend.

    They are idle members (AL-9), lists that overlap or contain queues that do not exist (AL-14), and rooms that no
    member covers (AL-20). Servers log and count them; `explain` shows them.
    """

    unowned: tuple[MessageQueue, ...]
    shared: tuple[MessageQueue, ...]
    """Queues that were given more than once."""
    nonexistent: tuple[MessageQueue, ...]
    """Given queues that the topic does not have."""
    idle: tuple[str, ...]
    """Members that got no existing queue."""
    uncovered_rooms: tuple[str, ...]
    """Rooms of which no queue was given: zones if known, otherwise the part before `@` in broker names."""

    @property
    def complete(self) -> bool:
        """True if each queue was given exactly once and no other queue was given."""
        return not (self.unowned or self.shared or self.nonexistent)


def coverage(
    queues: Iterable[MessageQueue],
    shares: Mapping[str, Iterable[MessageQueue]],
    zone_of_broker: Mapping[str, str] | None = None,
) -> Coverage:
    zones = zone_of_broker or {}

    def room_of(queue: MessageQueue) -> str | None:
        return zones.get(queue.broker_name) or room_of_broker(queue.broker_name)

    counts = dict.fromkeys(sorted(queues), 0)
    nonexistent: dict[MessageQueue, None] = {}
    idle: list[str] = []
    for client_id in sorted(shares):
        owned = False
        for queue in shares[client_id]:
            if queue in counts:
                counts[queue] += 1
                owned = True
            else:
                nonexistent[queue] = None
        if not owned:
            idle.append(client_id)
    unowned = tuple(queue for queue, count in counts.items() if count == 0)
    attended = {room_of(queue) for queue, count in counts.items() if count}
    rooms = {room for queue in unowned if (room := room_of(queue)) is not None}
    return Coverage(
        unowned=unowned,
        shared=tuple(queue for queue, count in counts.items() if count > 1),
        nonexistent=tuple(sorted(nonexistent)),
        idle=tuple(idle),
        uncovered_rooms=tuple(sorted(rooms - attended)),
    )
