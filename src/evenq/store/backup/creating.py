"""One run of a backup of one broker: checks and stores what the broker sends, and writes the manifest last.

`evenq.cli.backup` fetches the data and passes it on. The target holds a complete backup at every moment: pieces are
added beside those of older runs, and only the new manifest names them. An interrupted run leaves its pieces and
`partial.json`; the next run continues after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from evenq.errors import PreconditionFailed, StoreCorrupted, StoreError
from evenq.model.names import broker_problem
from evenq.store.backup.manifest import (
    PARTIAL,
    BackupManifest,
    RestorePoint,
    SavedPiece,
    manifest_path,
    numbers,
    pack,
    pack_partial,
    piece_path,
    unpack_partial,
)
from evenq.store.backup.reading import KEPT, LogCheck, find_manifest, piece_bytes
from evenq.store.backup.target import SMALL_BYTES_MAX, BackupTarget, TargetFile, read_small, write_small
from evenq.store.copies import snapshot_copy

PIECE_BYTES: Final = 64 << 20
"""A piece of this size ends with the group of records that reaches it."""


class BackupRun:
    """One backup run into a locked target."""

    def __init__(self, target: BackupTarget, broker_name: str) -> None:
        """Raises StoreCorrupted, StoreError."""
        if problem := broker_problem(broker_name):  # the name becomes a folder
            raise StoreError(f"the server has a broker name that cannot be backed up: {problem}")
        self._target, self.broker_name = target, broker_name
        previous = find_manifest(target, broker_name)
        self.before = previous.manifest if previous is not None else None
        """The newest finished run; None for the first run."""
        self._number = max(numbers(target.sizes(broker_name)), default=0) + 1
        self._pieces = list(self.before.pieces) if self.before is not None else []
        self._new: list[SavedPiece] = self._left_behind()
        self._lost = self._missing()
        self._check: LogCheck | None = None
        self._file: TargetFile | None = None
        self._file_start = self._file_bytes = self._file_crc = 0
        self._segment_bytes = 0
        self._log_start = self._end = self._epoch = self._now_ms = 0
        self._store_id = ""
        self._cluster = ""
        self._snapshot = bytearray()
        self._snapshot_offset = self._snapshot_bytes = 0
        self.copied_bytes = sum(piece.end - piece.start for piece in self._new)
        """Log bytes copied by this run or by the interrupted run before it."""

    @property
    def end(self) -> int:
        """Log offset up to which the target has the log."""
        last = self._last()
        return last.end if last is not None else 0

    def compared(self) -> SavedPiece | None:
        """Returns the newest piece, which the broker compares with its log; None if there is none."""
        return self._last()

    def lost(self) -> list[SavedPiece]:
        """Returns pieces of older runs that are missing or incomplete in the target; they are copied again."""
        return list(self._lost)

    def check_all(self, on_progress: Callable[[int, int], None]) -> None:
        """Reads every piece of older runs and compares its checksum; damaged pieces count as lost."""
        total, done = sum(piece.end - piece.start for piece in self._pieces), 0
        for piece in self._pieces:
            if piece not in self._lost:
                try:
                    for data in piece_bytes(self._target, self.broker_name, piece):
                        on_progress(done := done + len(data), total)
                except StoreCorrupted:
                    self._lost.append(piece)

    def _last(self) -> SavedPiece | None:
        pieces = self._new or self._pieces
        return pieces[-1] if pieces else None

    def _left_behind(self) -> list[SavedPiece]:
        """Returns the pieces that an interrupted run stored."""
        path = f"{self.broker_name}/{PARTIAL}"
        if PARTIAL not in self._target.sizes(self.broker_name):
            return []
        after = self.before.number if self.before is not None else 0
        left = unpack_partial(read_small(self._target, path), self._target.describe(path), after=after)
        sizes = self._sizes()
        whole: list[SavedPiece] = []
        for piece in left:
            # Only a log without a gap counts: pieces after the first incomplete one are copied again.
            if sizes.get(piece) != piece.end - piece.start:
                break
            whole.append(piece)
        return whole

    def _missing(self) -> list[SavedPiece]:
        sizes = self._sizes()
        return [piece for piece in self._pieces if sizes.get(piece) != piece.end - piece.start]

    def _sizes(self) -> _Sizes:
        return _Sizes(self._target.sizes(f"{self.broker_name}/log"))

    def begin(
        self,
        *,
        cluster: str,
        store_id: str,
        segment_bytes: int,
        epoch: int,
        log_start: int,
        start: int,
        end: int,
        compared: bool,
        snapshot_offset: int,
        snapshot_bytes: int,
        now_ms: int,
    ) -> None:
        """Takes the head of a stream, the first or a resumed one. Raises PreconditionFailed for another log."""
        before = self.before
        if before is not None and (before.cluster, before.segment_bytes) != (cluster, segment_bytes):
            raise PreconditionFailed(
                f"{self._target.describe(self.broker_name)} is of cluster {before.cluster!r} with log files of "
                f"{before.segment_bytes} bytes, the broker is of {cluster!r} with {segment_bytes}: give it a new target"
            )
        same = before is None or not before.points or before.points[-1].store_id == store_id
        if start == self.end and start and not compared and not same and not self._new:
            raise PreconditionFailed(
                f"it is not known whether {self._target.describe(self.broker_name)} is a backup of this broker's log: "
                "the broker has another folder and no longer has the last bytes of the backup. Give it a new target"
            )
        if snapshot_bytes > SMALL_BYTES_MAX:
            raise StoreError(
                f"the snapshot of broker {self.broker_name} has {snapshot_bytes} bytes, the maximum is "
                f"{SMALL_BYTES_MAX}"
            )
        self._close_piece()
        self._cluster, self._store_id, self._segment_bytes = cluster, store_id, segment_bytes
        self._log_start, self._end, self._epoch, self._now_ms = log_start, end, max(epoch, self._epoch), now_ms
        self._snapshot_offset, self._snapshot_bytes = snapshot_offset, snapshot_bytes
        self._snapshot = bytearray()
        self._check = LogCheck(start, segment_bytes=segment_bytes, place=f"the log of broker {self.broker_name}")

    def snapshot(self, data: bytes) -> None:
        self._snapshot += data

    def log(self, data: bytes) -> None:
        """Takes the next bytes of the log. Raises StoreCorrupted for a damaged record, StoreFull, StoreError."""
        assert self._check is not None, "log() comes after begin()"
        position = self._check.boundary
        whole = self._check.take(data)
        if not whole:
            return
        if self._file is None:
            self._file_start, self._file_bytes, self._file_crc = position, 0, 0
            self._file = self._target.create(f"{self.broker_name}/{piece_path(SavedPiece(position, 0, 0))}")
        self._file.write(whole)
        self._file_bytes += len(whole)
        self._file_crc = crc32c(whole, self._file_crc)
        self.copied_bytes += len(whole)
        if self._file_bytes >= PIECE_BYTES:
            self._close_piece()

    def _close_piece(self) -> None:
        if self._file is None:
            return
        piece = SavedPiece(self._file_start, self._file_start + self._file_bytes, self._file_crc)
        self._file.commit()
        self._file = None
        self._new.append(piece)
        after = self.before.number if self.before is not None else 0
        write_small(self._target, f"{self.broker_name}/{PARTIAL}", pack_partial(after, self._new))

    @property
    def complete(self) -> bool:
        """Whether everything that the head announced has arrived."""
        check = self._check
        at_end = check is not None and check.boundary == self._end
        return at_end and len(self._snapshot) == self._snapshot_bytes

    def pause(self) -> None:
        """Keeps the whole groups received so far, after the stream broke. Raises StoreFull, StoreError."""
        self._close_piece()

    def restore_lost(self, piece: SavedPiece, data: bytes) -> None:
        """Writes all bytes of a lost piece. Raises StoreCorrupted if they differ from the original ones."""
        if len(data) != piece.end - piece.start or crc32c(data) != piece.crc32c:
            raise StoreCorrupted(
                f"broker {self.broker_name} has other bytes from log offset {piece.start} to {piece.end} than the "
                f"piece that is missing in {self._target.describe(self.broker_name)}: give it a new target"
            )
        write_small(self._target, f"{self.broker_name}/{piece_path(piece)}", data)
        self._lost.remove(piece)

    def finish(self, *, keep: int = 0) -> BackupManifest:
        """Writes the manifest after all data has arrived. With `keep` over 0 only `keep` restore points stay, and the
        pieces that they need. Raises StoreCorrupted if data is missing, StoreFull, StoreError.
        """
        assert self._check is not None, "finish() comes after begin()"
        self._check.finish()
        self._close_piece()
        if max(self.end, self._check.boundary) != self._end or len(self._snapshot) != self._snapshot_bytes:
            raise StoreCorrupted(
                f"broker {self.broker_name} sent its log up to {self._check.boundary} of {self._end} and "
                f"{len(self._snapshot)} of {self._snapshot_bytes} bytes of its snapshot"
            )
        if self._lost:
            raise StoreError(f"{len(self._lost)} pieces of {self._target.describe(self.broker_name)} are missing")
        snapshot_copy.parsed(bytes(self._snapshot), origin=f"the snapshot of broker {self.broker_name}")
        manifest = self._manifest(keep)
        path = f"snapshot/{self._number:08d}-{self._snapshot_offset:020d}"
        # The manifest comes after all that it names and before any removal: an interruption leaves a whole backup.
        write_small(self._target, f"{self.broker_name}/{path}", bytes(self._snapshot))
        write_small(self._target, f"{self.broker_name}/{manifest_path(manifest.number)}", pack(manifest))
        self._target.remove(f"{self.broker_name}/{PARTIAL}")
        self._tidy(manifest)
        return manifest

    def _manifest(self, keep: int) -> BackupManifest:
        point = RestorePoint(
            number=self._number,
            created_ms=self._now_ms,
            store_id=self._store_id,
            epoch=max(self._epoch, self._check.epoch if self._check is not None else 0, self._epoch_before()),
            log_start=self._log_start,
            first=self._end,
            snapshot=f"snapshot/{self._number:08d}-{self._snapshot_offset:020d}",
            snapshot_bytes=len(self._snapshot),
            snapshot_crc32c=crc32c(bytes(self._snapshot)),
            copied_bytes=self.copied_bytes,
        )
        points = ((*self.before.points, point) if self.before is not None else (point,))[-keep:]
        # With `keep` 0 the slice takes all points.
        needed = min(point.log_start for point in points) if keep else 0
        pieces = tuple(piece for piece in (*self._pieces, *self._new) if piece.end > needed)
        return BackupManifest(
            cluster=self._cluster,
            broker_name=self.broker_name,
            segment_bytes=self._segment_bytes,
            number=self._number,
            points=points,
            pieces=pieces,
        )

    def _epoch_before(self) -> int:
        return self.before.points[-1].epoch if self.before is not None else 0

    def _tidy(self, manifest: BackupManifest) -> None:
        """Removes files that neither this manifest nor the previous one names."""
        folder, kept = self.broker_name, [manifest, *([self.before] if self.before is not None else [])][:KEPT]
        for number in numbers(self._target.sizes(folder)):
            if number not in {one.number for one in kept}:
                self._target.remove(f"{folder}/{manifest_path(number)}")
        named = {piece_path(piece) for one in kept for piece in one.pieces}
        named |= {point.snapshot for one in kept for point in one.points}
        for inner in ("log", "snapshot"):
            for name in self._target.sizes(f"{folder}/{inner}"):
                if f"{inner}/{name}" not in named:
                    self._target.remove(f"{folder}/{inner}/{name}")

    def give_up(self) -> None:
        """Ends the run early, at any time; finished pieces stay for the next run."""
        if self._file is not None:
            self._file.discard()
            self._file = None


class _Sizes:
    """Sizes in bytes of the pieces' files."""

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names

    def get(self, piece: SavedPiece) -> int | None:
        """Returns the size, None if the file does not exist."""
        return self._names.get(piece_path(piece).rpartition("/")[2])
