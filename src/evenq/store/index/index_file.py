"""One file of the message index: where in one block of the log the messages of each key are.

`index/<20-digit block start>`: a header page, then pages of entries sorted by (key hash, log offset). Hashes are spread
evenly, so a lookup estimates the page and needs about one read per file. Each page has its own CRC32C, so damage is
found when it matters, and a start reads no whole file. A file never changes: it is written beside, synced, renamed.
"""

from __future__ import annotations

import logging
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, File, write_whole
from evenq.store.log.record import ByteField, struct_of

log = logging.getLogger(__name__)

FOLDER: Final = "index"
MAGIC: Final = 0x45764978  # "EvIx"
VERSION: Final = 1
INDEX_FIELDS: Final = (
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "I"),
    ByteField("entry count", "I"),
    ByteField("block start", "Q"),
    ByteField("log start", "Q"),
    ByteField("log end", "Q"),
    ByteField("first store ms", "q"),
    ByteField("last store ms", "q"),
)
PAGE_FIELDS: Final = (ByteField("crc32c", "I"), ByteField("entry count", "I"), ByteField("block start", "Q"))
ENTRY_FIELDS: Final = (ByteField("key hash", "Q"), ByteField("log offset", "Q"))
HEADER: Final = struct_of(INDEX_FIELDS)
PAGE: Final = struct_of(PAGE_FIELDS)
CRC: Final = struct_of(PAGE_FIELDS[:1])
HEADER_CRC_END: Final = 8  # a CRC covers everything behind itself
PAGE_CRC_END: Final = 4
PAGE_BYTES: Final = 4096
PAGE_ENTRIES: Final = (PAGE_BYTES - PAGE.size) // 16
WINDOW_PAGES: Final = 3  # read together around the estimate
NAME_DIGITS: Final = 20
HASH_BITS: Final = 64


class Damaged(Exception):
    """A damaged file of the index. It is rebuilt from the log; no caller of the store sees this error."""


def key_hash(topic_id: int, key: bytes) -> int:
    """Returns 64 bits of two different CRC32s, computed in C and equal on every machine. Together they detect what a
    CRC of 64 bits does: two keys of a topic that differ within 8 neighbouring bytes never collide. A collision costs
    one read more, because messages found are compared with the key.
    """
    return zlib.crc32(key, topic_id) << 32 | crc32c(key, topic_id)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Header of one index file."""

    entry_count: int
    block_start: int
    log_start: int
    """First frame in the block; the block's end without frames."""
    log_end: int
    """First frame after the block."""
    first_store_ms: int
    """Of the messages in the block, with or without keys; -1, like the last one, without messages."""
    last_store_ms: int

    @property
    def path(self) -> str:
        return path_of(self.block_start)

    @property
    def page_count(self) -> int:
        return -(-self.entry_count // PAGE_ENTRIES)


def path_of(block_start: int) -> str:
    return f"{FOLDER}/{block_start:0{NAME_DIGITS}d}"


def pack_page(block_start: int, entries: array[int]) -> bytes:
    """Packs one page of hash, log offset, hash, log offset, ..., already sorted; at most PAGE_ENTRIES pairs."""
    data = PAGE.pack(0, len(entries) // 2, block_start) + _big_endian(entries).tobytes()
    data += bytes(PAGE_BYTES - len(data))
    return CRC.pack(crc32c(data[PAGE_CRC_END:])) + data[PAGE_CRC_END:]


def write(disk: Disk, header: IndexFile, pages: list[bytes]) -> None:
    """Writes the file; a crash leaves all of it or nothing. Raises OSError if the disk fails or is full."""
    disk.make_folder(FOLDER)
    fields = (
        VERSION,
        header.entry_count,
        header.block_start,
        header.log_start,
        header.log_end,
        header.first_store_ms,
        header.last_store_ms,
    )
    crc = crc32c(HEADER.pack(MAGIC, 0, *fields)[HEADER_CRC_END:])
    head = HEADER.pack(MAGIC, crc, *fields)
    write_whole(disk, header.path, b"".join((head, bytes(PAGE_BYTES - len(head)), *pages)))


def load_all(disk: Disk, *, log_start: int, log_end: int) -> list[IndexFile]:
    """Returns the good files of the log log_start..log_end in order; removes all others. Raises StoreError."""
    numbers = []
    removed = False
    for name in disk.list(FOLDER):
        header = _load(disk, f"{FOLDER}/{name}") if len(name) == NAME_DIGITS and name.isdecimal() else None
        if header is None or header.path != f"{FOLDER}/{name}":
            file = disk.describe(f"{FOLDER}/{name}")
            log.warning("index file %s is incomplete or damaged: rebuilding it", file, extra={"file": file})
        elif header.block_start < log_start or header.log_end > log_end:
            file = disk.describe(header.path)
            log.info("index file %s removed: its messages are no longer in the log", file, extra={"file": file})
        else:
            numbers.append(header)
            continue
        disk.remove(f"{FOLDER}/{name}")
        removed = True
    if removed:
        disk.sync_folder(FOLDER)
    return numbers


def _load(disk: Disk, path: str) -> IndexFile | None:
    try:
        file = disk.open(path)
    except OSError:
        return None
    try:
        data = file.pread(HEADER.size, 0)
        size = file.size()
    except OSError:
        return None
    finally:
        file.close()
    if len(data) < HEADER.size:
        return None
    magic, crc, version, *fields = HEADER.unpack(data)
    if magic != MAGIC or crc32c(data[HEADER_CRC_END:]) != crc:
        return None
    if version != VERSION:
        raise StoreError(
            f"{disk.describe(path)} has format version {version}; this program reads version {VERSION}: start a newer "
            "program, or delete the index folder to have it built again"
        )
    header = IndexFile(*fields)
    return header if size == PAGE_BYTES * (1 + header.page_count) else None


def lookup(file: File, header: IndexFile, key: int) -> Iterator[int]:
    """Yields the log offsets of the messages with this hash, the newest first. Raises Damaged, OSError."""
    if not header.entry_count:
        return
    pages = _Pages(file, header)
    number = _last_page(pages, header, key)
    while number >= 0:
        hashes, offsets = pages.get(number)
        index = bisect_right(hashes, key)
        while index and hashes[index - 1] == key:
            index -= 1
            yield offsets[index]
        if index:
            return
        number -= 1


def _last_page(pages: _Pages, header: IndexFile, key: int) -> int:
    """Returns the last page whose first hash is not over `key`, or page 0: an estimate, then growing steps."""
    low, high = 0, header.page_count - 1
    # Hashes are spread evenly, so the value of a hash estimates its page.
    probe = (key * header.entry_count >> HASH_BITS) // PAGE_ENTRIES
    step = 1
    while low < high:
        probe = max(low + 1, min(high, probe))
        hashes, _ = pages.get(probe)
        if hashes[0] > key:
            high = probe - 1
            probe -= step
        elif hashes[-1] > key:
            return probe
        else:
            low = probe
            probe += step
        step *= 2
    return low


class _Pages:
    """Pages of one file that a lookup has read."""

    def __init__(self, file: File, header: IndexFile) -> None:
        self._file = file
        self._header = header
        self._read: dict[int, tuple[array[int], array[int]]] = {}
        self._raw: dict[int, bytes] = {}

    def get(self, number: int) -> tuple[array[int], array[int]]:
        """Returns hashes and log offsets of one page."""
        page = self._read.get(number)
        if page is None:
            page = self._read[number] = self._decode(number, self._raw.get(number) or self._fetch(number))
        return page

    def _fetch(self, number: int) -> bytes:
        first = max(0, min(number - WINDOW_PAGES // 2, self._header.page_count - WINDOW_PAGES))
        data = self._file.pread(WINDOW_PAGES * PAGE_BYTES, (1 + first) * PAGE_BYTES)
        self._raw.clear()
        for position in range(0, len(data), PAGE_BYTES):
            self._raw[first + position // PAGE_BYTES] = data[position : position + PAGE_BYTES]
        return self._raw.get(number, b"")

    def _decode(self, number: int, data: bytes) -> tuple[array[int], array[int]]:
        header = self._header
        count = min(PAGE_ENTRIES, header.entry_count - number * PAGE_ENTRIES)
        if len(data) == PAGE_BYTES:
            crc, entry_count, block_start = PAGE.unpack_from(data)
            if crc == crc32c(data[PAGE_CRC_END:]) and (entry_count, block_start) == (count, header.block_start):
                numbers = _big_endian(array("Q", data[PAGE.size : PAGE.size + 16 * count]))
                return numbers[::2], numbers[1::2]
        raise Damaged(f"page {number} of {header.path} is damaged")


def _big_endian(numbers: array[int]) -> array[int]:
    """Returns a copy, swapped on a little-endian machine; the conversion works in both directions."""
    swapped = numbers[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped
