"""The manifest of one broker's backups: which pieces of its log and which snapshots are there, what may be restored.

A file `manifest-<8 digits>.json` is written last by each run and never changed; the newest whole one counts. Pieces are
stretches of the log, byte for byte, that begin and end between groups of records; runs only add pieces, so each copies
what is new. A run that ended early left its pieces in `partial.json`, and the next one goes on behind them. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.model.names import broker_problem

__all__ = [
    "PARTIAL",
    "BackupManifest",
    "RestorePoint",
    "SavedPiece",
    "covered_end",
    "manifest_path",
    "numbers",
    "pack",
    "pack_partial",
    "piece_path",
    "unpack",
    "unpack_partial",
]

FORMAT: Final = 1
PARTIAL: Final = "partial.json"
DIGITS: Final = 20
OFFSET_MAX: Final = (1 << 63) - 1
SEGMENT_BYTES_MAX: Final = 1 << 40
_SNAPSHOT: Final = re.compile(r"(snapshot/[0-9]{8}-[0-9]{20})?\Z")
"""A checksum finds damage and nobody's intent: names become paths only if they are ours."""


@dataclass(frozen=True, slots=True, order=True)
class SavedPiece:
    """A stretch of the log in a file of its own."""

    start: int
    end: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """What one run added: a snapshot, and the log up to a place."""

    number: int
    """Of the run, from 1."""
    created_ms: int
    """By the broker's clock, since the epoch."""
    store_id: str
    """Of the copy that was read."""
    epoch: int
    """The highest of the log up to here."""
    log_start: int
    """Where the broker's log began: what a restore from here needs of it."""
    first: int
    """The lowest log offset that may be restored from this snapshot."""
    snapshot: str
    """File, in the broker's folder of the target; empty: none, the state comes from the whole log."""
    snapshot_bytes: int = 0
    snapshot_crc32c: int = 0
    copied_bytes: int = 0
    """Of log, that this run brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """All of one broker."""

    cluster: str
    broker_name: str
    segment_bytes: int
    number: int = 0
    points: tuple[RestorePoint, ...] = ()
    """Oldest first."""
    pieces: tuple[SavedPiece, ...] = field(default=())
    """Ascending, none over another; there may be gaps where retention was faster than backups."""

    @property
    def end(self) -> int:
        """Where the log in the target ends."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def all_points(self) -> tuple[RestorePoint, ...]:
        """Those of the runs, and in front of them the log's own beginning, if that is there: from it any place can be
        restored, with the state that the log itself tells of.
        """
        if not self.points or not self.pieces or self.pieces[0].start > 0:
            return self.points
        first = self.points[0]
        origin = RestorePoint(
            number=0, created_ms=0, store_id=first.store_id, epoch=first.epoch, log_start=0, first=0, snapshot=""
        )
        return (origin, *self.points)

    def last_of(self, point: RestorePoint) -> int:
        """The highest log offset that may be restored from a point."""
        return covered_end(self.pieces, point.log_start)


def covered_end(pieces: Sequence[SavedPiece], start: int) -> int:
    """Up to where the log is there without a gap from `start` on; `start` if not at all."""
    end = start
    for piece in pieces:
        if piece.start <= end < piece.end:
            end = piece.end
    return end


def piece_path(piece: SavedPiece) -> str:
    """Its file."""
    return f"log/{piece.start:0{DIGITS}d}"


def manifest_path(number: int) -> str:
    """The file of a run."""
    return f"manifest-{number:08d}.json"


def numbers(names: Iterable[str]) -> list[int]:
    """Runs whose manifests are among the names of files, ascending."""
    numbers = [name.removeprefix("manifest-").removesuffix(".json") for name in names if name.startswith("manifest-")]
    return sorted(int(text) for text in numbers if text.isdecimal())


def pack(manifest: BackupManifest) -> bytes:
    """As it lies in the target."""
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
    """The reverse. Raises StoreCorrupted, and StoreError for a format of a newer program; both name the place."""
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
    """What a run has brought so far, on top of the manifest `after`."""
    return _sealed({"after": after, "pieces": [[piece.start, piece.end, piece.crc32c] for piece in pieces]})


def unpack_partial(data: bytes, place: str, *, after: int) -> list[SavedPiece]:
    """The reverse; nothing if it is of another manifest, or damaged: then those pieces are copied again."""
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
        raise StoreCorrupted(f"{place} does not parse ({error}): it is damaged, or no part of a backup") from error
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
        raise ValueError(f"a snapshot is the file {made.snapshot[:80]!r}, which no backup has")
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
        raise StoreCorrupted(f"{place} is no manifest of a backup: number, size of log files or restore points lack")
