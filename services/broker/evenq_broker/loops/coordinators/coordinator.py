"""What replication needs of a place that keeps the group record: read, compare-and-set, watch.

Every implementation passes one test suite (`tests/unit/evenq_broker/loops/coordinators`). Always true of them: a
compare-and-set is one step for all processes, a version is never written twice, and an answer that is not known is
CoordinatorUnknown, never a guess. Time has no part in it; a watch is a hint that may be late.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from evenq.errors import Error, InternalError
from evenq_broker.core.replication.record import GroupRecord, RecordRefused, Seen, record_of

__all__ = ["BYTES_MAX", "Coordinator", "CoordinatorUnknown", "RecordWentBack", "parsed_record"]

BYTES_MAX = 16_384
"""Of a record as it is stored."""


class CoordinatorUnknown(Error):
    """It is not known what is in the group record, or whether a compare-and-set was carried out. Read it again."""

    code, retryable = InternalError.code, True
    is_logged = False
    """True: the place of the record has logged its outage by itself, and will log its end."""


class RecordWentBack(Error):
    """The group record is older than one that was seen before: it was restored from a backup. An operator must decide
    which broker has the newest log, and write a record with a higher epoch.
    """

    code = InternalError.code


class Coordinator(Protocol):
    """The record of one broker group. Every call ends within a bounded time."""

    async def read(self) -> Seen | None:
        """The record; None: there is none yet. Raises CoordinatorUnknown, RecordWentBack, RecordRefused."""
        ...

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """Write `proposed` if the record still has the token of `expected` (None: if there is none). Gives it as
        written, or None if the token was another. Raises CoordinatorUnknown if it is not known whether it was, or still
        will be, written; RecordWentBack; RecordRefused.
        """
        ...

    def watch(self) -> AsyncIterator[Seen]:
        """The record now, if there is one, and after each change; changes in between may be left out. Raises what
        `read` does; start it again then.
        """
        ...


def parsed_record(text: str | bytes, place: str) -> tuple[GroupRecord, Mapping[str, Any]]:
    """A record as it was stored, and all fields that stand there. Raises RecordRefused that names the place."""
    if len(text) > BYTES_MAX:
        raise RecordRefused(f"{place} is over {BYTES_MAX} bytes: no group record is")
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise RecordRefused(
            f"{place} is no JSON: {error}; something else wrote it: put the record back (runbook GroupRecordAway)"
        ) from error
    return record_of(fields), fields
