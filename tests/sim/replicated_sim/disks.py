"""The disk of one simulated copy: slow as a device is, and a crash of its machine leaves what was synced."""

from __future__ import annotations

import random
from collections.abc import Callable

from evenq_proofs.fault_disk import FaultDisk, FaultFile, Keep

__all__ = ["Keep", "SimDisk"]

LOG_FOLDER = "commitlog/"


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

    def flip(self, rng: random.Random) -> str:
        """Turn a bit of a synced record that lies before the newest few KiB of the log; its place, empty: none."""
        names = sorted(name for name in self.files if name.startswith(LOG_FOLDER))
        for name in names[:-1] or names:
            file = self.files[name]
            assert isinstance(file, FaultFile)
            end = len(file.synced) - 8_192
            if end > 0:
                place = rng.randrange(end)
                file.data[place] ^= 1 << rng.randrange(8)
                file.synced[place] = file.data[place]
                return f"{name} at {place}"
        return ""

    def log_files(self) -> dict[str, bytes]:
        """Name to content."""
        return {name: bytes(file.data) for name, file in self.files.items() if name.startswith(LOG_FOLDER)}
