"""Copies whose records are not those of their group, although epochs and offsets fit: what is said, and what is done.

A record of one epoch at one offset is the same on all copies (I4), unless a disk was cloned or put back while the group
went on. Where the bytes show it, such a copy is refused: by itself, when the last record that it has in common with its
leader by epochs and offsets is another one, or its log has to be cut within a record; and by its leader, when it asks
for records from a place that lies within one. After an unclean election logs part for good,
and what is cut is kept aside. Called by `ReplicaLog` and `ReplicaDriver`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from evenq.errors import StoreError, WithinRecord
from evenq.store.copies.log_copy import LogCopy
from evenq_broker.core.replication.messages import LastRecord

__all__ = ["compare", "cut", "ends_elsewhere", "keep_lost"]

log = logging.getLogger(__name__)

WHY = (
    "Same epochs and offsets are the same bytes on all copies of a group, so this log is of another history, as that "
    "of a cloned or restored disk is. Start that copy with an empty folder: it copies everything from the others"
)


async def compare(
    theirs: LastRecord | None, own: Callable[[int], Awaitable[LastRecord | None]], copy: LogCopy, *, group: str
) -> None:
    """Before the log is cut where the leader's says. Raises StoreError if the last record below that place is another
    than the leader's. What is not known, here or there, is not compared: damage of a disk is no other history.
    """
    mine = None if theirs is None else await own(theirs.end)
    if theirs is None or mine is None or mine == theirs:
        return
    epoch = copy.epochs[-1][0] if copy.epochs else 0
    raise StoreError(
        f"the log of this copy of {group} is in epoch {epoch} and ends at {copy.end}, and its last record before log "
        f"offset {theirs.end} begins at {mine.start} with crc32c {mine.crc32c:08x}, its leader's at {theirs.start} "
        f"with {theirs.crc32c:08x}. {WHY}. If more than one copy is refused like this, look at the leader's disk first"
    )


async def cut(copy: LogCopy, end: int, *, group: str) -> None:
    """Cut the log where the leader's says. Raises StoreError if the bytes show that it is no log of this group, else as
    `LogCopy.truncate`.
    """
    own_end, epoch = copy.end, copy.epochs[-1][0] if copy.epochs else 0
    try:
        await copy.truncate(end)
    except WithinRecord as error:
        raise StoreError(
            f"the log of this copy of {group} is in epoch {epoch} and ends at {own_end}, its leader's ends at {end}, "
            f"and no record ends there. {WHY}"
        ) from error


async def keep_lost(copy: LogCopy, end: int, unclean: int, *, group: str) -> None:
    """Before committed records may go, by an unclean election of epoch `unclean` (0: there was none): say how many, and
    keep them aside as far as there is room (R20).
    """
    if not unclean or end >= copy.end:
        return
    lost = await copy.keep_lost(end)
    log.error(
        "replica %s: %d bytes of the log from %d on, with %d messages of clients, are discarded: a copy that "
        "lacked them was made leader of epoch %d by an operator, and they may have been acknowledged. %s",
        group, copy.end - end, end, lost.messages, unclean, lost.where,
        extra={"bytes": copy.end - end, "messages": lost.messages, "epoch": unclean, "kept_bytes": lost.kept_bytes},
    )  # fmt: skip


def ends_elsewhere(end: int) -> str:
    """For a follower that reported that its log ends at `end`: why its leader has no records for it."""
    return f"its log ends at {end}, where no record of its leader's ends. {WHY}"
