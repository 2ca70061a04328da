"""Schedules of one broker: their table, the rules of their definitions, and what is fired. Pure; decision 150.

Always true: a time that is not after a schedule's `done_ms` is never fired, and `done_ms` moves back only if an
operator resumes the schedule. Called by `loops.sending.schedules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from evenq.errors import BadRequest, TooManyRequests
from evenq.serving.auth.users import UserResource
from evenq_broker.core.sending.cron import Cron, DueTimes, Every, ZoneOf
from evenq_broker.core.shares import Shares, UsersNow, no_users
from evenq_broker.core.state.schedule_records import (
    DEFINITION,
    Missed,
    Schedule,
    ScheduleFired,
    ScheduleOp,
    SchedulePut,
    ScheduleRemoved,
)

TOPIC_MAX = 100
"""Most schedules of one topic."""
MESSAGE_BYTES_MAX = 16 << 10
"""Most bytes of body, tag, keys, message group and properties together: every snapshot contains them."""
MISSED_MAX = 100
LATE_MS = 60_000
"""With SKIP, a later firing is missed. Quartz: misfireThreshold, 60 s."""
NAME_PROPERTY, TIME_PROPERTY = "evenq-schedule", "evenq-schedule-time-ms"
"""Properties of the messages: name of the schedule, and the time that the firing is for, ms since the epoch."""
_NAME = re.compile(r"(?!\.+$)[a-zA-Z0-9._-]{1,64}")
"""Without `.` and `..`, which no address of a page can contain."""


def must_be_legal(schedule: Schedule) -> None:
    """Raises BadRequest for a definition that is not valid, apart from its rule and its message."""
    if not _NAME.fullmatch(schedule.name):
        raise BadRequest(
            f"the schedule's name is {schedule.name[:80]!r}; give 1 to 64 letters, digits, '.', '_' and '-', and "
            "not only dots"
        )
    if bool(schedule.cron) == bool(schedule.every_ms):
        raise BadRequest(
            "a schedule has one rule: give either a cron expression, such as '0 6 * * MON-FRI Europe/Berlin', or an "
            "interval, such as 10m"
        )
    if schedule.missed is Missed.ALL and not 1 <= schedule.missed_max <= MISSED_MAX:
        raise BadRequest(f"{schedule.missed_max} missed firings are to be sent, the range is 1 to {MISSED_MAX}")
    if schedule.missed is not Missed.ALL and schedule.missed_max:
        raise BadRequest("a number of missed firings needs the policy all")
    texts = [
        schedule.tag,
        schedule.message_group,
        *schedule.keys,
        *(one for pair in schedule.properties for one in pair),
    ]
    size = len(schedule.body) + sum(len(text.encode()) for text in texts)
    if size > MESSAGE_BYTES_MAX:
        raise BadRequest(
            f"body, tag, keys, message group and properties have {size} bytes, the limit for a schedule is "
            f"{MESSAGE_BYTES_MAX}; store the content elsewhere and send a reference"
        )
    for key, _ in schedule.properties:
        if key in {NAME_PROPERTY, TIME_PROPERTY}:
            raise BadRequest(f"the property {key} is set by the schedule; use another name")


def rule_of(schedule: Schedule, zone_of: ZoneOf) -> Every | Cron:
    """Returns the rule. Raises ValueError with a sentence."""
    return Cron.parse(schedule.cron, zone_of) if schedule.cron else Every(schedule.every_ms)


def is_same(one: Schedule, other: Schedule) -> bool:
    """True if both have one definition."""
    return all(getattr(one, name) == getattr(other, name) for name in DEFINITION)


def message_id_of(schedule: Schedule, at_ms: int) -> str:
    """Returns the id of a firing's message: 34 hexadecimal digits, the same for each try."""
    return blake2b(f"{schedule.uid} {at_ms}".encode(), digest_size=17).hexdigest().upper()


def kept_of(schedule: Schedule) -> int:
    """Returns the number of missed times that may be fired."""
    return schedule.missed_max if schedule.missed is Missed.ALL else 1


def fired(schedule: Schedule, due: DueTimes, now_ms: int) -> tuple[Sequence[int], ScheduleFired]:
    """Returns the times that get a message, ascending, and the schedule's new state."""
    times = due.newest
    if schedule.missed is Missed.SKIP:
        times = tuple(one for one in times if now_ms - one <= LATE_MS)
    return times, ScheduleFired(
        schedule.topic_id,
        schedule.name,
        done_ms=max(schedule.done_ms, due.until_ms),
        fired=schedule.fired + len(times),
        passed=schedule.passed + due.passed + len(due.newest) - len(times),
        last_ms=times[-1] if times else schedule.last_ms,
    )


@dataclass(slots=True)
class KeptSchedule:
    """A schedule of this broker, and what its loop knows of it."""

    schedule: Schedule
    rule: Every | Cron | None = None
    """None: `problem` says why there is none, or it is not read yet."""
    next_ms: int | None = None
    """Next firing, unless it is paused."""
    looked_ms: int = 0
    """Times up to this one were looked at; of a long outage only a part is looked at in one step."""
    looked_passed: int = 0
    """Number of times between `done_ms` and `looked_ms`."""
    problem: str = ""
    """Why it does not fire; empty: it does."""
    missed_at_ms: int | None = None
    """When times without a message were noted last, by the monotonic clock; None: not since the start."""

    @property
    def state(self) -> str:
        """Its state for metrics: active, paused or failing."""
        return "paused" if self.schedule.paused else "failing" if self.trouble else "active"

    @property
    def trouble(self) -> str:
        """Why it does not fire, also if it is handed over; empty: it does."""
        schedule = self.schedule
        if not schedule.moving_to:
            return self.problem
        return (
            f"it is being moved to broker {schedule.moving_to}, and nothing sends it until that is done; "
            f"`evenq schedule move TOPIC {schedule.name}` continues"
        )

    def put(self, schedule: Schedule, rule: Every | Cron | None) -> None:
        """Replaces the schedule."""
        self.schedule, self.rule = schedule, rule
        self.problem = self.problem if rule is None else ""
        self.moved()

    def moved(self) -> None:
        """Computes the next firing anew."""
        self.looked_ms = self.looked_passed = 0
        self.next_ms = None if self.rule is None else self.rule.next_ms(self.schedule.done_ms)

    def apply(self, op: ScheduleFired) -> None:
        """Notes a firing."""
        self.schedule = replace(self.schedule, done_ms=op.done_ms, fired=op.fired, passed=op.passed, last_ms=op.last_ms)
        self.moved()


class ScheduleTable:
    """All schedules of one broker."""

    def __init__(self, *, all_max: int, users: UsersNow = no_users) -> None:
        """`users`: see `core.shares`."""
        self._shares = Shares(UserResource.TOPIC, users, limit=all_max, setting="schedules_max", what="schedules")
        self._version = 0
        self._kept: dict[int, dict[str, KeptSchedule]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __iter__(self) -> Iterator[KeptSchedule]:
        return iter([one for of_topic in self._kept.values() for one in of_topic.values()])

    def get(self, topic_id: int, name: str) -> KeptSchedule | None:
        return self._kept.get(topic_id, {}).get(name)

    def of(self, topic_id: int) -> list[KeptSchedule]:
        """Returns those of one topic, by name."""
        return [one for _, one in sorted(self._kept.get(topic_id, {}).items())]

    def must_have_room(self, topic: str, topic_id: int, names: dict[int, str]) -> None:
        """Raises TooManyRequests if one more schedule of the topic does not fit. `names` of all topics, by id."""
        mine = len(self._kept.get(topic_id, ()))
        if mine >= TOPIC_MAX:
            raise TooManyRequests(
                f"topic {topic} has {mine} schedules, the limit is {TOPIC_MAX}: remove some (`evenq schedule delete`)"
            )
        counts = {names.get(key, ""): len(of_topic) for key, of_topic in self._kept.items()}
        refusal = self._shares.refusal(topic, lambda: counts, total=len(self), version=self._version)
        if refusal:
            raise TooManyRequests(f"{refusal}: remove some (`evenq schedule delete`), or raise the limit")

    def put(self, schedule: Schedule, rule: Every | Cron | None = None) -> KeptSchedule:
        """Adds or replaces a schedule."""
        self._version += 1
        of_topic = self._kept.setdefault(schedule.topic_id, {})
        kept = of_topic.get(schedule.name)
        if kept is None:
            kept = of_topic[schedule.name] = KeptSchedule(schedule)
        kept.put(schedule, rule)
        return kept

    def remove(self, topic_id: int, name: str) -> None:
        """Removes a schedule; a repetition changes nothing."""
        self._version += 1
        of_topic = self._kept.get(topic_id, {})
        of_topic.pop(name, None)
        if not of_topic:
            self._kept.pop(topic_id, None)

    def forget_topic(self, topic_id: int) -> None:
        self._version += 1
        self._kept.pop(topic_id, None)

    def apply(self, op: ScheduleOp) -> None:
        """Replays an operation of the journal."""
        if isinstance(op, SchedulePut):
            self.put(op.schedule)
        elif isinstance(op, ScheduleRemoved):
            self.remove(op.topic_id, op.name)
        elif (kept := self.get(op.topic_id, op.name)) is not None:
            kept.apply(op)
