"""The mark of a copied log, file `copied`: the log offset up to which a follower's log was on disk. With it a start
distinguishes damage from a torn tail and reads only a little.

`LogCopy` writes it; the next opening of the folder reads it. It is rewritten in place, 40 bytes in one sector, after
each sync of the log, and needs no sync of its own then: an older mark stays true and only vouches for less. It is
synced now and then, which bounds how much less, and always before the log gets shorter or stops being clean: a mark
that vouches for too much would turn a cut into damage. A mark that does not match its CRC counts as missing. A store
that leads does not write it; `checkpoint crc` shows whether one did lead since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, File, read_whole
from evenq.store.log.record import ByteField, struct_of

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
    """State that was certain when it was written."""

    log_start: int = 0
    """First log offset that the log still has."""
    scan_from: int = 0
    """Start of a group of records a little before `synced_end`: a start checks the log from there."""
    synced_end: int = 0
    """The log before this offset is on disk; a group of records ends there."""
    clean: bool = False
    """The copy was closed in order: the log ends at `synced_end`."""
    resetting: bool = False
    """All that the folder holds is about to be deleted; the log begins again at `log_start`."""
    checkpoint_crc: int = 0
    """CRC of the checkpoint that lay beside it; 0 without one."""

    def packed(self) -> bytes:
        state = CLEAN * self.clean | RESETTING * self.resetting
        fields = (VERSION, state, self.checkpoint_crc, self.log_start, self.scan_from, self.synced_end)
        crc = crc32c(FORM.pack(MAGIC, 0, *fields)[CRC_END:])
        return FORM.pack(MAGIC, crc, *fields)


def load(disk: Disk) -> Mark | None:
    """Returns the mark; None if it is missing or damaged. Raises StoreError for an unknown version."""
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
        log_start=log_start,
        scan_from=scan_from,
        synced_end=synced_end,
        clean=bool(state & CLEAN),
        resetting=bool(state & RESETTING),
        checkpoint_crc=checkpoint_crc,
    )


class MarkFile:
    """The file, kept open by its writer."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None

    def write(self, mark: Mark, *, durable: bool) -> None:
        """Rewrites the file; with `durable`, returns when it is on disk."""
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
        if self._file is not None:
            self._file.close()
            self._file = None
