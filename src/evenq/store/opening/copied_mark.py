"""The mark of a copied log, file `copied`: up to where a follower's log was on disk, so that a start can tell damage
from a torn tail and reads only a little.

Written by `LogCopy`, read at the next opening of the folder. It is rewritten in place, 40 bytes in one sector, after
each sync of the log and needs no sync of its own then: what it said before stays true, it only vouches for less. It is
synced now and then, which bounds how much less, and always before the log gets shorter or stops being clean: a mark
that says too much would make damage of a cut. One that does not fit its CRC counts as none. A store that leads does
not touch it; `checkpoint crc` tells whether one did since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, File, read_whole
from evenq.store.log.record import ByteField, struct_of

__all__ = ["MARK_FIELDS", "Mark", "MarkFile", "load"]

PATH: Final = "copied"
MAGIC: Final = 0x45764370  # "EvCp"
VERSION: Final = 1
CLEAN: Final = 1
RESETTING: Final = 2
MARK_FIELDS: Final = (
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "H"),
    ByteField("state", "H"),
    ByteField("checkpoint crc", "I"),
    ByteField("log start", "Q"),
    ByteField("scan from", "Q"),
    ByteField("synced end", "Q"),
)
FORM: Final = struct_of(MARK_FIELDS)
CRC_END: Final = 8  # the CRC covers everything behind itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What was certain when it was written."""

    log_start: int = 0
    """First log offset that was not given up."""
    scan_from: int = 0
    """Begin of a group of records a little before `synced_end`: a start checks the log from there."""
    synced_end: int = 0
    """The log before this offset is on disk; a group of records ends there."""
    clean: bool = False
    """The copy was closed in order: the log ends at `synced_end`."""
    resetting: bool = False
    """All that the folder holds is about to go; the log begins anew at `log_start`."""
    checkpoint_crc: int = 0
    """Of the checkpoint that lay beside it; 0: none did."""

    def packed(self) -> bytes:
        """The file."""
        state = CLEAN * self.clean | RESETTING * self.resetting
        fields = (VERSION, state, self.checkpoint_crc, self.log_start, self.scan_from, self.synced_end)
        crc = crc32c(FORM.pack(MAGIC, 0, *fields)[CRC_END:])
        return FORM.pack(MAGIC, crc, *fields)


def load(disk: Disk) -> Mark | None:
    """The mark; None if there is none or it is damaged. Raises StoreError for a version that is not known."""
    data = read_whole(disk, PATH)
    if data is None or len(data) < FORM.size:
        return None
    magic, crc, version, state, checkpoint_crc, log_start, scan_from, synced_end = FORM.unpack_from(data)
    if magic != MAGIC or crc32c(data[CRC_END : FORM.size]) != crc:
        return None
    if version != VERSION:
        raise StoreError(
            f"{disk.describe(PATH)} has format version {version}; this program reads version {VERSION}: "
            "start a newer program"
        )
    return Mark(
        log_start=log_start, scan_from=scan_from, synced_end=synced_end, clean=bool(state & CLEAN),
        resetting=bool(state & RESETTING), checkpoint_crc=checkpoint_crc,
    )  # fmt: skip


class MarkFile:
    """The file, kept open by the one who writes it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None

    def write(self, mark: Mark, *, durable: bool) -> None:
        """Rewrite it. `durable`: return when that is on disk."""
        file, named = self._file, True
        if file is None:
            named = PATH in self._disk.list("")
            file = self._file = self._disk.open(PATH, create=True)
        file.pwrite([mark.packed()], 0)
        if durable:
            file.sync()
        if not named:
            self._disk.sync_folder("")

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None
