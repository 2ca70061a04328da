"""Faults planted on purpose: a checker that does not find them is no checker.

- `drain`: a member lets go of a queue while its listener still has messages of it;
- `fence`: brokers take pulls and commits from any client;
- `leave`: a broker that closes does not wait for its members;
- `ids`: members that divide by themselves do not sort the ids of the group, each has its own in front (RB-11).

For lifecycle worlds, each undoes the mend of a fault that was found by use:

- `call`: an ordered queue is handed over after `drain_ms`, though its listener runs;
- `homes`: message groups leave a broker that is away;
- `ghosts`: brokers do not ask each other whether a client is gone;
- `retries`: the retry topic of a deleted group stays;
- `counts`: deliveries to members of a deleted group count for a group of its name;
- `awaits`: nobody remembers that a group read a topic that was deleted, so its policy applies to the next one;
- `same`: a topic that is made again counts as the same one to members;
- `notice`: a consumer of lite topics is told of their end on an open stream only;
- `memory`: changes for a broker that is away are remembered in memory only.
"""

from __future__ import annotations

from typing import Any

from evenq_broker.core.cluster.unconfirmed_changes import UnconfirmedChanges
from evenq_broker.core.delivery.progress import Progress, QueueProgress
from evenq_broker.core.groups.fencing import QueueFence
from evenq_broker.core.groups.locks import LockTable
from evenq_broker.loops.cluster.known_brokers import BrokerMemory
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog

from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.groups.hand_over import HandOver
from evenq.client.loops.lite.subscribing import LiteSubscriber
from evenq.model import MessageQueue

PLANTS = (
    "drain", "fence", "ids", "leave", "call", "homes", "ghosts", "retries", "counts", "notice", "awaits", "same", "memory",
)  # fmt: skip


def changes(plant: str) -> list[tuple[Any, str, Any]]:
    """What to replace (owner, name, value) for a planted fault; nothing for an empty name."""
    match plant:
        case "":
            return []
        case "drain":
            return [(HandOver, "drained", _no_drain)]
        case "fence":
            return _no_fence()
        case "ids":
            return [(AssignmentSource, "_computed", _own_id_first)]
        case "leave":
            return [(Sessions, "hand_over", _no_waiting)]
        case "call":
            return [(HandOver, "drained", _as_if_closing)]
        case "homes":
            return [(BrokerMemory, "homes", _no_homes)]
        case "ghosts":
            return [(Departures, "_look", _no_look)]
        case "retries":
            return [(Catalog, "_retries_removed", _nothing_removed)]
        case "counts":
            return [(Progress, "forget_group", _nothing), (Progress, "_begin", _begin_with_counts)]
        case "awaits":
            return [(Catalog, "awaits", _never)]
        case "same":
            return [(Catalog, "queue_uid", _same_uid)]
        case "notice":
            return [(Lites, "is_gone", _no_notice), (LiteSubscriber, "_all_ended", _not_ended)]
        case "memory":
            return [(UnconfirmedChanges, "asked", _not_recorded), (UnconfirmedChanges, "dump", _nothing)]
        case _:
            raise ValueError(f"no planted fault {plant!r}; there are {', '.join(PLANTS)}")


async def _no_drain(self: HandOver, pulling: Any) -> None:
    return


async def _no_waiting(self: Sessions, _limit_ms: int) -> None:
    return


def _no_fence() -> list[tuple[Any, str, Any]]:
    def nothing(*_: Any, **__: Any) -> None:
        return None

    def never(*_: Any, **__: Any) -> bool:
        return False

    return [(QueueFence, "refusal", nothing), (LockTable, "stale", never)]


async def _own_id_first(self: AssignmentSource, topic: str) -> list[MessageQueue] | None:
    queues = sorted((await self._routes.get(topic)).readable)
    members = self._sessions.members()
    if not queues or members is None:
        return None
    others = sorted({member.client_id for member in members} - {self.client_id})
    return self._strategy.allocate(self._group, self.client_id, queues, [self.client_id, *others])


_drained = HandOver.drained


async def _as_if_closing(self: HandOver, pulling: Any) -> None:
    self.close([])
    await _drained(self, pulling)


def _no_homes(*_: Any) -> list[str]:
    return []


def _never(*_: Any) -> bool:
    return False


def _same_uid(*_: Any) -> str:
    return "same"


_asked = UnconfirmedChanges.asked


def _not_recorded(self: UnconfirmedChanges, change: Any) -> list[Any]:
    _asked(self, change)
    return []


def _nothing(*_: Any) -> list[Any]:
    return []


async def _no_look(self: Departures, client_ids: Any) -> None:
    return


def _nothing_removed(self: Catalog, group: str) -> list[Any]:
    return []


_begin = Progress._begin


def _begin_with_counts(self: Progress, group_id: int, topic_id: int, queue_id: int, offset: int) -> QueueProgress:
    old = [self.queue(earlier, topic_id, queue_id) for earlier in range(group_id)]
    queue = _begin(self, group_id, topic_id, queue_id, offset)
    queue.given_until = max((one.handed for one in old if one is not None), default=0)
    return queue


def _no_notice(*_: Any) -> None:
    return


async def _not_ended(self: LiteSubscriber) -> None:
    return
