"""The options of a stream as a member of its consumer group: how it meets others, and its own past.

Called by `options`. Batch reads are no members, and neither is a stream without a group: there these options are
errors. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import SettingsError
from pyspark_evenq.option_values import choice, flag, number

__all__ = ["MEMBER_NAMES", "AssignmentMode", "MembershipOptions", "OnBusy", "OnConflict", "membership"]

MEMBER_NAMES = (
    "assignment",
    "memberWeight",
    "onGroupBusy",
    "onOffsetConflict",
    "honorOffsetReset",
    "queryName",
    "checkpointLocation",
)
WEIGHT_MAX = 1_000_000
_OF_SHARES = ("memberWeight",)
_OF_ALL = ("onGroupBusy", "groupIdPrefix", "assign")
"""What makes no sense where others have a part of the queues."""


class AssignmentMode(StrEnum):
    """Which queues of its topics a stream reads."""

    EXCLUSIVE = "exclusive"
    """All, or it does not run."""
    SHARED = "shared"
    """Those that the group gives it, as any other member."""


class OnBusy(StrEnum):
    """What a stream does when others read in its group."""

    FAIL = "fail"
    WAIT = "wait"
    TAKEOVER = "takeover"


class OnConflict(StrEnum):
    """Where a stream begins when its checkpoint and its group's progress differ."""

    CHECKPOINT = "checkpoint"
    BROKER = "broker"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    """How a stream lives in its group."""

    assignment: AssignmentMode = AssignmentMode.EXCLUSIVE
    weight: float = 1.0
    """How much a shared stream takes beside others, in groups whose weight is CAPACITY."""
    on_busy: OnBusy = OnBusy.FAIL
    on_conflict: OnConflict = OnConflict.CHECKPOINT
    follows_resets: bool = True
    """False: operators cannot move the group while the stream runs."""
    query_name: str = ""
    """How the stream is called in lists of members; empty: as its group."""
    checkpoint: str = ""
    """The folder of the query's checkpoint, to see at a stop whether the last batch is done; empty: not known."""


def membership(values: Mapping[str, str], *, streaming: bool, group: str) -> MembershipOptions:
    """From the options under their canonical names. Raises SettingsError."""
    for name in MEMBER_NAMES:
        if name in values and not streaming:
            raise SettingsError(f"option {name} is for streams; a batch read is no member of a group")
        if name in values and not group:
            raise SettingsError(f"option {name} is for members of a group; give the option group as well")
    assignment = choice(values, "assignment", AssignmentMode.EXCLUSIVE)
    shared = assignment is AssignmentMode.SHARED
    for name in _OF_ALL if shared else _OF_SHARES:
        if name in values:
            raise SettingsError(
                f"option {name} does not go with assignment={assignment}: "
                + ("others of the group have their part of its queues" if shared else "all queues are the stream's")
            )
    return MembershipOptions(
        assignment=assignment,
        weight=number(values, "memberWeight", default=1.0, high=WEIGHT_MAX),
        on_busy=choice(values, "onGroupBusy", OnBusy.FAIL),
        on_conflict=choice(values, "onOffsetConflict", OnConflict.CHECKPOINT),
        follows_resets=flag(values, "honorOffsetReset", default=True),
        query_name=values.get("queryName", "").strip(),
        checkpoint=values.get("checkpointLocation", "").strip(),
    )
