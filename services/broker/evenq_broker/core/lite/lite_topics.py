"""Lite topics: thousands of small, short-lived queues inside one topic of type LITE (wire contract 5.6).

A lite topic is a queue of its parent at one broker, its owner, with an id from `LITE_QUEUES_FROM` on, which no route
shows. The owner is found by hashing over the brokers that carry the parent (`model.lanes`), so it changes only when its
broker comes or goes. Stored messages stay where they are. An id is used again after its lite topic expired: `base` is
where the present one begins. Called by `loops.lite.lite_topics`; pure, times come in as ms.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from evenq.errors import LiteTopicQuotaExceeded
from evenq.serving.auth.users import UserResource
from evenq_broker.core.delivery.queue_progress import LITE_QUEUES_FROM
from evenq_broker.core.shares import Shares, UsersNow, no_users
from evenq_broker.core.state.records import LiteClosed, LiteOpened

__all__ = ["LITE_QUEUES_FROM", "LiteTopic", "LiteTopics", "lite_problem"]

_LEGAL = re.compile(r"[%a-zA-Z0-9_-]+\Z")


def lite_problem(name: str, length_max: int) -> str | None:
    """Returns what is wrong with the name of a lite topic, as a sentence; None if it is valid."""
    if not name or name.isspace():
        return f"the lite topic is blank; give 1 to {length_max} letters, digits, '%', '_' and '-'"
    if len(name) > length_max:
        return f"the lite topic has {len(name)} characters, the limit is {length_max}; shorten it"
    if not _LEGAL.match(name):
        return f"the lite topic {name!r} holds a character outside letters, digits, '%', '_' and '-'"
    return None


@dataclass(slots=True)
class LiteTopic:
    topic_id: int  # id of the parent
    name: str
    queue_id: int
    base: int  # its first offset: earlier ones in the queue belong to another lite topic
    used_ms: int = 0  # when it was last sent to, or last had a subscriber


class LiteTopics:
    """The lite topics stored at one broker. Always true: a queue number belongs to one of them, or is free."""

    __slots__ = ("_by_name", "_by_queue", "_free", "_name_of", "_next", "_shares", "_version", "each_max")

    def __init__(
        self, *, all_max: int, each_max: int, users: UsersNow = no_users, name_of: Callable[[int], str] = str
    ) -> None:
        """`users`: see `core.shares`; `name_of`: a parent's name by its id."""
        self.each_max = each_max
        self._shares = Shares(UserResource.TOPIC, users, limit=all_max, setting="lite_topics_max", what="lite topics")
        self._name_of = name_of
        self._version = 0
        self._by_name: dict[int, dict[str, LiteTopic]] = {}
        self._by_queue: dict[tuple[int, int], LiteTopic] = {}
        self._free: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_queue)

    def get(self, topic_id: int, name: str) -> LiteTopic | None:
        return self._by_name.get(topic_id, {}).get(name)

    def queues(self, topic_id: int, names: Iterable[str]) -> list[int]:
        """Returns the queues of those lite topics that are here."""
        known = self._by_name.get(topic_id, {})
        return [known[name].queue_id for name in names if name in known]

    def at(self, topic_id: int, queue_id: int) -> LiteTopic | None:
        return self._by_queue.get((topic_id, queue_id))

    def of(self, topic_id: int) -> list[LiteTopic]:
        """Returns the lite topics of one parent, in the order of their creation."""
        return list(self._by_name.get(topic_id, {}).values())

    def all(self) -> list[LiteTopic]:
        return list(self._by_queue.values())

    def next_queue(self, topic_id: int, parent: str) -> int:
        """Returns the queue of the next lite topic. Raises LiteTopicQuotaExceeded."""
        mine = len(self._by_name.get(topic_id, ()))
        if mine >= self.each_max:
            raise LiteTopicQuotaExceeded(
                f"topic {parent} has {mine} lite topics on this broker, the limit is lite_topics_per_topic_max; use "
                "fewer names, or wait until idle ones expire"
            )
        refusal = self._shares.refusal(parent, self._counts, total=len(self), version=self._version)
        if refusal:
            raise LiteTopicQuotaExceeded(f"{refusal}: use fewer names, or wait until idle ones expire")
        free = self._free.get(topic_id)
        return free[0] if free else self._next.get(topic_id, LITE_QUEUES_FROM)

    def _counts(self) -> dict[str, int]:
        return {self._name_of(topic_id): len(names) for topic_id, names in self._by_name.items()}

    def opened(self, topic_id: int, name: str, queue_id: int, base: int, now_ms: int) -> LiteTopic:
        free = self._free.get(topic_id, [])
        if queue_id in free:
            free.remove(queue_id)
            heapq.heapify(free)
        for skipped in range(self._next.get(topic_id, LITE_QUEUES_FROM), queue_id):
            heapq.heappush(self._free.setdefault(topic_id, []), skipped)
        self._next[topic_id] = max(self._next.get(topic_id, LITE_QUEUES_FROM), queue_id + 1)
        made = LiteTopic(topic_id, name, queue_id, base, now_ms)
        self._by_name.setdefault(topic_id, {})[name] = made
        self._by_queue[topic_id, queue_id] = made
        self._version += 1
        return made

    def closed(self, topic_id: int, queue_id: int) -> None:
        """Removes the lite topic of this queue, whose id may be used again; a repetition changes nothing."""
        gone = self._by_queue.pop((topic_id, queue_id), None)
        if gone is not None:
            self._version += 1
            del self._by_name[topic_id][gone.name]
            heapq.heappush(self._free.setdefault(topic_id, []), queue_id)

    def forget_topic(self, topic_id: int) -> None:
        self._version += 1
        for one in self._by_name.pop(topic_id, {}).values():
            del self._by_queue[topic_id, one.queue_id]
        self._free.pop(topic_id, None)
        self._next.pop(topic_id, None)

    def apply(self, op: LiteOpened | LiteClosed, now_ms: int) -> None:
        if isinstance(op, LiteClosed):
            self.closed(op.topic_id, op.queue_id)
            return
        known = self.get(op.topic_id, op.name)
        if known is None or (known.queue_id, known.base) != (op.queue_id, op.base):
            self.closed(op.topic_id, op.queue_id)
            if known is not None:
                self.closed(op.topic_id, known.queue_id)
            self.opened(op.topic_id, op.name, op.queue_id, op.base, now_ms)

    def dump(self) -> Iterator[LiteOpened]:
        for one in self.all():
            yield LiteOpened(one.topic_id, one.queue_id, one.base, one.name)
