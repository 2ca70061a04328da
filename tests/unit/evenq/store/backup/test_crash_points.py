"""A backup is whole whatever moment a run ends at, and what lacks something is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from evenq.errors import StoreCorrupted, StoreError, StoreFull
from evenq.runtime.clock import SystemClock
from evenq.store import MessageStore
from evenq.store.backup import creating
from evenq.store.backup.creating import BackupRun
from evenq.store.backup.manifest import piece_path
from evenq.store.backup.reading import known_manifest
from evenq.store.backup.restoring import plan_restore, restore, settle
from evenq.store.backup.target import FolderTarget, TargetFile
from evenq.store.backup.verifying import check_point, verify
from tests.unit.evenq.store.backup.test_backups import NAME, OPTIONS, SEGMENT, back_up, bodies, fill, opened


class DyingFile:
    """Of a target that dies."""

    def __init__(self, target: DyingTarget, file: TargetFile) -> None:
        self.target, self.file = target, file

    def write(self, data: bytes | memoryview) -> None:
        self.target.step()
        self.file.write(data)

    def commit(self) -> None:
        self.target.step()
        self.file.commit()
        self.target.step()

    def discard(self) -> None:
        """The process is gone: what lies there stays."""
        if self.target.is_dead:
            self.file._file.close()  # type: ignore[attr-defined]  # as the system does
        else:
            self.file.discard()


class DyingTarget(FolderTarget):
    """The process ends at a step: from then on nothing is done."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.at, self.steps = at, 0

    @property
    def is_dead(self) -> bool:
        return self.steps > self.at

    def step(self) -> None:
        self.steps += 1
        if self.is_dead:
            raise StoreError("the process is gone")

    def create(self, path: str) -> TargetFile:
        self.step()
        return DyingFile(self, super().create(path))

    def remove(self, path: str) -> None:
        self.step()
        super().remove(path)


def steps_of(root: Path, copy: Path) -> Iterator[DyingTarget]:
    """A copy of the target for each step, until a run needs no more of them."""
    at = 0
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        target = DyingTarget(copy, at)
        yield target
        if not target.is_dead:
            return
        at += 1


@pytest.mark.slow  # some twenty runs
@pytest.mark.parametrize("keep", [0, 1])
async def test_a_run_that_ends_at_any_step_leaves_a_whole_backup_and_the_next_one_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    monkeypatch.setattr(creating, "PIECE_BYTES", 30_000)
    store = await opened(tmp_path / "data")
    await fill(store, 100)
    first = await back_up(store, FolderTarget(tmp_path / "target"))
    await fill(store, 100)
    assert first is not None
    ends: set[int] = set()
    for target in steps_of(tmp_path / "target", tmp_path / "copy"):
        with suppress(StoreError):
            await back_up(store, target, keep=keep)
        left = FolderTarget(tmp_path / "copy")
        verdict = verify(left, NAME, lambda *_: None)
        assert verdict.findings == [], target.at
        ends.add(verdict.manifest.end)
        restore(left, plan_restore(left, verdict.manifest, None), tmp_path / "new", lambda *_: None)
        shutil.rmtree(tmp_path / "new")
        again = await back_up(store, left, keep=keep)
        assert again is not None
        assert verify(left, NAME, lambda *_: None).findings == []
        log = (tmp_path / "data" / "commitlog" / f"{0:020d}").read_bytes()
        assert bodies(left, again)[:SEGMENT] == log[: min(again.end, SEGMENT)]
        named = {piece_path(piece) for piece in again.pieces}
        there = {f"log/{path.name}" for path in (tmp_path / "copy" / NAME / "log").iterdir()}
        assert named <= there
        assert target.at < 100
    assert ends >= {first.end, again.end}, "it ended before and after the manifest"
    await store.close()


def test_each_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, sync_folder, name = os.fdatasync, os.fsync, Path.replace
    monkeypatch.setattr(os, "fdatasync", lambda file: (done.append("file"), sync(file))[1])
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("folder"), sync_folder(file))[1])

    def named(self: Path, to: Path) -> Path:
        done.append("name")
        return name(self, to)

    monkeypatch.setattr(Path, "replace", named)
    file = FolderTarget(tmp_path / "target").create(f"{NAME}/log/1")
    file.write(b"x")
    assert not (tmp_path / "target" / NAME / "log" / "1").exists()
    file.commit()
    assert done == ["folder"] * 3 + ["file", "name", "folder"], "the folders on the way to it, then the file"
    file.discard()
    assert (tmp_path / "target" / NAME / "log" / "1").read_bytes() == b"x", "what is there stays"


async def test_a_damaged_or_short_snapshot_is_named_and_not_restored(tmp_path: Path) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 20)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    path = tmp_path / "target" / NAME / manifest.points[-1].snapshot
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"\xff"):
        path.write_bytes(damaged)
        [finding] = verify(target, NAME, lambda *_: None).findings
        assert f"{path} does not fit its checksum" in finding
        with pytest.raises(StoreCorrupted, match="does not fit its checksum"):
            check_point(target, manifest, manifest.points[-1])
        with pytest.raises(StoreCorrupted):
            restore(target, plan_restore(target, manifest, None), tmp_path / "new", lambda *_: None)
        assert not (tmp_path / "new").exists()
    path.unlink()
    assert len(verify(target, NAME, lambda *_: None).findings) == 1


async def test_a_backup_with_a_gap_is_not_restored_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creating, "PIECE_BYTES", 20_000)
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 200)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    assert len(manifest.pieces) > 3
    for gone in range(len(manifest.pieces)):
        pieces = manifest.pieces[:gone] + manifest.pieces[gone + 1 :]
        with pytest.raises(StoreCorrupted, match=r"needs the log|lacks the log"):
            check_point(target, replace(manifest, pieces=pieces), manifest.points[-1])
        plan = replace(plan_restore(target, manifest, None), manifest=replace(manifest, pieces=pieces))
        with pytest.raises(StoreError):
            restore(target, plan, tmp_path / "new", lambda *_: None)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("lacks", ["log", "snapshot", "piece"])
async def test_a_run_that_did_not_get_all_of_it_writes_no_manifest(tmp_path: Path, lacks: str) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 20)
    first = await back_up(store, target)
    await fill(store, 20)
    assert first is not None
    if lacks == "piece":
        (tmp_path / "target" / NAME / piece_path(first.pieces[0])).unlink()
    progress = BackupRun(target, NAME)
    backup = await store.begin_backup(hold_ms=60_000)
    progress.begin(
        cluster="one", store_id=store.identity.store_id, segment_bytes=SEGMENT, epoch=1, log_start=0,
        start=first.end, end=backup.end, compared=True, snapshot_offset=backup.snapshot_offset,
        snapshot_bytes=len(backup.snapshot), now_ms=1,
    )  # fmt: skip
    progress.snapshot(backup.snapshot[:-1] if lacks == "snapshot" else backup.snapshot)
    log = store.log_bytes()
    data = log.read(first.end, backup.end, 1_000_000)
    log.close()
    progress.log(data[: len(data) // 2] if lacks == "log" else data)
    assert progress.complete is (lacks == "piece")
    with pytest.raises(StoreError, match=r"pieces of|sent its log up to|in the middle"):
        progress.finish()
    progress.give_up()
    assert known_manifest(target, NAME).manifest == first
    store.release_log(backup.hold)
    await store.close()


async def test_all_that_a_restore_writes_is_on_disk_when_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The identity comes last: with it the folder counts as whole."""
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 200)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    new, synced = tmp_path / "new", list[str]()
    for name in ("fsync", "fdatasync"):
        call = getattr(os, name)

        def noted(file: int, call: Callable[[int], None] = call) -> None:
            synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).relative_to(tmp_path).as_posix())
            call(file)

        monkeypatch.setattr(os, name, noted)
    restore(target, plan_restore(target, manifest, None), new, lambda *_: None)
    monkeypatch.undo()
    logs = [f"new/commitlog/{path.name}" for path in (new / "commitlog").iterdir()]
    assert len(logs) > 1
    assert synced[-1] == "new", "the identity has its name"
    assert synced.index("new/commitlog") > max(synced.index(log) for log in logs)
    assert {"new/snapshot", *(f"new/snapshot/{path.name}" for path in (new / "snapshot").iterdir())} <= {
        name.removesuffix(".tmp").removesuffix(".new") for name in synced
    }


async def test_a_restored_folder_without_its_first_record_is_opened_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 20)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    restore(target, plan_restore(target, manifest, None), tmp_path / "new", lambda *_: None)

    async def full(*_: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(MessageStore, "append_state", full)
    with pytest.raises(StoreFull):
        await settle(tmp_path / "new", NAME, b"new key", clock=SystemClock())
    monkeypatch.undo()
    with pytest.raises(StoreCorrupted):
        await opened(tmp_path / "new")


async def test_a_folder_whose_restore_was_cut_off_is_opened_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its identity is written last; `_clear` is what a killed process does not come to."""
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 50)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evenq.store.backup.restoring._clear", lambda *_, **__: None)
    monkeypatch.setattr("evenq.store.backup.restoring.lock.write", killed)
    with pytest.raises(KeyboardInterrupt):
        restore(target, plan_restore(target, manifest, None), tmp_path / "new", lambda *_: None)
    monkeypatch.undo()
    assert list((tmp_path / "new" / "commitlog").iterdir()), "the log is there"
    with pytest.raises(StoreCorrupted):
        await MessageStore.open(
            tmp_path / "new", OPTIONS, clock=SystemClock(), broker_name=NAME, on_state=lambda *_: None,
            on_snapshot=lambda _: None,
        )  # fmt: skip
