"""Judges the files of the message index and the timers: pages and blocks against their CRC, runs against the snapshot's
manifest. All of them are derived from the log, so a start builds a damaged one again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted
from evenq.store.copies.snapshot_copy import TIMERS_UNKNOWN
from evenq.store.index import index_file
from evenq.store.index.index_file import PAGE, PAGE_BYTES, PAGE_CRC_END, PAGE_ENTRIES
from evenq.store.inspection.findings import Harm, StoreFinding
from evenq.store.inspection.folder import BESIDE, INDEX, TIMERS, Folder, foreign, left_over, load_snapshot
from evenq.store.io.disk import Disk, File
from evenq.store.log.record import struct_of
from evenq.store.timers import manifest, runs

ENTRY: Final = struct_of(index_file.ENTRY_FIELDS)
PAGES_READ: Final = 256
ADVICE: Final = "start the broker: it makes the file again; or `evenq store repair DIR --apply` to take it out now"


def judge_index(disk: Disk, folder: Folder) -> None:
    for name in disk.list(INDEX):
        path = f"{INDEX}/{name}"
        if name.endswith(BESIDE):
            if not folder.running:
                folder.findings.add(left_over(path))
        elif len(name) != index_file.NAME_DIGITS or not name.isdecimal():
            folder.findings.add(foreign(path))
        else:
            try:
                file = disk.open(path)
            except FileNotFoundError:
                continue  # deleted by retention
            try:
                wrong = _wrong_in_index(file, int(name))
            finally:
                file.close()
            if wrong is not None:
                folder.findings.add(_damaged("index-damaged", path, *wrong))


def _wrong_in_index(file: File, block_start: int) -> tuple[int, str] | None:
    """Returns byte and reason of the first damage of an index file; None if it is whole."""
    data = file.pread(index_file.HEADER.size, 0)
    if len(data) < index_file.HEADER.size:
        return len(data), "the file ends in its header"
    magic, crc, version, count, start, *_ = index_file.HEADER.unpack(data)
    if magic != index_file.MAGIC or crc32c(data[index_file.HEADER_CRC_END :]) != crc:
        return 0, "the header does not fit its CRC"
    if version != index_file.VERSION:
        return 8, f"the file has format version {version}, this program reads {index_file.VERSION}"
    if start != block_start:
        return 16, f"the header says that its block begins at {start}"
    pages = -(-count // PAGE_ENTRIES)
    if file.size() != PAGE_BYTES * (1 + pages):
        return min(file.size(), PAGE_BYTES * (1 + pages)), f"{pages} pages should follow the header"
    last = (-1, -1)
    for first in range(0, pages, PAGES_READ):
        data = file.pread(PAGES_READ * PAGE_BYTES, (1 + first) * PAGE_BYTES)
        for position in range(0, len(data), PAGE_BYTES):
            page = data[position : position + PAGE_BYTES]
            number = first + position // PAGE_BYTES
            due = min(PAGE_ENTRIES, count - number * PAGE_ENTRIES)
            crc, held, start = PAGE.unpack_from(page)
            if crc32c(page[PAGE_CRC_END:]) != crc or (held, start) != (due, block_start):
                return (1 + number) * PAGE_BYTES, f"page {number} does not fit its CRC or its place"
            entries = [last, *ENTRY.iter_unpack(page[PAGE.size :])][: due + 1]
            if any(before > after for before, after in pairwise(entries)):
                return (1 + number) * PAGE_BYTES, f"page {number} is not in order"
            last = entries[-1]
    return None


def judge_timers(disk: Disk, folder: Folder) -> None:
    """Judges the runs that the newest snapshot's manifest names, and other files beside them."""
    section = load_snapshot(disk, folder)
    named: dict[int, int] = {}
    if section is not None and section.timers == TIMERS_UNKNOWN and folder.snapshot is not None:
        folder.findings.add(
            StoreFinding(
                kind="timers-unread",
                harm=Harm.NOTE,
                file=folder.snapshot.path,
                what="the snapshot names no files of timers. That is normal for a folder that was restored from a "
                "backup, or filled by another copy; a start reads the timers from the log. Nothing is lost.",
                advice="nothing: the first snapshot after a start names them",
            )
        )
    elif section is not None and section.timers and folder.snapshot is not None:
        try:
            named = {use.number: use.count for use in manifest.unpack(section.timers).runs}
        except StoreCorrupted as error:
            folder.findings.add(_damaged("manifest-damaged", folder.snapshot.path, None, str(error)))
    for number, count in sorted(named.items()):
        try:
            runs.verify(disk, number, count=count)
        except StoreCorrupted as error:
            if not folder.running:  # a newer snapshot may have released the run
                folder.findings.add(_damaged("run-damaged", runs.path_of(number), None, str(error)))
    for name in disk.list(TIMERS):
        path = f"{TIMERS}/{name}"
        if len(name) != runs.NAME_DIGITS or not name.isdecimal():
            folder.findings.add(foreign(path))
        elif int(name) not in named and not folder.running and len(folder.snapshots) < 2:
            folder.findings.add(left_over(path))  # with two snapshots the older one may name it


def _damaged(kind: str, path: str, byte: int | None, why: str) -> StoreFinding:
    return StoreFinding(
        kind=kind,
        harm=Harm.REBUILT,
        file=path,
        byte=byte,
        what=f"{why}. Its content comes from the log, so nothing is lost.",
        advice=ADVICE,
    )
