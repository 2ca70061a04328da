"""MACHINE_ROOM_NEARBY: queues stay in their room; rooms without members are shared by everybody (AL-21 to AL-27)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from evenq.allocation.averagely import Averagely
from evenq.allocation.strategy import Strategy, checked, divide
from evenq.errors import BadRequest
from evenq.model import MessageQueue

__all__ = ["Nearby", "PrefixRooms", "RoomResolver"]

T = TypeVar("T")


class RoomResolver(Protocol):
    """Where things are, written by the user. An empty answer is an error (AL-22)."""

    def room_of_queue(self, queue: MessageQueue) -> str | None:
        """The room of the queue's broker."""
        ...

    def room_of_client(self, client_id: str) -> str | None:
        """The room of a member."""
        ...


@dataclass(frozen=True, slots=True)
class PrefixRooms:
    """Rooms are written in front of names: `room@broker`, `room@client`."""

    separator: str = "@"

    def room_of_queue(self, queue: MessageQueue) -> str | None:
        """The broker name up to the first separator; None without one."""
        return self._prefix(queue.broker_name)

    def room_of_client(self, client_id: str) -> str | None:
        """The client id up to the first separator; None without one."""
        return self._prefix(client_id)

    def _prefix(self, name: str) -> str | None:
        room, separator, _ = name.partition(self.separator)
        return room if separator else None


@dataclass(frozen=True, slots=True)
class Nearby:
    """Wraps the strategy that divides inside a room."""

    inner: Strategy = field(default_factory=Averagely)
    resolver: RoomResolver = field(default_factory=PrefixRooms)
    together: bool = False
    """True: all rooms without members are divided as one list, so that their remainders do not pile up on the first
    ids (AL-27)."""

    @property
    def name(self) -> str:
        """`MACHINE_ROOM_NEARBY-` and the inner strategy's name."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, group: str, own_id: str, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> list[MessageQueue]:
        """See `Strategy.allocate`. Errors: AL-2, and a queue or member without a room (AL-22)."""
        if not checked(own_id, queues, ids):
            return []
        queues_of, ids_of = self._rooms(queues, ids)
        own_room = self.resolver.room_of_client(own_id) or ""
        shares: list[MessageQueue] = []
        if own_room in queues_of:
            shares += self.inner.allocate(group, own_id, queues_of[own_room], ids_of[own_room])
        for room_queues in self._unattended(queues_of, ids_of):
            shares += self.inner.allocate(group, own_id, room_queues, ids)
        return shares

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """All members' shares, sorting into rooms once."""
        for client_id in ids:
            checked(client_id, queues, ids)
        queues_of, ids_of = self._rooms(queues, ids)
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in ids}
        attended = [(queues_of[room], ids_of[room]) for room in ids_of if room in queues_of]
        unattended = [(room_queues, ids) for room_queues in self._unattended(queues_of, ids_of)]
        for room_queues, room_ids in [*attended, *unattended]:
            for client_id, mine in divide(self.inner, group, room_queues, room_ids).items():
                shares[client_id] += mine
        return shares

    def _rooms(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[dict[str, list[MessageQueue]], dict[str, list[str]]]:
        return (
            _by_room(queues, self.resolver.room_of_queue, "Machine room is null for mq"),
            _by_room(ids, self.resolver.room_of_client, "Machine room is null for consumer id"),
        )

    def _unattended(
        self, queues_of: dict[str, list[MessageQueue]], ids_of: dict[str, list[str]]
    ) -> list[list[MessageQueue]]:
        unattended = [queues_of[room] for room in sorted(queues_of) if room not in ids_of]
        if self.together and unattended:
            return [sorted(queue for room_queues in unattended for queue in room_queues)]
        return unattended


def _by_room(things: Iterable[T], room_of: Callable[[T], str | None], problem: str) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise BadRequest(f"{problem} {thing}: make the room resolver answer for it")
        rooms.setdefault(room, []).append(thing)
    return rooms
