"""What `evenq backup list` and `restore` say of a target of which a part cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from evenq.cli.backup.commands import target_of
from evenq.errors import StoreLocked
from evenq.store.backup.manifest import BackupManifest, RestorePoint, SavedPiece, manifest_path, pack
from evenq.store.backup.target import FolderTarget


def manifest(runs: int) -> BackupManifest:
    """After so many runs of a hundred bytes each."""
    points = tuple(
        RestorePoint(
            number=one, created_ms=1_700_000_000_000, store_id="a" * 32, epoch=1, log_start=0, first=100 * one,
            snapshot="", copied_bytes=100,
        )
        for one in range(1, runs + 1)
    )  # fmt: skip
    pieces = tuple(SavedPiece(start=100 * one, end=100 * one + 100, crc32c=0) for one in range(runs))
    return BackupManifest(
        cluster="c", broker_name="b", segment_bytes=1 << 20, number=runs, points=points, pieces=pieces
    )


def test_a_newer_run_that_cannot_be_read_is_named(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    for runs in (1, 2):
        (folder / manifest_path(runs)).write_bytes(pack(manifest(runs)))
    _, out, err, _ = run(f"backup list {tmp_path}")
    assert ("200" in out, err) == (True, "")

    (folder / manifest_path(2)).write_text("{")
    for command in (f"backup list {tmp_path}", f"backup restore {tmp_path} --dry-run"):
        code, out, err, _ = run(command)
        said = "".join(err.split())  # lines are broken anywhere
        assert code == 0
        assert "200" not in out
        assert "manifest-00000002.jsondoesnotparse" in said
        assert "Restorepoint1ofbrokerbisthenewestreadableone" in said


def test_a_url_of_a_folder_is_a_folder_with_a_lock(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", f"local://{tmp_path}", str(tmp_path)):
        with target_of(url) as target, pytest.raises(StoreLocked):
            target_of(url).__enter__()
        assert isinstance(target, FolderTarget)
