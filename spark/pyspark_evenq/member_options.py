"""The options of a stream as a member of its consumer group: how it meets others, and its own past.

Called by `options`. Batch reads are no members, and neither is a stream without a group: there these options are
errors. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import SettingsError
from pyspark_evenq.option_values import choice

__all__ = ["MEMBER_NAMES", "Membership", "OnBusy", "OnConflict", "membership"]

MEMBER_NAMES = ("onGroupBusy", "onOffsetConflict", "queryName")


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
class Membership:
    """How a stream lives in its group."""

    on_busy: OnBusy = OnBusy.FAIL
    on_conflict: OnConflict = OnConflict.CHECKPOINT
    query_name: str = ""
    """How the stream is called in lists of members; empty: as its group."""


def membership(values: Mapping[str, str], *, streaming: bool, group: str) -> Membership:
    """From the options under their canonical names. Raises SettingsError."""
    for name in MEMBER_NAMES:
        if name in values and not streaming:
            raise SettingsError(f"option {name} is for streams; a batch read is no member of a group")
        if name in values and not group:
            raise SettingsError(f"option {name} is for members of a group; give the option group as well")
    return Membership(
        on_busy=choice(values, "onGroupBusy", OnBusy.FAIL),
        on_conflict=choice(values, "onOffsetConflict", OnConflict.CHECKPOINT),
        query_name=values.get("queryName", "").strip(),
    )
