"""What a target holds of one broker, as every command of `evenq backup` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import NotFound, StoreCorrupted, StoreError
from evenq.store.backup.manifest import BackupManifest, SavedPiece, manifest_path, numbers, piece_path, unpack
from evenq.store.backup.target import BackupTarget, read_small
from evenq.store.log.frame_walk import Fault, FrameWalk
from evenq.store.log.record import FLAG_MORE, HEADER, HEADER_BYTES, PADDING

__all__ = [
    "FoundManifest", "LogCheck", "broker_names", "chosen_broker", "find_manifest", "known_manifest", "piece_bytes",
]  # fmt: skip

SIZE, KIND, FLAGS = 0, 4, 5  # places in a header, in the order of FRAME_FIELDS
KEPT: Final = 2
"""Manifests that stay: one that was damaged costs the newest run, not all of them."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """The newest whole one."""

    manifest: BackupManifest
    damaged: tuple[str, ...] = ()
    """Why newer ones are not used."""


def broker_names(target: BackupTarget) -> list[str]:
    """Brokers that the target has backups of, or the begin of one. Raises StoreError."""
    return [name for name in target.folders() if numbers(target.sizes(name)) or target.sizes(f"{name}/log")]


def find_manifest(target: BackupTarget, broker_name: str) -> FoundManifest | None:
    """The newest whole manifest of a broker; None: there is none. Raises StoreCorrupted if all are damaged."""
    damaged: list[str] = []
    for number in reversed(numbers(target.sizes(broker_name))):
        path = f"{broker_name}/{manifest_path(number)}"
        try:
            manifest = unpack(read_small(target, path), target.describe(path))
            if (manifest.broker_name, manifest.number) != (broker_name, number):
                raise StoreCorrupted(
                    f"{target.describe(path)} is manifest {manifest.number} of broker {manifest.broker_name}, and not "
                    "of the place where it lies"
                )
            return FoundManifest(manifest, tuple(damaged))
        except StoreCorrupted as error:
            damaged.append(error.message)
    if damaged:
        raise StoreCorrupted(f"no manifest of broker {broker_name} is whole: {'; '.join(damaged)}")
    return None


def chosen_broker(target: BackupTarget, broker_name: str) -> str:
    """The broker that is meant; empty stands for the only one. Raises NotFound."""
    names = broker_names(target)
    if broker_name in names or (not broker_name and len(names) == 1):
        return broker_name or names[0]
    there = f"it has {', '.join(names)}" if names else "it has no backup"
    wanted = f"no backup of broker {broker_name}" if broker_name else "several brokers' backups: name one with --broker"
    raise NotFound(f"{target.describe('')} has {wanted}; {there}" if names else f"{target.describe('')}: {there}")


def known_manifest(target: BackupTarget, broker_name: str) -> FoundManifest:
    """The same, which must be there. Raises NotFound, StoreCorrupted."""
    manifest = find_manifest(target, broker_name)
    if manifest is None:
        raise NotFound(
            f"{target.describe(broker_name)} holds the begin of a backup that was cut off, and none that is whole: run "
            "`evenq backup create` again, it goes on there"
        )
    return manifest


def piece_bytes(target: BackupTarget, broker_name: str, piece: SavedPiece) -> Iterator[bytes]:
    """A piece's bytes; at their end its checksum and length were right. Raises StoreError, StoreCorrupted."""
    path = f"{broker_name}/{piece_path(piece)}"
    crc = size = 0
    for data in target.read(path):
        crc, size = crc32c(data, crc), size + len(data)
        if size > piece.end - piece.start:
            break
        yield data
    if size != piece.end - piece.start:
        raise StoreCorrupted(
            f"{target.describe(path)} has {size} bytes or more, not {piece.end - piece.start}: it is damaged"
        )
    if crc != piece.crc32c:
        raise StoreCorrupted(f"{target.describe(path)} does not fit its checksum: it is damaged")


class LogCheck:
    """Checks a log record by record while it passes by in pieces of any size; keeps at most one group of records."""

    def __init__(self, position: int, *, segment_bytes: int, epoch: int = 0, place: str) -> None:
        """Begins at `position`, where a group of records begins; `place` names the log in errors."""
        self._walk = FrameWalk(position, segment_bytes=segment_bytes, epoch=epoch)
        self._segment_bytes = segment_bytes
        self._rest = bytearray()
        self._rest_at = position
        self._place = place

    @property
    def boundary(self) -> int:
        """Log offset behind the last whole group of records."""
        return self._walk.boundary

    @property
    def epoch(self) -> int:
        """Of the last record; 0: there was none."""
        return max(0, self._walk.epoch)

    @property
    def last_store_ms(self) -> int:
        """When the last record was stored, ms since the epoch; 0: there was none."""
        return self._walk.last_store_ms

    def take(self, data: bytes) -> bytes:
        """The next bytes; gives those that are new up to the last whole group. Raises StoreCorrupted, StoreError."""
        walk, rest = self._walk, self._rest
        rest += data
        before = self._rest_at
        view = memoryview(rest)[walk.position - before :]
        try:
            fault = walk.take(view, walk.position)
        finally:
            view.release()
        if fault is Fault.FOREIGN:
            raise StoreError(f"{self._place} at log offset {walk.position}: {walk.reason}; use a newer program")
        if fault not in (None, Fault.CUT):
            raise StoreCorrupted(f"{self._place} is damaged at log offset {walk.position}: {walk.reason}")
        whole = bytes(rest[: walk.boundary - before])
        del rest[: walk.boundary - before]
        self._rest_at = walk.boundary
        return whole

    def each_boundary(self, data: bytes) -> Iterator[int]:
        """The same one frame at a time: every place between groups of records, ascending. Raises as `take`."""
        seen = self.boundary
        whole = self.take(data)
        more, at = 0, 0
        while at < len(whole):
            position = seen + at
            left = self._segment_bytes - position % self._segment_bytes
            if left < HEADER_BYTES:
                at += left
            else:
                fields = HEADER.unpack_from(whole, at)
                if fields[KIND] != PADDING:
                    more = fields[FLAGS] & FLAG_MORE
                at += fields[SIZE]
            if not more:
                yield seen + at

    def finish(self) -> None:
        """There is no more. Raises StoreCorrupted in the middle of a record or a group."""
        if self._rest:
            raise StoreCorrupted(
                f"{self._place} ends in the middle of a group of records: it is whole up to log offset {self.boundary}"
            )
