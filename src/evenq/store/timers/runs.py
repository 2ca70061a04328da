"""Run files: `timers/<20-digit number>`, immutable, keys in order of their due time, in blocks with a CRC each.

The timers' thread writes a run once: blocks, the header in front of them, a sync. Only a snapshot's manifest makes it
count. Numbers are never used twice for files that a manifest names. Damage raises StoreCorrupted with file and byte:
nothing is guessed, since the log still has all pending timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.disk import Disk, File
from evenq.store.log.record import ByteField, struct_of
from evenq.store.timers.keys import KEY_BYTES, keys_in

FOLDER: Final = "timers"
MAGIC: Final = 0x45765472  # "EvTr"
VERSION: Final = 1
BLOCK_ENTRIES: Final = 512
RUN_FIELDS: Final = (
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "I"),
    ByteField("entry count", "Q"),
    ByteField("lowest id", "Q"),
)
BLOCK_FIELDS: Final = (
    ByteField("crc32c", "I"),
    ByteField("block entries", "I"),
)
HEADER: Final = struct_of(RUN_FIELDS)
BLOCK: Final = struct_of(BLOCK_FIELDS)
BLOCK_BYTES: Final = BLOCK.size + BLOCK_ENTRIES * KEY_BYTES
CRC_END: Final = 8  # the header's CRC covers everything behind itself in the header
BLOCK_CRC_END: Final = 4
VERIFY_BLOCKS: Final = 64
NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class RunFile:
    """One file, as far as it is in memory."""

    number: int
    count: int
    lowest_id: int
    """The smallest timer id in it, ended or not."""
    firsts: tuple[bytes, ...]
    """First key of each block."""
    highest_id: int
    """The largest timer id in it, found when the file is written or checked."""

    @property
    def path(self) -> str:
        return path_of(self.number)


def path_of(number: int) -> str:
    return f"{FOLDER}/{number:0{NAME_DIGITS}d}"


class RunWriter:
    """Writer of one run from sorted keys, block by block."""

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk = disk
        self._number = number
        self._file = disk.open(path_of(number), create=True)
        self._file.truncate(0)
        self._end = HEADER.size
        self._rest: list[bytes] = []
        self._firsts: list[bytes] = []
        self._count = 0
        self._lowest, self._highest = b"\xff" * 8, b"\0" * 8

    def add(self, keys: list[bytes]) -> None:
        """Adds keys in order, all after those added before."""
        if not keys:
            return
        self._count += len(keys)
        ids = [key[8:16] for key in keys]
        self._lowest, self._highest = min(self._lowest, *ids), max(self._highest, *ids)
        keys = self._rest + keys
        whole = len(keys) - len(keys) % BLOCK_ENTRIES
        self._write(keys[:whole])
        self._rest = keys[whole:]

    def finish(self) -> RunFile:
        """Writes what is left and the header, syncs, closes."""
        self._write(self._rest)
        lowest_id = int.from_bytes(self._lowest, "big")
        rest = HEADER.pack(MAGIC, 0, VERSION, self._count, lowest_id)[CRC_END:]
        head = HEADER.pack(MAGIC, crc32c(rest), VERSION, self._count, lowest_id)
        # The header last: without it, a run that a crash cut off fails its first check.
        self._file.pwrite([head], 0)
        self._file.sync()
        self._file.close()
        self._disk.sync_folder(FOLDER)
        highest_id = int.from_bytes(self._highest, "big")
        return RunFile(self._number, self._count, lowest_id, tuple(self._firsts), highest_id)

    def abandon(self) -> None:
        self._file.close()
        self._disk.remove(path_of(self._number))

    def _write(self, keys: list[bytes]) -> None:
        parts: list[bytes] = []
        for first in range(0, len(keys), BLOCK_ENTRIES):
            block = keys[first : first + BLOCK_ENTRIES]
            self._firsts.append(block[0])
            data = b"".join(block)
            count = len(block).to_bytes(4, "big")
            # The count is covered as well: a damaged one would otherwise pass for a shorter block.
            parts.append(BLOCK.pack(crc32c(data, crc32c(count)), len(block)) + data)
        if parts:
            self._file.pwrite(parts, self._end)
            self._end += sum(map(len, parts))


def read(disk: Disk, run: RunFile, start: int, count: int) -> list[bytes]:
    """Returns up to `count` keys (whole blocks) from entry `start` (a block's first). Raises StoreCorrupted."""
    with _opened(disk, run.path) as file:
        return _blocks(disk, file, run, start // BLOCK_ENTRIES, -(-count // BLOCK_ENTRIES))


def holds(disk: Disk, run: RunFile, key: bytes, *, used: int = 0) -> bool:
    """Whether the run has this very entry after its first `used` ones, by one read."""
    low, high = 0, len(run.firsts)
    while low < high:
        middle = (low + high) // 2
        if run.firsts[middle] <= key:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    start = (low - 1) * BLOCK_ENTRIES
    return key in read(disk, run, start, BLOCK_ENTRIES)[max(0, used - start) :]


def verify(disk: Disk, number: int, *, count: int | None = None) -> RunFile:
    """Reads and checks a whole file, also its `count`. Raises StoreCorrupted, StoreError for an unknown version."""
    path = path_of(number)
    try:
        with _opened(disk, path) as file:
            size = file.size()
            entry_count, lowest_id = _header(disk, path, file.pread(HEADER.size, 0))
            if (count is not None and entry_count != count) or size != size_of(entry_count):
                due = entry_count if count is None else count
                raise StoreCorrupted(
                    f"{disk.describe(path)} has {size} bytes and {entry_count} entries where {due} entries in "
                    f"{size_of(due)} bytes should be"
                )
            firsts: list[bytes] = []
            highest = b"\0" * 8
            for keys in _all_blocks(disk, file, RunFile(number, entry_count, lowest_id, (), -1)):
                firsts.extend(keys[::BLOCK_ENTRIES])
                highest = max(highest, *[key[8:16] for key in keys])
    except FileNotFoundError as error:
        raise StoreCorrupted(f"{disk.describe(path)} is missing") from error
    if firsts != sorted(firsts):
        raise StoreCorrupted(f"{disk.describe(path)} holds blocks that are out of order")
    return RunFile(number, entry_count, lowest_id, tuple(firsts), int.from_bytes(highest, "big"))


def entries(disk: Disk, run: RunFile) -> Iterator[list[bytes]]:
    """Yields all keys, piece by piece, checked."""
    with _opened(disk, run.path) as file:
        yield from _all_blocks(disk, file, run)


def numbers(disk: Disk) -> list[int]:
    """Returns the numbers of the runs in the folder."""
    return [int(name) for name in disk.list(FOLDER) if len(name) == NAME_DIGITS and name.isdecimal()]


def remove(disk: Disk, gone: Iterable[int]) -> None:
    """Deletes runs that no manifest names any more."""
    removed = False
    for number in gone:
        disk.remove(path_of(number))
        removed = True
    if removed:
        disk.sync_folder(FOLDER)


def size_of(count: int) -> int:
    """Returns the bytes of a file of `count` entries."""
    blocks = -(-count // BLOCK_ENTRIES)
    return HEADER.size + blocks * BLOCK.size + count * KEY_BYTES


@contextmanager
def _opened(disk: Disk, path: str) -> Iterator[File]:
    file = disk.open(path)
    try:
        yield file
    finally:
        file.close()


def _header(disk: Disk, path: str, data: bytes) -> tuple[int, int]:
    if len(data) < HEADER.size:
        raise StoreCorrupted(f"{disk.describe(path)} ends in its header, at byte {len(data)}")
    magic, crc, version, count, lowest_id = HEADER.unpack(data)
    if magic != MAGIC or crc32c(data[CRC_END:]) != crc:
        raise StoreCorrupted(f"{disk.describe(path)} is damaged at byte 0: its header does not fit its CRC")
    if version != VERSION:
        raise StoreError(
            f"{disk.describe(path)} has format version {version}; this program reads version {VERSION}: "
            "start a newer program"
        )
    return count, lowest_id


def _all_blocks(disk: Disk, file: File, run: RunFile) -> Iterator[list[bytes]]:
    for block in range(0, -(-run.count // BLOCK_ENTRIES), VERIFY_BLOCKS):
        yield _blocks(disk, file, run, block, VERIFY_BLOCKS)


def _blocks(disk: Disk, file: File, run: RunFile, block: int, count: int) -> list[bytes]:
    start = HEADER.size + block * BLOCK_BYTES
    data = file.pread(min(count * BLOCK_BYTES, size_of(run.count) - start), start)
    keys: list[bytes] = []
    for position in range(0, len(data), BLOCK_BYTES):
        size = min(BLOCK_ENTRIES, run.count - block * BLOCK_ENTRIES - len(keys))
        end = position + BLOCK.size + size * KEY_BYTES
        crc = int.from_bytes(data[position : position + BLOCK_CRC_END], "big")
        if end > len(data) or crc32c(data[position + BLOCK_CRC_END : end]) != crc:
            raise StoreCorrupted(
                f"{disk.describe(run.path)} is damaged at byte {start + position}: the block there does not fit its CRC"
            )
        keys.extend(keys_in(data[position + BLOCK.size : end]))
    if len(keys) < min(count * BLOCK_ENTRIES, run.count - block * BLOCK_ENTRIES):
        raise StoreCorrupted(f"{disk.describe(run.path)} ends at byte {start + len(data)}, too early")
    return keys
