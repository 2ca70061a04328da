"""Schedules of recurring messages, and their operations in the journal (`core.state.records`), one JSON text each.

All are absolute, as the journal requires. `loops.sending.schedules` makes and applies them. Decision 150.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from evenq.errors import StoreCorrupted


class Missed(StrEnum):
    """Treatment of several times that passed since the last firing."""

    ONE = "one"
    """The last one is fired."""
    SKIP = "skip"
    """The last one is fired if it is hardly late."""
    ALL = "all"
    """The last `missed_max` are fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring message, its rule, and what was fired."""

    topic_id: int
    name: str
    """Unique in its topic."""
    uid: str
    cron: str = ""
    """Expression, with the name of its time zone; empty: `every_ms` is the rule."""
    every_ms: int = 0
    missed: Missed = Missed.ONE
    missed_max: int = 0
    """With ALL: the number of times that are fired."""
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    message_group: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    """Ascending."""
    paused: bool = False
    made_ms: int = 0
    done_ms: int = 0
    """Times up to this one are done, ms since the epoch: the next firing is the first time of the rule after it."""
    fired: int = 0
    """Number of messages."""
    passed: int = 0
    """Number of missed times without a message."""
    last_ms: int = 0
    """Time of the last message; 0: none."""
    moving_to: str = ""
    """The broker to which it is handed over: it never fires here again. See `loops.sending.schedule_moves`."""
    came_from: str = ""
    """The broker that handed it over and may still have it; empty: none has."""
    hop: int = 0
    """How many times it was handed over."""

    @property
    def key(self) -> tuple[int, str]:
        """Its identity on this broker."""
        return self.topic_id, self.name


_STATE = {"uid", "paused", "made_ms", "done_ms", "fired", "passed", "last_ms", "moving_to", "came_from", "hop"}
DEFINITION = tuple(field.name for field in fields(Schedule) if field.name not in _STATE)
"""Fields that a user gives."""


@dataclass(frozen=True, slots=True)
class SchedulePut:
    """A new or changed schedule."""

    schedule: Schedule


@dataclass(frozen=True, slots=True)
class ScheduleFired:
    """Firing of a schedule, in the group of its messages; also times that passed without one."""

    topic_id: int
    name: str
    done_ms: int
    fired: int
    passed: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class ScheduleRemoved:
    topic_id: int
    name: str


ScheduleOp = SchedulePut | ScheduleFired | ScheduleRemoved


def schedule_json(op: ScheduleOp) -> dict[str, Any]:
    """Returns the operation as JSON."""
    if isinstance(op, SchedulePut):
        value = asdict(op.schedule)
        return {"op": "put", **value, "body": b64encode(op.schedule.body).decode()}
    return {"op": "fired" if isinstance(op, ScheduleFired) else "removed", **asdict(op)}


def schedule_op_of(value: dict[str, Any]) -> ScheduleOp:
    """Reads an operation. Raises StoreCorrupted for one that this program does not know, KeyError, ValueError."""
    kind = value.pop("op")
    if kind == "put":
        known = {field.name for field in fields(Schedule)}
        read = {name: one for name, one in value.items() if name in known}
        read["body"] = b64decode(read["body"])
        read["missed"] = Missed(read["missed"])
        read["keys"] = tuple(read["keys"])
        read["properties"] = tuple((key, one) for key, one in read["properties"])
        return SchedulePut(Schedule(**read))
    if kind == "fired":
        return ScheduleFired(*(value[field.name] for field in fields(ScheduleFired)))
    if kind == "removed":
        return ScheduleRemoved(value["topic_id"], value["name"])
    raise StoreCorrupted(f"a state record has the operation {kind!r} of schedules, which this program does not know")
