"""MACHINE_ROOM_NEARBY: queues stay in their room; all members share rooms without members (AL-21 to AL-27).

Without a resolver, a server uses known zones as rooms (`Context`); an unknown room is not an error then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from evenq.allocation.averagely import Averagely
from evenq.allocation.context import Context
from evenq.allocation.strategy import Strategy, checked, checked_all, divide
from evenq.errors import BadRequest
from evenq.model import MessageQueue

T = TypeVar("T")
UNKNOWN = ""


class RoomResolver(Protocol):
    """Rooms of brokers and members, by user code. An empty result is an error (AL-22)."""

    def room_of_queue(self, queue: MessageQueue) -> str | None: ...

    def room_of_client(self, client_id: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class PrefixRooms:
    """Resolver of rooms in front of names: `room@broker`, `room@client`."""

    separator: str = "@"

    def room_of_queue(self, queue: MessageQueue) -> str | None:
        return self._prefix(queue.broker_name)

    def room_of_client(self, client_id: str) -> str | None:
        return self._prefix(client_id)

    def _prefix(self, name: str) -> str | None:
        room, separator, _ = name.partition(self.separator)
        return room if separator else None


@dataclass(frozen=True, slots=True)
class Nearby:
    """Wrapper of the strategy that divides inside a room."""

    inner: Strategy = field(default_factory=Averagely)
    resolver: RoomResolver | None = None
    """None: `room@name` in broker names and client ids; on a server the zones, if any are known."""
    together: bool | None = None
    """True: all rooms without members are divided as one list, so that the first ids do not get every remainder
    (AL-27). None: only where the rooms are zones of a server."""

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
        resolver = self.resolver or PrefixRooms()
        queues_of, ids_of = _rooms(resolver, queues, ids)
        own_room = resolver.room_of_client(own_id) or ""
        shares: list[MessageQueue] = []
        if own_room in queues_of:
            shares += self.inner.allocate(group, own_id, queues_of[own_room], ids_of[own_room])
        for room_queues in _unattended(queues_of, ids_of, together=bool(self.together)):
            shares += self.inner.allocate(group, own_id, room_queues, ids)
        return shares

    def divide(self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Returns all members' shares. Errors as `allocate`."""
        checked_all(queues, ids)
        queues_of, ids_of = _rooms(self.resolver or PrefixRooms(), queues, ids)
        return self._share_out(group, queues_of, ids_of, ids, Context(), together=bool(self.together))

    def divide_in(
        self, group: str, queues: Sequence[MessageQueue], ids: Sequence[str], context: Context
    ) -> dict[str, list[MessageQueue]]:
        """As `divide` with a resolver; otherwise the rooms are zones, or if no zone is known, those in front of names.

        An unknown room is not an error here: all members share such queues, and such members get only shared queues.
        Inner STICKY counts `moves_max` per room.
        """
        checked_all(queues, ids)
        resolver, zones = self.resolver, bool(context.zone_of_broker or context.zone_of_member)
        if resolver is not None:
            queues_of, ids_of = _rooms(resolver, queues, ids)
        else:
            rooms = _Zones(context) if zones else PrefixRooms()
            queues_of = _by_room(queues, lambda queue: rooms.room_of_queue(queue) or UNKNOWN)
            ids_of = _by_room(ids, lambda client_id: rooms.room_of_client(client_id) or UNKNOWN)
            ids_of.pop(UNKNOWN, None)  # members and brokers without a known room need not be near each other
        together = resolver is None and zones if self.together is None else self.together
        return self._share_out(group, queues_of, ids_of, ids, context, together=together)

    def _share_out(
        self,
        group: str,
        queues_of: dict[str, list[MessageQueue]],
        ids_of: dict[str, list[str]],
        ids: Sequence[str],
        context: Context,
        *,
        together: bool,
    ) -> dict[str, list[MessageQueue]]:
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in ids}
        attended = [(queues_of[room], ids_of[room]) for room in ids_of if room in queues_of]
        unattended = [(room_queues, ids) for room_queues in _unattended(queues_of, ids_of, together=together)]
        for room_queues, room_ids in [*attended, *unattended]:
            for client_id, mine in divide(self.inner, group, room_queues, room_ids, context).items():
                shares[client_id] += mine
        return shares


@dataclass(frozen=True, slots=True)
class _Zones:
    context: Context

    def room_of_queue(self, queue: MessageQueue) -> str | None:
        return self.context.zone_of_broker.get(queue.broker_name)

    def room_of_client(self, client_id: str) -> str | None:
        return self.context.zone_of_member.get(client_id)


def _rooms(
    resolver: RoomResolver, queues: Sequence[MessageQueue], ids: Sequence[str]
) -> tuple[dict[str, list[MessageQueue]], dict[str, list[str]]]:
    """Groups queues and ids by room. Raises BadRequest where the resolver returns no room (AL-22)."""
    queues_of = _by_room(queues, resolver.room_of_queue)
    ids_of = _by_room(ids, resolver.room_of_client)
    for unknown, problem in (
        (queues_of, "Machine room is null for mq"),
        (ids_of, "Machine room is null for consumer id"),
    ):
        for thing in unknown.get(UNKNOWN, ()):
            raise BadRequest(f"{problem} {thing}: make the room resolver return its room")
    return queues_of, ids_of


def _unattended(
    queues_of: dict[str, list[MessageQueue]], ids_of: dict[str, list[str]], *, together: bool
) -> list[list[MessageQueue]]:
    unattended = [queues_of[room] for room in sorted(queues_of) if room not in ids_of]
    if together and unattended:
        return [sorted(queue for room_queues in unattended for queue in room_queues)]
    return unattended


def _by_room(things: Iterable[T], room_of: Callable[[T], str | None]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        rooms.setdefault(room_of(thing) or UNKNOWN, []).append(thing)
    return rooms
