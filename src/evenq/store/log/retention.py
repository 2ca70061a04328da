"""Decides which log files retention deletes: facts in, a plan out. Nothing here uses a disk or a clock.

Files are deleted whole, oldest first, never the newest. By time: all in it is older than `retention_ms` and than the
retention of each topic that keeps longer, at the hour, or at any hour once the disk is fuller than `disk_clean_ratio`.
By space: over `disk_force_ratio` at any age, except what is kept for ever (retention 0). Files in which no queue keeps
anything any more, since their topics keep less or are gone, are deleted at any hour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HOUR_MS: Final = 3_600_000
ANY_HOUR: Final = -1
FOR_EVER: Final = 0


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """One file of the log."""

    start: int
    last_ms: int
    """Nothing in it was stored later."""


@dataclass(frozen=True, slots=True)
class RetentionHold:
    """A queue whose topic keeps its messages longer than the store does."""

    log_offset: int
    """Place of its oldest message."""
    retention_ms: int
    """0 for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """Input of a decision."""

    now_ms: int
    retention_ms: int
    """0 for ever: then only files that no queue keeps are deleted, and a full disk refuses messages."""
    retention_hour: int
    """UTC, -1 for any."""
    clean_ratio: float
    force_ratio: float
    used_ratio: float
    disk_bytes: int
    segment_bytes: int
    segments: Sequence[SegmentFact]
    """Oldest first, the newest too."""
    holds: Sequence[RetentionHold] = ()
    unneeded_before: int = 0
    """No queue keeps a message before this log offset."""
    keep_from: int | None = None
    """Log offset from which everything is needed (a snapshot that cannot be taken again); None if nothing is."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The log's new start, and one reason for each file that is deleted."""

    log_start: int
    reasons: tuple[str, ...]


def plan(facts: RetentionFacts) -> RetentionPlan | None:
    """Returns which files are deleted; None without any."""
    reasons: list[str] = []
    forced = _forced(facts)
    # From the oldest to the first that stays: a log has no gap in its middle.
    for segment in facts.segments[:-1]:
        end = segment.start + facts.segment_bytes
        if facts.keep_from is not None and end > facts.keep_from:
            break
        if end <= facts.unneeded_before:
            reasons.append("no queue keeps anything in it any more")
        elif _expired(facts, segment, end):
            reasons.append(_why(facts, segment))
        elif len(reasons) < forced and not any(
            hold.retention_ms == FOR_EVER and hold.log_offset < end for hold in facts.holds
        ):
            reasons.append(
                f"the disk is {facts.used_ratio:.1%} full; from {facts.force_ratio:.1%} on files are deleted at any age"
            )
        else:
            break
    if not reasons:
        return None
    return RetentionPlan(facts.segments[len(reasons)].start, tuple(reasons))


def _forced(facts: RetentionFacts) -> int:
    """Returns how many files must be deleted to bring the disk under its upper mark."""
    over = (facts.used_ratio - facts.force_ratio) * facts.disk_bytes
    if facts.retention_ms == FOR_EVER or facts.used_ratio < facts.force_ratio:
        return 0
    return max(1, math.ceil(over / facts.segment_bytes))


def _expired(facts: RetentionFacts, segment: SegmentFact, end: int) -> bool:
    hour = facts.now_ms // HOUR_MS % 24
    due = facts.retention_hour in (ANY_HOUR, hour) or facts.used_ratio >= facts.clean_ratio
    age_ms = facts.now_ms - segment.last_ms
    if not due or facts.retention_ms == FOR_EVER or age_ms <= facts.retention_ms:
        return False
    return not any(
        hold.log_offset < end and (hold.retention_ms == FOR_EVER or age_ms <= hold.retention_ms) for hold in facts.holds
    )


def _why(facts: RetentionFacts, segment: SegmentFact) -> str:
    return f"its newest record is {facts.now_ms - segment.last_ms} ms old, {facts.retention_ms} ms are kept"
