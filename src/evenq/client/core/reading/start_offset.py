"""The start offset of a newly assigned queue: `computePullFromWhere` (RB-41 to RB-48).

There are two steps, because the second may need an answer of the broker: `stored_start` classifies the stored offset,
`policy_start` applies the group's start policy.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from evenq.errors import BadRequest
from evenq.model import QueueOffset, StartFrom
from evenq.model.message import TIME_MIN_MS
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX

LAST_NAMES = (  # RB-44
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)
CLASSIC_NAMES = {
    **dict.fromkeys(LAST_NAMES, StartFrom.LAST),
    "CONSUME_FROM_FIRST_OFFSET": StartFrom.FIRST,
    "CONSUME_FROM_TIMESTAMP": StartFrom.TIMESTAMP,
}


def start_policy(name: str) -> StartFrom:
    """Returns the policy of a name; three old names of the classic client mean LAST (RB-44). Raises BadRequest."""
    if name in CLASSIC_NAMES:
        return CLASSIC_NAMES[name]
    if name not in set(StartFrom):
        raise BadRequest(f"start_from {name!r} is unknown; it is one of {', '.join(StartFrom)}")
    return StartFrom(name)


def timestamp_of(given: int | str) -> int:
    """Returns ms since the epoch, from ms or from `yyyyMMddHHmmss` in local time (RB-45). Raises BadRequest."""
    return _of_text(given) if isinstance(given, str) else in_ms("start_timestamp_ms", given)


def in_ms(name: str, given: int) -> int:
    """Returns the same number. Raises BadRequest for a number that is most likely in seconds; 0 is accepted."""
    if 0 < given < TIME_MIN_MS:
        raise BadRequest(
            f"{name} is {given}, before September 2001: it is in ms since the epoch, and this may be in seconds; give "
            "int(time.time() * 1000) - 3_600_000, for example"
        )
    return given


def _of_text(text: str) -> int:
    try:
        if len(text) != 14 or not text.isdigit():
            raise ValueError(text)
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1_000)  # noqa: DTZ007 - local, as the original
    except ValueError as error:
        raise BadRequest(
            f"start_timestamp {text!r} is not a time; give yyyyMMddHHmmss, as in 20240229143000, or ms as a number"
        ) from error


class StoredOffset(StrEnum):
    """The kinds of stored offsets."""

    KNOWN = "known"
    """0 or more: reading starts there under each policy."""
    NEVER = "never"
    """-1: the group never consumed here; the policy decides."""
    UNUSABLE = "unusable"
    """Any other value: the queue is not added in this round."""


def stored_start(stored: int) -> StoredOffset:
    """Classifies a stored offset (RB-41)."""
    if stored >= 0:
        return StoredOffset.KNOWN
    return StoredOffset.NEVER if stored == -1 else StoredOffset.UNUSABLE


def policy_start(topic: str, policy: StartFrom, *, maximum: int, at_timestamp: int, young: bool = False) -> QueueOffset:
    """Returns the start offset of a queue that was never consumed (RB-42).

    `maximum` is the end of the queue, `at_timestamp` the offset at the consume timestamp. FIRST returns 0, and the pull
    continues at the smallest stored offset (improves on RB-48). Retry topics start at 0 under all policies, so that no
    retry is skipped (improves on RB-47); so do dead-letter topics. `young`: LAST means 0 (RB-46).
    """
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return QueueOffset(0)
    match policy:
        case StartFrom.LAST:
            return QueueOffset(0 if young else maximum)
        case StartFrom.FIRST:
            return QueueOffset(0)
        case StartFrom.TIMESTAMP:
            return QueueOffset(at_timestamp)
