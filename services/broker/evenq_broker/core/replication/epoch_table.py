"""Epochs of a log: a step function from offsets to epochs, derived from the log itself.

A leader begins its epoch with an epoch-start record, so every epoch of the log has at least one record and an entry
here. Two logs agree up to the last offset at which their epochs agree, and a follower cuts there (R4; the idea is
Kafka's KIP-101 and KIP-279). Immutable. Bounded: the oldest entries are dropped first, so a follower that shares none
of the newer ones copies the log anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ENTRIES_MAX = 1_000


class TableRefused(ValueError):
    """Error for a table that is not ascending or too long."""


class EpochStart(NamedTuple):
    """Offset of the first record that an epoch wrote."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class EpochTable:
    """Entries ascending in both fields; the log's first byte is at `start`."""

    start: int = 0
    entries: tuple[EpochStart, ...] = ()

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; 0: the log is empty."""
        return self.entries[-1].epoch if self.entries else 0

    def appended(self, epoch: int, offset: int) -> EpochTable:
        """Returns the table with a record of `epoch` appended at `offset`. Raises TableRefused for a lower epoch."""
        last = self.last_epoch
        if epoch == last:
            return self
        if epoch < last or (self.entries and offset <= self.entries[-1].offset):
            raise TableRefused(f"epoch {epoch} at {offset} behind epoch {last}: epochs of a log only grow")
        return EpochTable(self.start, (*self.entries, EpochStart(epoch, offset))[-ENTRIES_MAX:])

    def cut(self, end: int) -> EpochTable:
        entries = self.entries
        while entries and entries[-1].offset >= end:
            entries = entries[:-1]
        return self if entries is self.entries else EpochTable(self.start, entries)

    def begun(self, start: int) -> EpochTable:
        """Returns the table after retention removed all below `start`: the rest begins in the epoch that wrote it."""
        older = [entry for entry in self.entries if entry.offset <= start]
        newer = tuple(entry for entry in self.entries if entry.offset > start)
        # The epoch of the first record that is left keeps an entry, moved up. Without it, logs that differ only there
        # would seem to share nothing and would be copied anew.
        return EpochTable(start, (EpochStart(older[-1].epoch, start), *newer) if older else newer)

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch of the record that holds `offset`, which must be below the log's end; 0: not known."""
        for entry in reversed(self.entries):
            if entry.offset <= offset:
                return entry.epoch
        return 0

    def between(self, start: int, end: int) -> tuple[EpochStart, ...]:
        """Returns entries whose first record lies in [start, end)."""
        return tuple(entry for entry in self.entries if start <= entry.offset < end)

    def problem(self, end: int) -> str:
        """Returns what is wrong with a peer's table, for a log that ends at `end`; empty: nothing."""
        if len(self.entries) > ENTRIES_MAX:
            return f"{len(self.entries)} epochs, at most {ENTRIES_MAX}"
        epoch, offset = 0, self.start - 1
        for entry in self.entries:
            if entry.epoch <= epoch or entry.offset <= offset:
                return f"epoch {entry.epoch} at {entry.offset} follows epoch {epoch} at {offset}"
            epoch, offset = entry
        # One past the start: a log that retention left without a record keeps the entry of its last epoch (`begun`).
        if not 0 <= self.start <= end or offset >= max(end, self.start + 1):
            return f"a log from {self.start} to {end} with an epoch that begins at {offset}"
        return ""


EMPTY = EpochTable()


def common_end(mine: EpochTable, my_end: int, theirs: EpochTable, their_end: int) -> int | None:
    """Returns the end of what two logs share, behind the last offset at which their epochs are equal; None: nothing."""
    spans = {}
    following = their_end
    for entry in reversed(theirs.entries):
        spans[entry.epoch] = (entry.offset, following)
        following = entry.offset
    following = my_end
    for entry in reversed(mine.entries):
        span = spans.get(entry.epoch)
        if span is not None:
            end = min(following, span[1])
            if max(entry.offset, span[0]) < end:
                return end
        following = entry.offset
    return None
