"""A log of a few small files with every kind of record, made by hand, for tests that damage it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import (
    FLAG_MORE,
    HEADER_BYTES,
    MESSAGE,
    STATE,
    TIMER,
    TIMER_END,
    pack,
    pack_padding,
    pack_timer_ids,
)
from evenq.store.log.segment import path_of


@dataclass(frozen=True, slots=True)
class MadeLog:
    """Bytes, and what lies in them."""

    segment_bytes: int
    data: bytes
    starts: tuple[int, ...]
    """Log offset of each record, paddings among them."""
    epochs: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        """Behind its last record."""
        return len(self.data)

    def files(self) -> dict[int, bytes]:
        """By the log offset that each begins at."""
        return {at: self.data[at : at + self.segment_bytes] for at in range(0, len(self.data), self.segment_bytes)}


def made_log(segment_bytes: int = 2_048, files: int = 3, *, seed: int = 1) -> MadeLog:
    """Full files, and a last one that has just begun; three epochs, the second begins in the middle of the first file."""
    rng = random.Random(f"made log {seed}")
    data, starts, epochs, epoch, number = bytearray(), [], [(1, 0)], 1, 0
    while len(data) < files * segment_bytes + segment_bytes // 4:
        number += 1
        kind = (STATE, MESSAGE, MESSAGE, TIMER, TIMER_END)[number % 5]
        if number % 11 == 5:
            kind, epoch = STATE, epoch + 1
        head = pack_timer_ids([7, 8]) if kind == TIMER_END else rng.randbytes(rng.randrange(1, 300))
        size = HEADER_BYTES + len(head) + 3
        rest = segment_bytes - len(data) % segment_bytes
        if rest < size:
            if rest >= HEADER_BYTES:
                _begin(epochs, epoch, len(data))
                starts.append(len(data))
            padding = pack_padding(len(data), rest, epoch=epoch, synced_offset=0, store_ms=number)
            data += padding.ljust(rest, b"\0")
        _begin(epochs, epoch, len(data))
        starts.append(len(data))
        data += pack(
            kind=kind, flags=FLAG_MORE if number % 7 == 3 else 0, epoch=epoch, topic_id=1, queue_id=0,
            queue_offset=number, log_offset=len(data), synced_offset=0, store_ms=number, born_ms=1, tag_hash=5,
            head=head, system=b"sys",
        )  # fmt: skip
    return MadeLog(segment_bytes, bytes(data), tuple(starts), tuple(epochs))


def put_log(disk: MemoryDisk, log: MadeLog) -> None:
    """Into its files, synced."""
    disk.make_folder("commitlog")
    for start, data in log.files().items():
        file = disk.open(path_of(start), create=True)
        file.pwrite([data], 0)
        file.sync()
        file.close()
    disk.sync_all()


def _begin(epochs: list[tuple[int, int]], epoch: int, at: int) -> None:
    if epoch > epochs[-1][0]:
        epochs.append((epoch, at))
