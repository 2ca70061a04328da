"""The disk of one simulated copy: slow as a device is, and a crash of its machine leaves what was synced."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, FaultFile, Keep

from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.opening import copied_mark

__all__ = ["Flip", "Keep", "SimDisk"]

LOG_FOLDER = "commitlog/"
SNAPSHOT_FOLDER = "snapshot/"
UNREADABLE = -1


@dataclass(frozen=True, slots=True)
class Flip:
    """A damaged byte of a file, and what it became; or one whose sector was lost."""

    name: str
    place: int
    byte: int
    """UNREADABLE: it cannot be read, with its block."""

    @property
    def log_offset(self) -> int:
        """Where it is in the log."""
        return int(self.name.removeprefix(LOG_FOLDER)) + self.place

    def __str__(self) -> str:
        return f"{self.name} at {self.place}" + ", which cannot be read" * (self.byte == UNREADABLE)


class SimDisk(FaultDisk):
    """`on_dead` is called once when an armed crash comes about."""

    blocks = True

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        super().__init__(bytes_max)
        self.on_dead: Callable[[], None] = lambda: None
        self._at_sync = False

    def arm(self, rng: random.Random) -> None:
        """The machine ends within the next few changes, a write perhaps in its middle, or instead of the next sync."""
        self._at_sync = rng.random() < 0.3
        self.cut = (self.operations + rng.randint(0, 30), rng.choice((0, 1, 40, 500, 4_096)))

    def arm_sync(self) -> None:
        """The machine ends instead of the next sync: what is written may be on other machines, and is lost here."""
        self._at_sync = True

    def disarm(self) -> None:
        """It lives on."""
        self.cut, self._at_sync = None, False

    def step(self, kind: str) -> int | None:
        """See FaultDisk."""
        was_dead = self.dead
        if self._at_sync and kind == "sync":
            self.cut, self._at_sync = (self.operations, 0), False
        try:
            return super().step(kind)
        finally:
            if self.dead and not was_dead:
                self.on_dead()

    def lost(self) -> str:
        """It stays where it is."""
        return ""

    def flip(self, rng: random.Random, *, before: int = 1 << 62) -> Flip | None:
        """Turn a bit of a synced record that lies before the newest few KiB of the log, and before a log offset; None:
        there is none yet.
        """
        names = sorted(name for name in self.files if name.startswith(LOG_FOLDER))
        for name in names[:-1] or names:
            file = self.files[name]
            assert isinstance(file, FaultFile)
            end = min(len(file.synced) - 8_192, before - int(name.removeprefix(LOG_FOLDER)))
            if end > 0:
                return self.flip_at(name, rng.randrange(end), rng.randrange(8))
        return None

    def flip_at(self, name: str, place: int, bit: int) -> Flip | None:
        """Turn this bit, if it is synced; None: it is not."""
        file = self.files.get(name)
        if not isinstance(file, FaultFile) or place >= min(len(file.data), len(file.synced)):
            return None
        file.data[place] ^= 1 << bit
        file.synced[place] = file.data[place]
        return Flip(name, place, file.data[place])

    def lose(self, rng: random.Random) -> Flip | None:
        """Lose a sector of the log that lies before what a start knows to be on disk, and before the newest few KiB; None:
        there is none yet.
        """
        before, blocks = self.vouched_end(), []
        for name in sorted(name for name in self.files if name.startswith(LOG_FOLDER)):
            file = self.files[name]
            assert isinstance(file, FaultFile)
            end = min(len(file.synced), before - int(name.removeprefix(LOG_FOLDER))) - 8_192
            blocks += [(name, block * BLOCK_BYTES) for block in range(max(0, end) // BLOCK_BYTES)]
        return self.lose_at(*rng.choice(blocks)) if blocks else None

    def lose_at(self, name: str, place: int) -> Flip | None:
        """Lose the sector of this byte, if it is synced; None: it is not."""
        file = self.files.get(name)
        if not isinstance(file, FaultFile) or place + BLOCK_BYTES > min(len(file.data), len(file.synced)):
            return None
        file.lose(place)
        return Flip(name, place, UNREADABLE)

    def vouched_end(self) -> int:
        """Log offset up to which files that a loss of power leaves say that the log was on disk. What a start finds damaged
        behind it may be a torn write to it.
        """
        mark = self.files.get(copied_mark.PATH)
        beside = MemoryDisk()
        if isinstance(mark, FaultFile):
            beside.open(copied_mark.PATH, create=True).pwrite([bytes(mark.synced)], 0)
        known = copied_mark.load(beside)
        names = [name.removeprefix(SNAPSHOT_FOLDER) for name in self.files if name.startswith(SNAPSHOT_FOLDER)]
        return max(known.synced_end if known is not None else 0, *(int(name) for name in names if name.isdecimal()), 0)

    def shows(self, flip: Flip) -> bool:
        """Whether the damage is there still."""
        file = self.files.get(flip.name)
        if flip.byte == UNREADABLE:
            return isinstance(file, FaultFile) and flip.place // BLOCK_BYTES in file.lost
        return file is not None and flip.place < len(file.data) and file.data[flip.place] == flip.byte

    def log_files(self) -> dict[str, bytes]:
        """Name to content."""
        return {name: bytes(file.data) for name, file in self.files.items() if name.startswith(LOG_FOLDER)}
