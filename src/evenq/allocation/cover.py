"""What an allocation leaves undone or does twice: reported, never changed.

The documents name these as weaknesses that stay silent: idle members (AL-9), lists that overlap or name queues which
do not exist (AL-14), rooms that no member covers (AL-20). Servers log and count them; `explain` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evenq.allocation.machine_room import room_of_broker
from evenq.model import MessageQueue

__all__ = ["Coverage", "coverage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How well the shares of all members fit the topic's queues. All tuples ascend."""

    unowned: tuple[MessageQueue, ...]
    """Queues that no member got."""
    shared: tuple[MessageQueue, ...]
    """Queues that were given more than once."""
    nonexistent: tuple[MessageQueue, ...]
    """Queues that were given and are not the topic's."""
    idle: tuple[str, ...]
    """Members that got no existing queue."""
    uncovered_rooms: tuple[str, ...]
    """Rooms whose members got no queue: zones if they are known, else those in front of broker names `room@name`."""

    @property
    def complete(self) -> bool:
        """True if each queue was given exactly once and nothing else was."""
        return not (self.unowned or self.shared or self.nonexistent)


def coverage(
    queues: Iterable[MessageQueue],
    shares: Mapping[str, Iterable[MessageQueue]],
    zone_of_broker: Mapping[str, str] | None = None,
) -> Coverage:
    """Compare the topic's queues with what each member got (client id to queues)."""
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
