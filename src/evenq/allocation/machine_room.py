"""MACHINE_ROOM: divides only queues of brokers in the configured rooms; a broker is named `room@name` (AL-15 to AL-20).

Queues of other rooms go to no member, without an error; `coverage` reports those rooms (AL-20). On a server that knows
zones the rooms need not be configured: the zones of the group's members take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenq.allocation.context import Context
from evenq.allocation.strategy import places
from evenq.model import MessageQueue


def room_of_broker(broker_name: str) -> str | None:
    """Returns the part before `@` if the name has exactly two parts, otherwise None.

    Trailing empty parts do not count (AL-19): `room@` has one part, `@b` two with an empty room, `a@b@c` three.
    """
    parts = broker_name.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Strategy that divides the queues of some rooms among all members of the group."""

    rooms: frozenset[str] = frozenset()
    """Rooms that take part, as RocketMQ's `consumeridcs`. Empty: no member gets a queue, but see `divide_in`."""
    name: str = "MACHINE_ROOM"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. No errors; own id not among the ids: nothing (AL-16)."""
        del group
        return self._page(self._covered(queues), ids.index(own_id), len(ids)) if own_id in ids else []

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        del group
        return self._pages(self._covered(queues), ids)

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """As `divide` if rooms were configured; otherwise divides queues of brokers in a zone of any member.

        Queues of brokers without a known zone take part too, and all queues do if no member's zone is known, so that
        no queue stays unread for lack of facts.
        """
        if self.rooms:
            return self.divide(group, queues, ids)
        rooms = {context.zone_of_member.get(client_id, "") for client_id in ids} - {""}
        zone_of = context.zone_of_broker.get
        near = {"", *rooms}
        return self._pages([queue for queue in queues if not rooms or zone_of(queue.broker_name, "") in near], ids)

    def _pages(self, covered: list[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        return {client_id: self._page(covered, index, len(ids)) for client_id, index in places(ids).items()}

    def _covered(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if room_of_broker(queue.broker_name) in self.rooms]

    @staticmethod
    def _page(covered: list[MessageQueue], index: int, count: int) -> list[MessageQueue]:
        page, rest = divmod(len(covered), count)
        mine = covered[page * index : page * index + page]
        if index < rest:  # the remainder comes from the end, unlike with AVG (AL-18)
            mine.append(covered[page * count + index])
        return mine
