"""Verifies one broker's backup: checksums, every record, and the restore points. Changes nothing.

`evenq backup create --check` copies damaged pieces again if the broker still has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.backup.manifest import BackupManifest, RestorePoint
from evenq.store.backup.reading import LogCheck, known_manifest, piece_bytes
from evenq.store.backup.target import BackupTarget, read_small
from evenq.store.copies import snapshot_copy


@dataclass(slots=True)
class BackupVerdict:
    """Result of `verify`."""

    manifest: BackupManifest
    findings: list[str] = field(default_factory=list)
    """Damage and its place, one text each; empty if the backup is whole."""
    bytes_read: int = 0


def verify(target: BackupTarget, broker_name: str, on_progress: Callable[[int, int], None]) -> BackupVerdict:
    """Verifies a backup; `on_progress` gets bytes read and bytes in total. Raises NotFound, StoreCorrupted."""
    known = known_manifest(target, broker_name)
    verdict = BackupVerdict(known.manifest, list(known.damaged))
    _log(target, verdict, on_progress)
    for point in known.manifest.points:
        try:
            check_point(target, known.manifest, point)
        except StoreError as error:
            verdict.findings.append(error.message)
    return verdict


def _log(target: BackupTarget, verdict: BackupVerdict, on_progress: Callable[[int, int], None]) -> None:
    manifest = verdict.manifest
    total = sum(piece.end - piece.start for piece in manifest.pieces)
    check: LogCheck | None = None
    for piece in manifest.pieces:
        if check is None or check.boundary != piece.start:
            check = LogCheck(
                piece.start, segment_bytes=manifest.segment_bytes, place=target.describe(f"{manifest.broker_name}/log")
            )
        try:
            for data in piece_bytes(target, manifest.broker_name, piece):
                check.take(data)
                verdict.bytes_read += len(data)
                on_progress(verdict.bytes_read, total)
            check.finish()
        except StoreError as error:
            check = None
            verdict.findings.append(f"{error.message} (log offsets {piece.start} to {piece.end})")


def check_point(target: BackupTarget, manifest: BackupManifest, point: RestorePoint) -> bytes:
    """Returns the point's snapshot if it and the log can be restored. Raises StoreCorrupted, StoreError."""
    last = manifest.last_of(point)
    if last < point.first:
        raise StoreCorrupted(
            f"restore point {point.number} of broker {manifest.broker_name} needs the log from {point.log_start} to "
            f"{point.first}, but the target has it only up to {last}"
        )
    path = f"{manifest.broker_name}/{point.snapshot}"
    data = read_small(target, path)
    if len(data) != point.snapshot_bytes or crc32c(data) != point.snapshot_crc32c:
        raise StoreCorrupted(f"{target.describe(path)} does not fit its checksum: it is damaged")
    snapshot_copy.parsed(data, origin=target.describe(path))
    return data
