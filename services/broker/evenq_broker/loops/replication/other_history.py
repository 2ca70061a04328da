"""Copies with records of another history, although epochs and offsets fit: detection, messages, consequences.

A record of one epoch at one offset is the same on all copies (I4), unless a disk was cloned or restored while the group
continued. If the bytes show it, such a copy is rejected. It rejects itself if its last common record with the leader,
by epochs and offsets, differs, or if its log has to be cut within a record. Its leader rejects it if it requests
records from a place within one. After an unclean election logs diverge for good, and the cut part is kept aside. Called
by `ReplicaLog` and `ReplicaDriver`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from evenq.errors import StoreError, WithinRecord
from evenq.store.copies.log_copy import LogCopy
from evenq_broker.core.replication.messages import LastRecord

log = logging.getLogger(__name__)

WHY = (
    "Same epochs and offsets are the same bytes on all copies of a group, so this log is of another history, as that "
    "of a cloned or restored disk is. Start that copy with an empty folder: it copies everything from the others"
)


async def compare(
    theirs: LastRecord | None, own: Callable[[int], Awaitable[LastRecord | None]], copy: LogCopy, *, group: str
) -> None:
    """Compares the last common records before a cut, if both are known. Raises StoreError if they differ."""
    mine = None if theirs is None else await own(theirs.end)
    if theirs is None or mine is None or mine == theirs:
        return
    epoch = copy.epochs[-1][0] if copy.epochs else 0
    raise StoreError(
        f"the log of this copy of {group} is in epoch {epoch} and ends at {copy.end}, and its last record before log "
        f"offset {theirs.end} begins at {mine.start} with crc32c {mine.crc32c:08x}, its leader's at {theirs.start} "
        f"with {theirs.crc32c:08x}. {WHY}. If more than one copy is rejected like this, look at the leader's disk first"
    )


async def cut(copy: LogCopy, end: int, *, group: str) -> None:
    """Cuts the log at the leader's end. Raises StoreError for another group's log, and errors of `truncate`."""
    own_end, epoch = copy.end, copy.epochs[-1][0] if copy.epochs else 0
    try:
        await copy.truncate(end)
    except WithinRecord as error:
        raise StoreError(
            f"the log of this copy of {group} is in epoch {epoch} and ends at {own_end}, its leader's ends at {end}, "
            f"and no record ends there. {WHY}"
        ) from error


async def keep_lost(copy: LogCopy, end: int, unclean: int, *, group: str) -> None:
    """Reports and keeps aside committed records that a cut removes after an unclean election (0: none) (R20)."""
    if not unclean or end >= copy.end:
        return
    lost = await copy.keep_lost(end)
    log.error(
        "replica %s: %d bytes of the log from %d on, with %d messages of clients, are discarded: a copy that "
        "lacked them was made leader of epoch %d by an operator, and they may have been acknowledged. %s",
        group,
        copy.end - end,
        end,
        lost.messages,
        unclean,
        lost.where,
        extra={"bytes": copy.end - end, "messages": lost.messages, "epoch": unclean, "kept_bytes": lost.kept_bytes},
    )


def ends_elsewhere(end: int) -> str:
    """Returns why the leader has no records for a follower whose log ends at `end`."""
    return f"its log ends at {end}, where no record of its leader's ends. {WHY}"
