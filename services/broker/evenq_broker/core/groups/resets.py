"""Range of offsets to which an operator may move a group, and the members that have not followed a reset yet.

A member that holds a queue's lock reads on from its own memory, so its commits after a reset would undo the reset.
`Fences` remembers such a member until it has begun again at the new offset; until then its commits and delivery counts
for that queue are ignored. Pure: time comes in as monotonic ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import MessageQueue

FENCE_MS = 60_000
"""A member that has not begun again after this time is trusted as before."""


@dataclass(frozen=True, slots=True)
class ResetFence:
    """A member that must begin again, and its new offset."""

    client_id: str
    offset: int
    until_ms: int


class Fences:
    """Queues that were reset under a member. At most one entry for each queue and group; nearly always empty."""

    __slots__ = ("_fences",)

    def __init__(self) -> None:
        self._fences: dict[tuple[str, MessageQueue], ResetFence] = {}

    def __len__(self) -> int:
        return len(self._fences)

    def put(self, group: str, queue: MessageQueue, client_id: str, offset: int, *, now_ms: int) -> ResetFence:
        """Notes that the group was moved to `offset` while this member held the queue."""
        for key in [key for key, fence in self._fences.items() if fence.until_ms <= now_ms]:
            del self._fences[key]
        fence = self._fences[group, queue] = ResetFence(client_id, offset, now_ms + FENCE_MS)
        return fence

    def holds(self, group: str, queue: MessageQueue, fence: ResetFence, *, now_ms: int) -> bool:
        """Returns True while the member has not begun again and no later reset came."""
        return self._fences.get((group, queue)) is fence and fence.until_ms > now_ms

    def awaits(self, group: str, queue: MessageQueue, *, now_ms: int) -> bool:
        """Returns True while a member has not begun again on this queue."""
        fence = self._fences.get((group, queue))
        return fence is not None and fence.until_ms > now_ms

    def ignores(self, group: str, queue: MessageQueue, client_id: str, *, now_ms: int) -> bool:
        fence = self._fences.get((group, queue))
        return fence is not None and fence.client_id == client_id and fence.until_ms > now_ms

    def read(self, group: str, queue: MessageQueue, client_id: str, offset: int) -> None:
        """Notes a read: at the new offset, or by another member, the group has begun again."""
        fence = self._fences.get((group, queue))
        if fence is not None and (fence.client_id != client_id or fence.offset == offset):
            del self._fences[group, queue]

    def forget_group(self, group: str) -> None:
        for key in [key for key in self._fences if key[0] == group]:
            del self._fences[key]

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._fences if key[1].topic == topic]:
            del self._fences[key]

    def forget(self, group: str, topic: str) -> None:
        """Forgets the group's resets on a topic whose subscription was removed."""
        for key in [key for key in self._fences if (key[0], key[1].topic) == (group, topic)]:
            del self._fences[key]

    def of(self, group: str, client_id: str) -> list[MessageQueue]:
        """Returns queues on which this member has yet to begin again: it may have missed the notice."""
        return sorted(
            queue for (name, queue), fence in self._fences.items() if (name, fence.client_id) == (group, client_id)
        )


def within(requested: int, low: int, high: int) -> tuple[int, str]:
    """Returns `requested` moved into the queue's range (`high` = behind the newest), and a note if it was moved."""
    if requested < low:
        return low, f"{requested} is gone from the queue; the first one there is {low}"
    if requested > high:
        return high, f"{requested} is not there yet; the next new one is {high}"
    return requested, ""
