"""Findings of a diagnosis, the looks that they are based on, and phrases for queues, names, counts and ages.

Used by `core.diagnosis.diagnosis`, which has the rules. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from evenq.model import MessageQueue
from evenq_broker.core.diagnosis.group_facts import GivenQueue, GroupFacts, MemberAt

SETTLED_MS = 10_000
"""A member that joined, or an owner that was decided, this long ago should have what it is given."""
NAMED_MAX = 5

K = TypeVar("K")
V = TypeVar("V")


class Severity(StrEnum):
    ERROR = "ERROR"  # messages are not read, or read twice
    WARNING = "WARNING"  # something does not work as it should, and may become an error
    NOTE = "NOTE"  # works as it was set up, which may not be what was meant


class FindingKind(StrEnum):
    BROKER_SILENT = "BROKER_SILENT"
    BROKER_MISSING = "BROKER_MISSING"
    REBALANCER_AWAY = "REBALANCER_AWAY"
    STRATEGY_FAILS = "STRATEGY_FAILS"
    MISSING_TOPIC = "MISSING_TOPIC"
    NOBODY_READS = "NOBODY_READS"
    TABLE_BEHIND = "TABLE_BEHIND"
    SCHEDULE_FAILS = "SCHEDULE_FAILS"
    SCHEDULE_MISSED = "SCHEDULE_MISSED"
    UNOWNED_QUEUES = "UNOWNED_QUEUES"
    UNCOVERED_ZONE = "UNCOVERED_ZONE"
    TWO_OWNERS = "TWO_OWNERS"
    HAND_OVER_HANGS = "HAND_OVER_HANGS"
    DIFFERENT_SUBSCRIPTIONS = "DIFFERENT_SUBSCRIPTIONS"
    DUPLICATE_CLIENT_ID = "DUPLICATE_CLIENT_ID"
    MEMBER_FORBIDDEN = "MEMBER_FORBIDDEN"
    DIFFERENT_SETTINGS = "DIFFERENT_SETTINGS"
    UNEQUAL_QUEUES = "UNEQUAL_QUEUES"
    STRANDED_MESSAGES = "STRANDED_MESSAGES"
    STUCK_HEAD = "STUCK_HEAD"
    MESSAGES_FAIL = "MESSAGES_FAIL"
    SILENT_MEMBER = "SILENT_MEMBER"
    OFFSETS_WENT_BACK = "OFFSETS_WENT_BACK"
    IDLE_MEMBERS = "IDLE_MEMBERS"
    ORDER_NOT_KEPT = "ORDER_NOT_KEPT"


TRANSIENT = frozenset(
    {
        FindingKind.UNOWNED_QUEUES,
        FindingKind.UNCOVERED_ZONE,
        FindingKind.TWO_OWNERS,
        FindingKind.HAND_OVER_HANGS,
        FindingKind.SILENT_MEMBER,
        FindingKind.DIFFERENT_SETTINGS,
        FindingKind.IDLE_MEMBERS,
    }
)
"""Kinds that a hand-over shows for a moment: they count only if a second look finds them, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: FindingKind
    severity: Severity
    subject: str  # a topic, queue, member, broker or zone
    seen: str  # one sentence
    fix: str  # instruction with its command
    command: str  # command that only looks, or that shows its plan first; see `command`


class Looks:
    """Looks at a group: now, and a little earlier."""

    def __init__(self, now: GroupFacts, before: GroupFacts) -> None:
        self.now = now
        self._before = before

    def lasting(self, look: Callable[[GroupFacts], Mapping[K, V]]) -> dict[K, V]:
        """Returns what `look` sees now, for the keys that it also saw earlier."""
        earlier = look(self._before)
        return {key: value for key, value in look(self.now).items() if key in earlier}


def command(verb: str, *names: str, **options: str | int) -> str:
    """Returns a command line to copy. Names are quoted: a shell takes each for one word and not for an option."""
    words = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
    ]
    guarded = ["--", *names] if any(name.startswith("-") for name in names) else []
    return f"evenq {verb} {shlex.join([*words, *guarded] if guarded else [*names, *words])}".rstrip()


def settled(views: Iterable[MemberAt]) -> bool:
    """Returns True if all of them joined long enough ago."""
    return all(view.age_ms >= SETTLED_MS for view in views)


def room_of(queue: MessageQueue, given: GivenQueue | None) -> str:
    """Returns the zone of the queue's broker, or the room in front of its name; empty: unknown."""
    room, at, _ = queue.broker_name.partition("@")
    return (given.broker_zone if given else "") or (room if at else "")


def by_topic(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Returns topic -> its queues, both ascending."""
    topics: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        topics.setdefault(queue.topic, []).append(queue)
    return topics


def place(queue: MessageQueue) -> str:
    """Returns a queue with its topic, in the form that `--queue` takes."""
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"


def queue_names(queues: Sequence[MessageQueue]) -> str:
    """Returns queues of one topic, a few by name and the number of the rest."""
    named = [f"{queue.broker_name}/{queue.queue_id}" for queue in sorted(queues)]
    return f"queue{'s' * (len(named) > 1)} {names(named)}"


def waiting(facts: GroupFacts, queues: Iterable[MessageQueue]) -> str:
    """Returns how many messages wait in the queues, as a clause."""
    lag = sum(facts.queues[queue].lag for queue in queues if queue in facts.queues)
    return f"where {lag} messages wait" if lag else "nothing waits there yet"


def names(names: Sequence[str]) -> str:
    """Joins a few names and the number of the rest; at least one."""
    more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
    shown = [*names[:NAMED_MAX], *more]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def age(ms: int) -> str:
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"
