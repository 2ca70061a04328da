"""Reads what a target holds of one broker, for every command of `evenq backup`."""

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

SIZE, KIND, FLAGS = 0, 4, 5  # places in a header, in the order of FRAME_FIELDS
KEPT: Final = 2
"""Manifests that stay: if the newest one is damaged, only the newest run is lost."""


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """The newest whole manifest."""

    manifest: BackupManifest
    damaged: tuple[str, ...] = ()
    """Reasons why newer ones are not used."""


def broker_names(target: BackupTarget) -> list[str]:
    """Returns the brokers with a backup, finished or begun, in the target. Raises StoreError."""
    return [name for name in target.folders() if numbers(target.sizes(name)) or target.sizes(f"{name}/log")]


def find_manifest(target: BackupTarget, broker_name: str) -> FoundManifest | None:
    """Returns the newest whole manifest of a broker, None without one. Raises StoreCorrupted if all are damaged."""
    damaged: list[str] = []
    for number in reversed(numbers(target.sizes(broker_name))):
        path = f"{broker_name}/{manifest_path(number)}"
        try:
            manifest = unpack(read_small(target, path), target.describe(path))
            if (manifest.broker_name, manifest.number) != (broker_name, number):
                raise StoreCorrupted(
                    f"{target.describe(path)} holds manifest {manifest.number} of broker {manifest.broker_name}, which "
                    "does not match its place"
                )
            return FoundManifest(manifest, tuple(damaged))
        except StoreCorrupted as error:
            damaged.append(error.message)
    if damaged:
        raise StoreCorrupted(f"no manifest of broker {broker_name} is whole: {'; '.join(damaged)}")
    return None


def chosen_broker(target: BackupTarget, broker_name: str) -> str:
    """Returns the broker's name; an empty name selects the only broker. Raises NotFound."""
    names = broker_names(target)
    if broker_name in names or (not broker_name and len(names) == 1):
        return broker_name or names[0]
    there = f"it has {', '.join(names)}" if names else "it has no backup"
    wanted = f"no backup of broker {broker_name}" if broker_name else "several brokers' backups: name one with --broker"
    raise NotFound(f"{target.describe('')} has {wanted}; {there}" if names else f"{target.describe('')}: {there}")


def known_manifest(target: BackupTarget, broker_name: str) -> FoundManifest:
    """Returns the newest whole manifest, which must exist. Raises NotFound, StoreCorrupted."""
    manifest = find_manifest(target, broker_name)
    if manifest is None:
        raise NotFound(
            f"{target.describe(broker_name)} holds the beginning of an interrupted backup and no complete one: run "
            "`evenq backup create` again, it continues there"
        )
    return manifest


def piece_bytes(target: BackupTarget, broker_name: str, piece: SavedPiece) -> Iterator[bytes]:
    """Yields a piece's bytes, then checks checksum and length. Raises StoreError, StoreCorrupted."""
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
    """Checker of a log that arrives in pieces of any size, record by record; keeps at most one group of records."""

    def __init__(self, position: int, *, segment_bytes: int, epoch: int = 0, place: str) -> None:
        """Starts at `position`, where a group of records begins; `place` names the log in errors."""
        self._walk = FrameWalk(position, segment_bytes=segment_bytes, epoch=epoch)
        self._segment_bytes = segment_bytes
        self._rest = bytearray()
        self._rest_at = position
        self._place = place

    @property
    def boundary(self) -> int:
        """Log offset after the last whole group of records."""
        return self._walk.boundary

    @property
    def epoch(self) -> int:
        """Epoch of the last record; 0 without records."""
        return max(0, self._walk.epoch)

    @property
    def last_store_ms(self) -> int:
        """Store time of the last record, ms since the epoch; 0 without records."""
        return self._walk.last_store_ms

    def take(self, data: bytes) -> bytes:
        """Takes the next bytes; returns new ones up to the last whole group. Raises StoreCorrupted, StoreError."""
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
        """Takes the next bytes; yields every place between groups of records, ascending. Raises as `take`."""
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
        """Checks that nothing is left over. Raises StoreCorrupted in the middle of a record or a group."""
        if self._rest:
            raise StoreCorrupted(
                f"{self._place} ends in the middle of a group of records: it is whole up to log offset {self.boundary}"
            )
