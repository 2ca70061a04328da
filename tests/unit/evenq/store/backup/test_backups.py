"""Backups of a real store in a folder, without a broker between: runs, damage, what may be restored, what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from evenq.errors import BadRequest, NotFound, PreconditionFailed, StoreCorrupted, StoreError, StoreFull, StoreLocked
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store import Append, MessageStore, StoreOptions
from evenq.store.backup import creating
from evenq.store.backup.creating import BackupRun
from evenq.store.backup.manifest import BackupManifest, covered_end, piece_path
from evenq.store.backup.reading import known_manifest, piece_bytes
from evenq.store.backup.remote_target import RemoteTarget
from evenq.store.backup.restoring import plan_restore, restore, settle
from evenq.store.backup.target import BackupTarget, FolderTarget, write_small
from evenq.store.backup.verifying import verify
from evenq.store.inspection.verify import verify as verify_folder
from evenq.store.io.disk import ReadOnlyDisk
from evenq.store.log.log_holds import LogHolds
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.messages import TimerAppend

NAME = "broker-a"
SEGMENT = 1 << 16
HOUR_MS = 3_600_000
OPTIONS = StoreOptions(segment_bytes=SEGMENT, retention_ms=HOUR_MS, retention_hour=-1)


async def opened(folder: Path, clock: FakeClock | SystemClock | None = None) -> MessageStore:
    return await MessageStore.open(
        folder, OPTIONS, clock=clock or SystemClock(), broker_name=NAME, on_state=lambda *_: None,
        on_snapshot=lambda _: None, snapshot_of=lambda: b"state",
    )  # fmt: skip


async def fill(store: MessageStore, count: int, *, each: int = 1) -> None:
    for _ in range(count):
        await store.append([Append(1, 0, 0, 1, b"h" * 400, b"s") for _ in range(each)])


async def back_up(
    store: MessageStore, target: BackupTarget, *, stop_at: int = 0, keep: int = 0, cluster: str = "one"
) -> BackupManifest | None:
    """As the command line does it; `stop_at`: the run is cut off there."""
    with target:
        progress = BackupRun(target, NAME)
        try:
            backup = await store.begin_backup(hold_ms=HOUR_MS)
            try:
                start = max(progress.end, backup.log_start)
                progress.begin(
                    cluster=cluster, store_id=store.identity.store_id, segment_bytes=SEGMENT, epoch=1,
                    log_start=backup.log_start, start=start, end=backup.end, compared=True,
                    snapshot_offset=backup.snapshot_offset, snapshot_bytes=len(backup.snapshot), now_ms=1,
                )  # fmt: skip
                progress.snapshot(backup.snapshot)
                log = store.log_bytes()
                while start < (stop_at or backup.end):
                    data = log.read(start, backup.end, 10_000)
                    progress.log(data)
                    start += len(data)
                log.close()
            finally:
                store.release_log(backup.hold)
            return None if stop_at else progress.finish(keep=keep)
        finally:
            progress.give_up()


def bodies(target: BackupTarget, manifest: BackupManifest) -> bytes:
    return b"".join(b"".join(piece_bytes(target, NAME, piece)) for piece in manifest.pieces)


@pytest.mark.parametrize("kind", ["folder", "memory://backups", "local"])
async def test_a_second_run_copies_what_is_new_and_a_restore_of_it_is_a_clean_folder(tmp_path: Path, kind: str) -> None:
    url = f"file://{tmp_path}/target" if kind == "local" else f"{kind}{tmp_path}"
    target = FolderTarget(tmp_path / "target") if kind == "folder" else RemoteTarget(url)
    store = await opened(tmp_path / "data")
    await fill(store, 500)
    first = await back_up(store, target)
    await fill(store, 100)
    second = await back_up(store, target)
    assert first is not None
    assert second is not None
    assert second.points[-1].copied_bytes == second.end - first.end > 0
    assert bodies(target, second)[: first.end] == bodies(target, first)
    assert verify(target, NAME, lambda *_: None).findings == []
    await store.close()
    plan = plan_restore(target, second, None)
    done = restore(target, plan, tmp_path / "new", lambda *_: None)
    assert (done.log_start, done.log_end) == (0, second.end)
    await settle(tmp_path / "new", NAME, b"new key", clock=SystemClock())
    states: list[bytes] = []
    new = await MessageStore.open(
        tmp_path / "new", OPTIONS, clock=SystemClock(), broker_name=NAME,
        on_state=lambda _, record: states.append(record), on_snapshot=states.append,
    )  # fmt: skip
    assert new.queue_range(1, 0) == (0, 600)
    assert states == [b"state", b"new key"]
    assert new.identity.store_id != store.identity.store_id
    await fill(new, 1)
    end = new.stats.log_end
    await new.close()
    disk = ReadOnlyDisk(tmp_path / "new")
    epochs = [epoch for epoch, _ in LogPieces(disk, SEGMENT).epochs(0, end) if epoch]
    assert epochs == sorted(epochs)
    assert (epochs[0], epochs[-2:]) == (1, [2, 2]), "the key and what comes later are of a higher epoch"
    assert [one.kind for one in verify_folder(disk, owner=disk.owner).findings.listed] in ([], ["timers-unread"])


def test_a_store_that_fails_with_an_error_of_its_own_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of fsspec have errors of their own, which are not OSError."""
    target = RemoteTarget("memory://errors")
    write_small(target, "a/b", b"c")
    file = target.create("a/d")

    class Away(Exception):
        pass

    def away(*_: object, **__: object) -> None:
        raise Away("the store is away")

    with monkeypatch.context() as broken:
        for name in ("write", "close"):
            broken.setattr(file._file, name, away)
        for name in ("open", "ls", "rm_file", "makedirs"):
            broken.setattr(target._files, name, away)
        calls: list[Callable[[], object]] = [
            lambda: list(target.read("a/b")),
            lambda: target.sizes("a"),
            target.folders,
            lambda: target.create("a/c"),
            lambda: target.remove("a/b"),
            lambda: file.write(b""),
            file.commit,
        ]
        for call in calls:
            with pytest.raises(StoreError, match=r"^memory://errors.* cannot be used: Away: the store is away"):
                call()
        file.discard()
    read = target.read("a/b")
    next(read)
    with pytest.raises(ValueError, match="the caller's"):
        read.throw(ValueError("the caller's"))


async def test_what_a_run_that_was_cut_off_brought_is_not_copied_again_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creating, "PIECE_BYTES", 20_000)
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 100)
    first = await back_up(store, target)
    await fill(store, 400)
    assert first is not None
    assert await back_up(store, target, stop_at=first.end + 100_000) is None
    assert known_manifest(target, NAME).manifest == first
    assert BackupRun(target, NAME).end > first.end + 50_000, "it goes on behind what came"
    second = await back_up(store, target)
    assert second is not None
    assert verify(target, NAME, lambda *_: None).findings == []
    assert covered_end(second.pieces, 0) == second.end
    await store.close()


async def test_verify_names_a_flipped_byte_and_a_missing_piece_and_the_next_run_sees_the_missing_one(
    tmp_path: Path,
) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 100)
    manifest = await back_up(store, target)
    assert manifest is not None
    piece = manifest.pieces[0]
    path = tmp_path / "target" / NAME / piece_path(piece)
    data = bytearray(path.read_bytes())
    data[12_345] ^= 1
    path.write_bytes(data)
    [finding] = verify(target, NAME, lambda *_: None).findings
    assert "12345" in finding or "damaged" in finding
    assert str(path.parent) in finding
    with pytest.raises(StoreCorrupted):
        restore(target, plan_restore(target, manifest, None), tmp_path / "new", lambda *_: None)
    assert not (tmp_path / "new").exists(), "nothing is left of it"
    again = BackupRun(target, NAME)
    again.check_all(lambda *_: None)
    assert again.lost() == [piece]
    path.unlink()
    assert len(verify(target, NAME, lambda *_: None).findings) == 1
    again = BackupRun(target, NAME)
    assert again.lost() == [piece]
    with pytest.raises(StoreCorrupted, match="other bytes"):
        again.restore_lost(piece, bytes(data))
    data[12_345] ^= 1
    again.restore_lost(piece, bytes(data))
    assert verify(target, NAME, lambda *_: None).findings == []
    await store.close()


async def test_until_names_the_nearest_places_and_takes_whole_groups_only(tmp_path: Path) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 20, each=3)
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    group = manifest.end // 20
    with pytest.raises(BadRequest, match=f"are {group} and {2 * group}"):
        plan_restore(target, manifest, group + group // 3)
    with pytest.raises(BadRequest, match=f"the nearest is {manifest.end}"):
        plan_restore(target, manifest, manifest.end + 1)
    with pytest.raises(BadRequest, match="not in the backup"):
        plan_restore(target, manifest, -5)
    plan = plan_restore(target, manifest, 2 * group)
    assert plan.point.snapshot == "", "from the log alone"
    restore(target, plan, tmp_path / "new", lambda *_: None)
    new = await opened(tmp_path / "new")
    assert new.queue_range(1, 0) == (0, 6)
    await new.close()
    with pytest.raises(PreconditionFailed, match="not empty"):
        restore(target, plan, tmp_path / "new", lambda *_: None)


async def test_a_hold_keeps_the_log_for_its_time_and_no_longer(tmp_path: Path) -> None:
    clock = FakeClock()
    store = await opened(tmp_path / "data", clock)
    await fill(store, 500)
    backup = await store.begin_backup(hold_ms=HOUR_MS * 3)
    clock.jump_wall(2 * HOUR_MS)
    await fill(store, 1)
    await store.clean()
    assert store.stats.deleted_files == 0, "held"
    backup.hold.log_offset = SEGMENT + 5
    await store.clean()
    assert store.stats.deleted_files == 1, "read already"
    log = store.log_bytes()
    with pytest.raises(StoreError, match="was deleted before the backup had read it"):
        log.read(0, backup.end, 100)
    log.close()
    backup.hold.until_ms = clock.monotonic_ms()
    await store.clean()
    assert store.stats.deleted_files > 1, "its time is over"
    store.release_log(backup.hold)
    await store.close()


async def test_a_stream_that_broke_in_its_snapshot_is_gone_on_with_by_the_next_one(tmp_path: Path) -> None:
    """The head of each stream brings a snapshot of its own."""
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 20)
    progress, backup = BackupRun(target, NAME), await store.begin_backup(hold_ms=HOUR_MS)
    log = store.log_bytes()
    data = log.read(0, backup.end, 1_000_000)
    log.close()
    for breaks in (True, False):
        progress.begin(
            cluster="one", store_id=store.identity.store_id, segment_bytes=SEGMENT, epoch=1, log_start=0,
            start=progress.end, end=backup.end, compared=True, snapshot_offset=backup.snapshot_offset,
            snapshot_bytes=len(backup.snapshot), now_ms=1,
        )  # fmt: skip
        progress.snapshot(backup.snapshot[:-1] if breaks else backup.snapshot)
        if breaks:
            progress.pause()
    progress.log(data)
    assert progress.complete
    progress.finish()
    assert verify(target, NAME, lambda *_: None).findings == []
    store.release_log(backup.hold)
    await store.close()


def test_holds_are_few() -> None:
    clock = FakeClock()
    holds = LogHolds(clock)
    first = holds.take(100, hold_ms=1_000)
    holds.take(50, hold_ms=2_000)
    assert holds.held_from() == 50
    with pytest.raises(Exception, match="the maximum"):
        holds.take(1, hold_ms=1)
    holds.release(first)
    holds.release(first)
    holds.take(70, hold_ms=1_000)


async def test_timers_that_retention_wrote_again_and_queues_without_messages_survive(tmp_path: Path) -> None:
    """The log begins later than 0: snapshot, log and what is pending come over."""
    clock = FakeClock()
    store, target = await opened(tmp_path / "data", clock), FolderTarget(tmp_path / "target")
    later = clock.now_ms() + 100 * HOUR_MS
    await store.append([], timers=[TimerAppend(1, 0, 0, due_ms=later, kind=1, born_ms=1, head=b"later", system=b"s")])
    await store.append([Append(2, 0, 0, 1, b"old", b"s")])
    await fill(store, 500)
    clock.jump_wall(2 * HOUR_MS)
    await fill(store, 200)
    await store.clean()
    assert store.stats.deleted_files > 0
    manifest = await back_up(store, target)
    await store.close()
    assert manifest is not None
    assert manifest.points[-1].log_start > 0
    restore(target, plan_restore(target, manifest, None), tmp_path / "new", lambda *_: None)
    new = await opened(tmp_path / "new", clock)
    assert new.timers.stats.pending == 1
    assert new.queue_range(2, 0) == (1, 1), "its numbers go on"
    assert new.queue_range(1, 0) == store.queue_range(1, 0)
    await new.close()


async def test_a_gap_between_runs_ends_older_points_and_keep_lets_them_go(tmp_path: Path) -> None:
    clock = FakeClock()
    store, target = await opened(tmp_path / "data", clock), FolderTarget(tmp_path / "target")
    await fill(store, 200)
    first = await back_up(store, target)
    assert first is not None
    await fill(store, 400)
    clock.jump_wall(2 * HOUR_MS)
    await fill(store, 100)
    await store.clean()
    second = await back_up(store, target)
    assert second is not None
    assert second.pieces[-1].start > first.end, "retention was faster"
    assert second.last_of(second.points[0]) == first.end
    assert plan_restore(target, second, first.end).point.number == 1
    with pytest.raises(BadRequest, match=f"nearest is {first.end}"):
        plan_restore(target, second, first.end + 10)
    third = await back_up(store, target, keep=1)
    assert third is not None
    assert [point.number for point in third.points] == [3]
    await back_up(store, target, keep=1)
    assert first.pieces[0] not in third.pieces
    assert not (tmp_path / "target" / NAME / piece_path(first.pieces[0])).exists()
    assert verify(target, NAME, lambda *_: None).findings == []
    await store.close()


async def test_another_cluster_a_second_writer_and_a_damaged_manifest(tmp_path: Path) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 10)
    with pytest.raises(NotFound, match="interrupted backup"):
        known_manifest(target, NAME)
    first = await back_up(store, target)
    await fill(store, 10)
    await back_up(store, target)
    with pytest.raises(PreconditionFailed, match="cluster 'one'"):
        await back_up(store, target, cluster="two")
    with target, pytest.raises(StoreLocked, match="another backup"):
        FolderTarget(tmp_path / "target").__enter__()
    newest = tmp_path / "target" / NAME / "manifest-00000002.json"
    newest.write_bytes(newest.read_bytes().replace(b"one", b"onE", 1))
    found = known_manifest(target, NAME)
    assert found.manifest == first
    assert "checksum" in found.damaged[0]
    assert "checksum" in verify(target, NAME, lambda *_: None).findings[0]
    (tmp_path / "target" / NAME / "manifest-00000001.json").write_text(json.dumps({"format": 9}))
    with pytest.raises(StoreError, match="format 9"):
        known_manifest(target, NAME)
    await store.close()


async def test_a_full_target_leaves_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 10)
    first = await back_up(store, target)
    await fill(store, 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", full)
        with pytest.raises((StoreFull, StoreError)):
            await back_up(store, target)
    assert known_manifest(target, NAME).manifest == first
    assert not list((tmp_path / "target").rglob("*.new"))
    await store.close()


async def test_the_checksum_of_a_piece_is_that_of_the_log(tmp_path: Path) -> None:
    store, target = await opened(tmp_path / "data"), FolderTarget(tmp_path / "target")
    await fill(store, 10)
    manifest = await back_up(store, target)
    assert manifest is not None
    data = (tmp_path / "data" / "commitlog" / f"{0:020d}").read_bytes()
    assert manifest.pieces[0].crc32c == crc32c(data[: manifest.end])
    await store.close()
