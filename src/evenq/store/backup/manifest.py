"""The manifest of one broker's backups: pieces of its log, snapshots, and the points that can be restored. Pure.

Each run writes a file `manifest-<8 digits>.json` last and never changes it; the newest whole one counts. Pieces are
parts of the log, byte for byte, that begin and end between groups of records. Runs only add pieces, so each run copies
only new bytes. An interrupted run lists its pieces in `partial.json`, and the next run continues after them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from crc32c import crc32c

from evenq.errors import PreconditionFailed, StoreCorrupted, StoreError
from evenq.model.names import broker_problem
from evenq.store.backup.target import BackupTarget, read_small, write_small

FORMAT: Final = 1
PARTIAL: Final = "partial.json"
DIGITS: Final = 20
OFFSET_MAX: Final = (1 << 63) - 1
SEGMENT_BYTES_MAX: Final = 1 << 40
_SNAPSHOT: Final = re.compile(r"(snapshot/[0-9]{8}-[0-9]{20})?\Z")
"""A checksum detects damage, not intent: only names of this form become paths."""
CLUSTER_PATH = "cluster.json"
CLUSTER_FORMAT = 1


@dataclass(frozen=True, slots=True, order=True)
class SavedPiece:
    """A part of the log in a file of its own."""

    start: int
    end: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """A snapshot of one run, and the log up to a place."""

    number: int
    """Number of the run, from 1."""
    created_ms: int
    """Time of the broker's clock, ms since the epoch."""
    store_id: str
    """Id of the copy that was read."""
    epoch: int
    """Highest epoch of the log up to here."""
    log_start: int
    """Start of the broker's log then: a restore from here needs the log from there."""
    first: int
    """Lowest log offset that can be restored from this snapshot."""
    snapshot: str
    """File in the broker's folder of the target; empty if the state comes from the whole log."""
    snapshot_bytes: int = 0
    snapshot_crc32c: int = 0
    copied_bytes: int = 0
    """Log bytes that this run copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """All backups of one broker."""

    cluster: str
    broker_name: str
    segment_bytes: int
    number: int = 0
    points: tuple[RestorePoint, ...] = ()
    """Oldest first."""
    pieces: tuple[SavedPiece, ...] = field(default=())
    """Ascending, without overlap; gaps are possible where retention was faster than backups."""

    @property
    def end(self) -> int:
        """Log offset at which the log in the target ends."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def all_points(self) -> tuple[RestorePoint, ...]:
        """Restore points of the runs, and in front the start of the log if it is there, which can reach any place."""
        if not self.points or not self.pieces or self.pieces[0].start > 0:
            return self.points
        first = self.points[0]
        origin = RestorePoint(
            number=0, created_ms=0, store_id=first.store_id, epoch=first.epoch, log_start=0, first=0, snapshot=""
        )
        return (origin, *self.points)

    def last_of(self, point: RestorePoint) -> int:
        """Returns the highest log offset that can be restored from a point."""
        return covered_end(self.pieces, point.log_start)


def covered_end(pieces: Sequence[SavedPiece], start: int) -> int:
    """Returns the offset up to which the log is present without a gap from `start`; `start` if it is missing."""
    end = start
    for piece in pieces:
        if piece.start <= end < piece.end:
            end = piece.end
    return end


def piece_path(piece: SavedPiece) -> str:
    return f"log/{piece.start:0{DIGITS}d}"


def manifest_path(number: int) -> str:
    return f"manifest-{number:08d}.json"


def numbers(names: Iterable[str]) -> list[int]:
    """Returns the ascending run numbers of the manifests among file names."""
    numbers = [name.removeprefix("manifest-").removesuffix(".json") for name in names if name.startswith("manifest-")]
    return sorted(int(text) for text in numbers if text.isdecimal())


def pack(manifest: BackupManifest) -> bytes:
    fields: dict[str, Any] = {
        "cluster": manifest.cluster,
        "broker": manifest.broker_name,
        "segment_bytes": manifest.segment_bytes,
        "number": manifest.number,
        "points": [asdict(point) for point in manifest.points],
        "pieces": [[piece.start, piece.end, piece.crc32c] for piece in manifest.pieces],
    }
    return _sealed(fields)


def unpack(data: bytes, place: str) -> BackupManifest:
    """Parses a manifest. Raises StoreCorrupted, and StoreError for a newer format; both name the place."""
    content = _opened(data, place)
    try:
        manifest = BackupManifest(
            cluster=_typed(content["cluster"], str),
            broker_name=_typed(content["broker"], str),
            segment_bytes=_typed(content["segment_bytes"], int),
            number=_typed(content["number"], int),
            points=tuple(_point(point) for point in content["points"]),
            pieces=tuple(_piece(piece) for piece in content["pieces"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreCorrupted(f"{place} is not the manifest of a backup: {error!r}") from error
    _check(manifest, place)
    return manifest


def pack_partial(after: int, pieces: Sequence[SavedPiece]) -> bytes:
    """Packs the pieces that a run has stored so far on top of manifest `after`."""
    return _sealed({"after": after, "pieces": [[piece.start, piece.end, piece.crc32c] for piece in pieces]})


def unpack_partial(data: bytes, place: str, *, after: int) -> list[SavedPiece]:
    """Returns the pieces; none if they belong to another manifest or are damaged: then they are copied again."""
    try:
        content = _opened(data, place)
        if content["after"] == after:
            return [_piece(piece) for piece in content["pieces"]]
    except (StoreError, KeyError, TypeError, ValueError):
        pass
    return []


def _sealed(fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    crc = crc32c(body.encode())
    return f'{{"format":{FORMAT},"crc32c":{crc},"content":{body}}}\n'.encode()


def _opened(data: bytes, place: str) -> dict[str, Any]:
    try:
        sealed = json.loads(data)
        if (version := sealed["format"]) == FORMAT:
            content, crc = sealed["content"], sealed["crc32c"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreCorrupted(f"{place} does not parse ({error}): it is damaged, or not part of a backup") from error
    if version != FORMAT:
        raise StoreError(f"{place} has format {version!r}; this program reads format {FORMAT}: use a newer program")
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    if crc32c(body.encode()) != crc or not isinstance(content, dict):
        raise StoreCorrupted(f"{place} does not fit its checksum: it is damaged")
    return content


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind or (kind is int and not 0 <= value <= OFFSET_MAX):
        raise ValueError(f"{str(value)[:80]!r} where a {kind.__name__} belongs")
    return value


def _point(point: Any) -> RestorePoint:
    kinds = {"int": int, "str": str}
    known = {one.name: kinds[str(one.type)] for one in fields(RestorePoint)}
    made = RestorePoint(**{key: _typed(value, known[key]) for key, value in dict(point).items()})
    if not _SNAPSHOT.match(made.snapshot):
        raise ValueError(f"{made.snapshot[:80]!r} is not a valid name of a snapshot")
    return made


def _piece(piece: Any) -> SavedPiece:
    start, end, crc = (_typed(number, int) for number in piece)
    return SavedPiece(start, end, crc)


def _check(manifest: BackupManifest, place: str) -> None:
    if problem := broker_problem(manifest.broker_name):
        raise StoreCorrupted(f"{place} is not the manifest of a backup: {problem}")
    end = 0
    for piece in manifest.pieces:
        if not end <= piece.start < piece.end:
            raise StoreCorrupted(f"{place} names a piece {piece.start} to {piece.end} behind {end}")
        end = piece.end
    if not 0 < manifest.segment_bytes <= SEGMENT_BYTES_MAX or manifest.number < 1 or not manifest.points:
        raise StoreCorrupted(
            f"{place} is not the manifest of a backup: number, size of log files or restore points are missing"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """The newest finished run of the cluster: `cluster.json`, the one file of a whole target, written after every
    broker of a run has its manifest.

    It names for each broker the run that belongs to it. Brokers are backed up one after the other, so each backup has
    its own point in time.
    """

    cluster: str
    created_ms: int
    brokers: Mapping[str, int]
    """Broker name to run number."""


def read_cluster(target: BackupTarget) -> ClusterRun | None:
    """Returns the newest finished run, None if there is none. Raises StoreCorrupted, StoreError."""
    if CLUSTER_PATH not in target.sizes(""):
        return None
    try:
        text = json.loads(read_small(target, CLUSTER_PATH))
        if text["format"] != CLUSTER_FORMAT:
            raise ValueError(f"its format is {text['format']!r}, this program reads {CLUSTER_FORMAT}")
        brokers = {str(name): int(number) for name, number in text["brokers"].items()}
        return ClusterRun(cluster=str(text["cluster"]), created_ms=int(text["created_ms"]), brokers=brokers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreCorrupted(
            f"{target.describe(CLUSTER_PATH)} cannot be read ({error}): remove it, the next backup writes it again"
        ) from error


def check_cluster(target: BackupTarget, cluster: str) -> None:
    """Raises PreconditionFailed for a target of another cluster."""
    known = read_cluster(target)
    if known is not None and known.cluster != cluster:
        raise PreconditionFailed(
            f"{target.describe('')} has backups of cluster {known.cluster!r}, and this one is {cluster!r}: give each "
            "cluster a target of its own"
        )


def write_cluster(target: BackupTarget, run: ClusterRun) -> None:
    """Writes the run; keeps the brokers of older runs that it did not touch. Raises StoreFull, StoreError."""
    known = read_cluster(target)
    brokers = {**(known.brokers if known is not None else {}), **run.brokers}
    text = {"format": CLUSTER_FORMAT, "cluster": run.cluster, "created_ms": run.created_ms, "brokers": brokers}
    write_small(target, CLUSTER_PATH, (json.dumps(text, indent=1) + "\n").encode())
