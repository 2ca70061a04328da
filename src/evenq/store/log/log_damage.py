"""Damage inside a log file: where it begins and ends, whether other bytes fit there, and how they are written.

For the copies of a log, which have the same bytes: `LogScan` walks one file and returns each damaged part, `fault_of`
judges the bytes of another copy, `rewrite` writes them in place. Blocks on the disk: called on threads. Always true: a
part begins after a whole record, or where the file does, and ends at the next whole record, or where the scan ends;
nothing else of a file is ever written. A crash during `rewrite` leaves a part that is still damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.io.disk import Disk, File
from evenq.store.log.frame_walk import Fault, FrameWalk
from evenq.store.log.log_tail import frame_in, name_of_place
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, size_at
from evenq.store.log.segment import path_of, segment_of

PIECE_BYTES: Final = 256 << 10
"""Bytes in one step: more would keep the interpreter from the loop."""
BLOCK_BYTES: Final = 4_096
"""Size of the reads that replace a failed one: a lost sector must not hide its neighbours."""
LOST: Final = bytes.fromhex("a7d10c5ee2943bf86c1f87ba45d97013")
"""Filler for bytes that the disk cannot read. Zeros would be valid in a padding or in a message of zeros, and would
hide the failure.
"""
MAGIC_PLACE: Final = 4
"""Bytes from a record's start to its magic."""


class Repairs(Protocol):
    """Interface for the repair of damaged records from the other copies, which have the same bytes."""

    @property
    def version(self) -> int:
        """Grows with each repaired part: a reader that met damage may have read before the repair."""
        ...

    async def repair(self, error: StoreCorrupted, seen: int) -> bool:
        """Waits, some seconds at most, for the repair of damage that a read begun at version `seen` met. Returns True
        to read again, False if the log is whole there or no copy can help. Raises StoreCorrupted, with the copies'
        answers, if that failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedPart:
    """Bytes of one log file that are not as they were written."""

    start: int
    """Log offset after the last whole record before it."""
    end: int
    """Log offset of the next whole record, or where the scan ends."""
    reason: str
    epoch_before: int
    """Epoch of the record before it; 0 if there is none in this file."""
    epoch_after: int
    """Epoch of the record after it; 0 if there is none in the scanned part."""

    @property
    def size(self) -> int:
        return self.end - self.start


class LogScan:
    """One walk through one log file, from its start. Call `step` until `done`; after a part, `again` or `pass_over`."""

    def __init__(self, disk: Disk, segment_bytes: int, log_offset: int, end: int) -> None:
        """`log_offset` selects the file; the walk ends at `end`, a place between records, or at the file's end."""
        self._disk, self._segment_bytes = disk, segment_bytes
        self.start, _ = segment_of(log_offset, segment_bytes)
        self.end = min(end, self.start + segment_bytes)
        self._walk = FrameWalk(self.start, segment_bytes=segment_bytes)
        self._piece_bytes = PIECE_BYTES

    @property
    def done(self) -> bool:
        return self._walk.position >= self.end

    def step(self) -> DamagedPart | None:
        """Walks on for one piece; returns a damaged part that it met. Raises FileNotFoundError, and StoreError for
        whole records that are unknown to this program or out of order: damage of a disk does not make these.
        """
        walk = self._walk
        file = self._disk.open(path_of(self.start))
        try:
            size = min(self._piece_bytes, self.end - walk.position)
            data = read_tolerant(file, size, walk.position - self.start, lost=LOST)
            self._piece_bytes = PIECE_BYTES
            fault = walk.take(memoryview(data), walk.position)
            if fault is None:
                return None
            if fault is Fault.CUT and walk.position + walk.lacks <= self.end:
                self._piece_bytes = max(PIECE_BYTES, walk.lacks)
                return None
            if fault in {Fault.FOREIGN, Fault.DISORDER}:
                raise StoreError(f"{self._place(walk.position)}: {walk.reason}")
            end, epoch_after = self._next_record(file, walk.position + 1)
        finally:
            file.close()
        return DamagedPart(
            start=walk.position, end=end, reason=walk.reason, epoch_before=max(walk.epoch, 0), epoch_after=epoch_after
        )

    def again(self, part: DamagedPart) -> None:
        """Continues at a part that was rewritten, to check it again."""
        self._go_on(part.start, part)

    def pass_over(self, part: DamagedPart) -> None:
        """Continues after a part that stays damaged."""
        self._go_on(part.end, part)

    def _go_on(self, position: int, part: DamagedPart) -> None:
        self._walk = FrameWalk(position, segment_bytes=self._segment_bytes, epoch=part.epoch_before)

    def _next_record(self, file: File, position: int) -> tuple[int, int]:
        """Returns log offset and epoch of the next whole record in its place; the scan's end and 0 without one."""
        while self.end - position >= HEADER_BYTES:
            data = read_tolerant(file, min(PIECE_BYTES, self.end - position), position - self.start)
            magic_at = data.find(MAGIC_BYTES, MAGIC_PLACE)
            if magic_at < 0:
                position += max(1, len(data) - len(MAGIC_BYTES) - MAGIC_PLACE)
                continue
            position += magic_at - MAGIC_PLACE
            claimed = size_at(read_tolerant(file, HEADER_BYTES, position - self.start), 0)
            if HEADER_BYTES <= claimed <= self.end - position:
                record = read_tolerant(file, claimed, position - self.start)
                frame = frame_in(self._disk, self._segment_bytes, record, 0, position)
                # Only a checked record of this very place: a message's body may hold the magic, or a copy of a record.
                if frame is not None:
                    return position, frame.epoch
            position += 1
        return self.end, 0

    def _place(self, log_offset: int) -> str:
        return name_of_place(self._disk, self._segment_bytes, log_offset)


def read_tolerant(file: File, size: int, position: int, *, lost: bytes = b"\0") -> bytes:
    """Returns `size` bytes; zeros for missing ones, `lost` repeated for unreadable ones: neither makes a record."""
    try:
        return file.pread(size, position).ljust(size, b"\0")
    except OSError:
        if size <= BLOCK_BYTES:
            return (lost * -(-size // len(lost)))[:size]
    blocks = []
    while size:
        block = min(size, BLOCK_BYTES - position % BLOCK_BYTES)
        blocks.append(read_tolerant(file, block, position, lost=lost))
        position += block
        size -= block
    return b"".join(blocks)


def read_readable(file: File, size: int, position: int) -> tuple[bytes, OSError | None]:
    """Returns `size` bytes of a file, fewer at its end; or those before the first unreadable block, and the error. Two
    reads fail at most: a disk may take a long time for each.
    """
    try:
        return file.pread(size, position), None
    except OSError:
        pass  # the blocks below show which part of it
    blocks: list[bytes] = []
    while size:
        block = min(size, BLOCK_BYTES - position % BLOCK_BYTES)
        try:
            data = file.pread(block, position)
        except OSError as error:
            return b"".join(blocks), error
        blocks.append(data)
        if len(data) < block:
            break
        position += block
        size -= block
    return b"".join(blocks), None


def unreadable(disk: Disk, segment_bytes: int, log_offset: int, error: OSError) -> StoreCorrupted:
    """Returns the error for a sector that the disk lost: damage, which another copy may repair."""
    return StoreCorrupted(
        f"{name_of_place(disk, segment_bytes, log_offset)} cannot be read: {error}; restore the folder from a copy",
        log_offset=log_offset,
    )


def fault_of(
    data: bytes,
    part: DamagedPart,
    *,
    segment_bytes: int,
    epoch_at: Callable[[int], int],
    epochs: Iterable[tuple[int, int]],
) -> str:
    """Returns why these bytes are not what the log has in a damaged part, or in its first records; empty if they are.
    `epoch_at` returns the epoch that wrote a place of the log, 0 if it is not known; `epochs` is each epoch of the log
    with the log offset at which it begins.
    """
    if not 0 < len(data) <= part.size:
        return f"{len(data)} bytes came where {part.size} are missing"
    end = part.start + len(data)
    walk = FrameWalk(part.start, segment_bytes=segment_bytes)
    if walk.take(memoryview(data), part.start) is not None:
        return f"at log offset {walk.position}: {walk.reason}"
    for epoch, log_offset in walk.epochs:
        known = epoch_at(log_offset)
        # Right checksums are not enough: another copy may have had records there that were never committed.
        if known not in (0, epoch):
            return f"at log offset {log_offset}: a record of epoch {epoch} where epoch {known} wrote"
    first, last = (walk.epochs[0][0], walk.epochs[-1][0]) if walk.epochs else (0, 0)
    if first and first < part.epoch_before:
        return f"it begins with epoch {first}, behind a record of epoch {part.epoch_before}"
    if part.epoch_after and last > part.epoch_after:
        return f"it ends with epoch {last}, before a record of epoch {part.epoch_after}"
    there = {epoch for epoch, _ in walk.epochs}
    for epoch, log_offset in epochs:
        if part.start < log_offset <= end - HEADER_BYTES and epoch not in there:
            return f"epoch {epoch}, which begins at log offset {log_offset}, is not in it"
    return ""


def count_records(data: bytes, start: int, *, segment_bytes: int) -> int:
    """Returns the number of records in whole bytes of a log from `start` on, padding included; at least 1."""
    count = at = 0
    while at < len(data) and (size := size_at(data, at)):
        count += 1
        at += size
        if segment_bytes - (start + at) % segment_bytes < HEADER_BYTES:
            break
    return max(1, count)


def read_whole_records(disk: Disk, segment_bytes: int, start: int, end: int) -> bytes:
    """Returns the log from `start` to `end`, both between records of one file, with every byte checked; only the
    records before the first damaged one. Raises FileNotFoundError, StoreCorrupted.
    """
    file_start, position = segment_of(start, segment_bytes)
    file = disk.open(path_of(file_start))
    try:
        data = read_tolerant(file, end - start, position)
    finally:
        file.close()
    walk = FrameWalk(start, segment_bytes=segment_bytes)
    if walk.take(memoryview(data), start) is not None and walk.position == start:
        raise StoreCorrupted(f"{name_of_place(disk, segment_bytes, start)}: {walk.reason}", log_offset=start)
    return data[: walk.position - start]


def check_records(data: bytes, start: int, *, segment_bytes: int) -> None:
    """Raises StoreCorrupted unless `data` is whole records from log offset `start` on."""
    walk = FrameWalk(start, segment_bytes=segment_bytes)
    if walk.take(memoryview(data), start) is not None:
        raise StoreCorrupted(
            f"the log is damaged at log offset {walk.position}: {walk.reason}", log_offset=walk.position
        )


def rewrite(disk: Disk, segment_bytes: int, start: int, data: bytes) -> None:
    """Writes whole records, checked by `fault_of`, at their place in one file, durably; no other writer is there.
    Raises FileNotFoundError, OSError; StoreError, and writes nothing, if they begin or end within an unreadable block.
    """
    file_start, position = segment_of(start, segment_bytes)
    assert position + len(data) <= segment_bytes, "of one file"
    file = disk.open(path_of(file_start))
    try:
        for edge in (position, position + len(data)):
            _check_block(disk, segment_bytes, file, file_start, edge)
        file.pwrite([data], position)
        file.sync()
    finally:
        file.close()


def _check_block(disk: Disk, segment_bytes: int, file: File, file_start: int, edge: int) -> None:
    """Checks that an edge block is readable: a partial write reads it first, and a failed write stops the store."""
    if edge % BLOCK_BYTES == 0:
        return
    try:
        file.pread(1, edge)
        file.pread(1, edge - 1)
    except OSError as error:
        place = name_of_place(disk, segment_bytes, file_start + edge - edge % BLOCK_BYTES)
        raise StoreError(
            f"the {BLOCK_BYTES} bytes from {place} on cannot be read, so no part of them can be written: {error}"
        ) from error
