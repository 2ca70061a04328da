"""Interface of a place that keeps the group record: read, compare-and-set, watch.

Every implementation passes one test suite (`tests/unit/evenq_broker/loops/coordinators`). In each of them, a
compare-and-set is one step for all processes, and a version is never written twice. An unknown outcome is
CoordinatorUnknown, never a guess. Nothing depends on time; a watch is a hint that may be late.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from evenq.errors import Error, InternalError
from evenq_broker.core.replication.record import GroupRecord, RecordRefused, Seen, record_of

BYTES_MAX = 16_384
"""Of a record as it is stored."""


class CoordinatorUnknown(Error):
    """The group record, or the outcome of a compare-and-set, is not known. Read it again."""

    code, retryable = InternalError.code, True
    is_logged = False
    """True: the coordinator has logged the outage, and will log its end."""


class RecordWentBack(Error):
    """The record is older than one seen before: a restored backup. An operator must write a higher epoch."""

    code = InternalError.code


class Coordinator(Protocol):
    """The record of one broker group. Every call ends within a bounded time."""

    async def read(self) -> Seen | None:
        """Returns the record; None: it does not exist yet. Raises CoordinatorUnknown, RecordWentBack, RecordRefused."""
        ...

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """Writes `proposed` if the record still has the token of `expected` (None: if it does not exist). Returns it as
        written, or None if the token was different. Raises CoordinatorUnknown if it is not known whether it was, or
        still will be, written; RecordWentBack; RecordRefused.
        """
        ...

    def watch(self) -> AsyncIterator[Seen]:
        """Yields the record, and its state after changes, perhaps not each. Raises the errors of `read`."""
        ...


def parsed_record(text: str | bytes, place: str) -> tuple[GroupRecord, Mapping[str, Any]]:
    """Returns a stored record, and all its fields. Raises RecordRefused with the name of the place."""
    if len(text) > BYTES_MAX:
        raise RecordRefused(f"{place} is over {BYTES_MAX} bytes, which no group record is")
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise RecordRefused(
            f"{place} is not valid JSON: {error}; another program wrote it; restore it (runbook GroupRecordAway)"
        ) from error
    return record_of(fields), fields
