"""The options of a stream as a member of its consumer group: other members, and its progress of earlier runs.

Called by `options`. They are errors for batch reads and streams without a group, which are not members. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import SettingsError
from pyspark_evenq.options.values import choice, flag, number

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
"""Options that need all queues: errors with assignment=shared."""


class AssignmentMode(StrEnum):
    """Queues of its topics that a stream reads."""

    EXCLUSIVE = "exclusive"
    """All, or it does not run."""
    SHARED = "shared"
    """Those that the group assigns to it, as to any other member."""


class OnBusy(StrEnum):
    """Reaction of a stream to other members of its group."""

    FAIL = "fail"
    WAIT = "wait"
    TAKEOVER = "takeover"


class OnConflict(StrEnum):
    """Start of a stream whose checkpoint and group progress differ."""

    CHECKPOINT = "checkpoint"
    BROKER = "broker"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipOptions:
    assignment: AssignmentMode = AssignmentMode.EXCLUSIVE
    weight: float = 1.0
    """Relative share of a shared stream, in groups whose weight is CAPACITY."""
    on_busy: OnBusy = OnBusy.FAIL
    on_conflict: OnConflict = OnConflict.CHECKPOINT
    follows_resets: bool = True
    """False: operators cannot move the group while the stream runs."""
    query_name: str = ""
    """Name of the stream in lists of members; empty: the group's name."""
    checkpoint: str = ""
    """Folder of the query's checkpoint, to check at a stop whether the last batch is done; empty: not known."""


def membership(values: Mapping[str, str], *, streaming: bool, group: str) -> MembershipOptions:
    for name in MEMBER_NAMES:
        if name in values and not streaming:
            raise SettingsError(f"option {name} is for streams; a batch read is not a member of a group")
        if name in values and not group:
            raise SettingsError(f"option {name} is for members of a group; give the option group as well")
    assignment = choice(values, "assignment", AssignmentMode.EXCLUSIVE)
    shared = assignment is AssignmentMode.SHARED
    for name in _OF_ALL if shared else _OF_SHARES:
        if name in values:
            raise SettingsError(
                f"option {name} does not go with assignment={assignment}: "
                + ("other members of the group read some of its queues" if shared else "the stream reads all queues")
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
