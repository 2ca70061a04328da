"""The epoch table of a log, file `epochs`: the log offset at which the records of each leadership begin.

Only `LogCopy` writes it. The file is replaced and synced before the first record of a new epoch is appended, so after a
crash it is ahead of the log, never behind. A missing or damaged file is derived from the log, whose records carry their
epoch. `led` is the last epoch that was led from here: only its records describe this disk. JSON, for human readers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, read_whole, write_whole
from evenq.store.log import segment
from evenq.store.log.log_pieces import LogPieces

log = logging.getLogger(__name__)

PATH: Final = "epochs"
FORMAT: Final = 1
ENTRIES_MAX: Final = 1_000
"""The oldest entries are dropped first, as in the table that replicas compare."""

Entry = tuple[int, int]
"""Epoch and log offset of its first frame."""


@dataclass(frozen=True, slots=True)
class EpochStarts:
    """Starts of epochs, ascending in both numbers."""

    entries: tuple[Entry, ...] = ()
    led: int = 0
    """Epoch that this folder's own leader wrote, if the log ends with it and none of it was copied; otherwise 0."""

    @property
    def last(self) -> int:
        """Epoch of the last record; 0 without records."""
        return self.entries[-1][0] if self.entries else 0

    def epoch_at(self, log_offset: int) -> int:
        """Returns the epoch that wrote at a place; 0 if it is not known."""
        return next((epoch for epoch, start in reversed(self.entries) if start <= log_offset), 0)

    def grown(self, started: Sequence[Entry], *, led: int = 0) -> EpochStarts:
        """Returns the table after records of the epochs `started` were appended; `led`: by a leader of this folder."""
        if not started and led == self.led:
            return self
        return EpochStarts((*self.entries, *started)[-ENTRIES_MAX:], led)

    def cut(self, end: int) -> EpochStarts:
        """Returns the table of a log that is cut at `end`. The cut part may be copied again from another log."""
        return EpochStarts(tuple(entry for entry in self.entries if entry[1] < end))

    def begun(self, start: int) -> EpochStarts:
        """Returns the table of a log without its part below `start`; the epoch that wrote there begins at `start`."""
        epoch = self.epoch_at(start)
        newer = tuple(entry for entry in self.entries if entry[1] > start)
        return EpochStarts(((epoch, start), *newer) if epoch else newer, self.led)


def save(disk: Disk, starts: EpochStarts) -> None:
    entries = [list(entry) for entry in starts.entries]
    text = {"format": FORMAT, "epochs": entries, "led": starts.led, "crc32c": _crc(entries, starts.led)}
    write_whole(disk, PATH, json.dumps(text).encode())


def load(disk: Disk) -> EpochStarts | None:
    """Returns the file's table; None if it is missing or damaged. Raises StoreError for an unknown format."""
    data = read_whole(disk, PATH)
    if data is None:
        return None
    try:
        text = json.loads(data)
        version = text["format"]
        if version == FORMAT:
            entries = [[int(epoch), int(start)] for epoch, start in text["epochs"]]
            if text["crc32c"] != _crc(entries, int(text["led"])):
                raise ValueError("its checksum does not fit")
            return EpochStarts(tuple((epoch, start) for epoch, start in entries), int(text["led"]))
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is damaged (%s): rebuilding it from the log", disk.describe(PATH), error)
        return None
    raise StoreError(
        f"{disk.describe(PATH)} has format {version}; this program reads format {FORMAT}: start a newer program"
    )


def derive(disk: Disk, segment_bytes: int, start: int, end: int) -> tuple[Entry, ...]:
    """Returns the entries of the log `start` .. `end`, from the headers of its records. Epochs never fall, so a file is
    not walked if the next one begins with the same epoch: an old log costs one read per file. Raises StoreCorrupted.
    """
    pieces = LogPieces(disk, segment_bytes)
    entries: list[Entry] = []
    try:
        places = [max(file, start) for file in range(segment.segment_of(start, segment_bytes)[0], end, segment_bytes)]
        firsts = [pieces.epoch_at(place, end) for place in places]
        for place, first, following in zip(places, firsts, (*firsts[1:], 0), strict=False):
            _note(entries, first, place)
            if first != following:
                for epoch, log_offset in pieces.epochs(place, min(place - place % segment_bytes + segment_bytes, end)):
                    _note(entries, epoch, log_offset)
    finally:
        pieces.close()
    return tuple(entries[-ENTRIES_MAX:])


def _note(entries: list[Entry], epoch: int, log_offset: int) -> None:
    if epoch > (entries[-1][0] if entries else 0):
        entries.append((epoch, log_offset))


def _crc(entries: list[list[int]], led: int) -> int:
    return crc32c(json.dumps([entries, led]).encode())
