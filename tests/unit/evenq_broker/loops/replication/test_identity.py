"""Who a data folder is in its group: R3 (the epoch is synced) and R10 (another disk is another store)."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from evenq_broker.core.replication.config import Mode
from evenq_broker.loops.replication import identity
from evenq_broker.loops.replication.identity import FILE, ReplicaIdentity, must_be_alone

from evenq.errors import StoreError, StoreLocked
from evenq.store.io.disk import RealDisk


def loaded(folder: Path, mode: Mode = Mode.REPL_SYNC, *, cluster: str = "c", broker_id: int = 1) -> ReplicaIdentity:
    return ReplicaIdentity.load(RealDisk(folder), cluster=cluster, broker_id=broker_id, mode=mode)


def test_a_folder_keeps_its_store_id_and_its_highest_epoch(tmp_path: Path) -> None:
    first = loaded(tmp_path)
    first.persist_epoch(7)
    first.persist_epoch(5)
    again = loaded(tmp_path)
    assert (again.store_id, again.epoch) == (first.store_id, 7)


def test_an_empty_folder_is_another_store(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    assert loaded(tmp_path).store_id != loaded(tmp_path / "new").store_id


@pytest.mark.parametrize(
    ("clean", "boot", "same"),
    [(True, "later", True), (False, "now", True), (False, "later", False), (False, "", False)],
)
def test_in_memory_mode_an_unclean_stop_of_the_machine_makes_another_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool, boot: str, same: bool
) -> None:
    monkeypatch.setattr(identity, "_boot_id", lambda: "now")
    first = loaded(tmp_path, Mode.REPL_MEMORY)
    first.persist_epoch(3)
    if clean:
        first.mark_clean()
    monkeypatch.setattr(identity, "_boot_id", lambda: boot)
    again = loaded(tmp_path, Mode.REPL_MEMORY)
    assert (again.store_id == first.store_id) is same
    assert again.epoch == 3
    monkeypatch.setattr(identity, "_boot_id", lambda: "even later")
    assert loaded(tmp_path, Mode.REPL_MEMORY).store_id != again.store_id, "the clean mark holds for one start"


@pytest.mark.parametrize(("floor", "epoch", "same"), [(0, 0, True), (0, 1, False), (7, 7, True), (7, 8, False)])
def test_in_memory_mode_a_store_that_never_acted_stays_the_one_that_the_record_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, floor: int, epoch: int, same: bool
) -> None:
    """A founder that loses power before it knows of its own record would else be of no group, with the only copy."""

    def started(boot: str) -> ReplicaIdentity:
        monkeypatch.setattr(identity, "_boot_id", lambda: boot)
        return ReplicaIdentity.load(
            RealDisk(tmp_path), cluster="c", broker_id=1, mode=Mode.REPL_MEMORY, restored_epoch=floor
        )

    first = started("now")
    first.persist_epoch(epoch)
    assert (started("later").store_id == first.store_id) is same


@pytest.mark.parametrize(("cluster", "broker_id"), [("other", 1), ("c", 2)])
def test_a_folder_of_another_cluster_or_broker_is_refused(tmp_path: Path, cluster: str, broker_id: int) -> None:
    loaded(tmp_path)
    with pytest.raises(StoreError, match=r"broker 1 of cluster 'c'.*give the broker its own folder"):
        loaded(tmp_path, cluster=cluster, broker_id=broker_id)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"cluster": 1}', "x" * 5_000])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreError, match=FILE):
        loaded(tmp_path)


@pytest.mark.parametrize("change", [{"store_id": "short"}, {"epoch": -1}, {"epoch": "3"}, {"cluster": None}])
def test_fields_that_no_broker_wrote_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    loaded(tmp_path)
    path = tmp_path / FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StoreError):
        loaded(tmp_path)


def test_only_the_first_start_in_a_folder_is_new_and_it_can_be_taken_back(tmp_path: Path) -> None:
    first = loaded(tmp_path)
    assert first.is_new
    assert not loaded(tmp_path).is_new
    first.forget()
    first.mark_clean()
    assert not (tmp_path / FILE).exists()
    assert loaded(tmp_path).is_new


def test_a_broker_without_copies_keeps_out_of_the_folder_of_a_group(tmp_path: Path) -> None:
    must_be_alone(None)
    must_be_alone(tmp_path)
    loaded(tmp_path)
    with pytest.raises(StoreError, match=r"one copy of a broker group.*replication\.\*"):
        must_be_alone(tmp_path)


def test_the_folder_of_a_running_process_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """What that process syncs as its highest epoch must not be written over (R3)."""
    loaded(tmp_path)
    before = (tmp_path / FILE).stat().st_ino
    owner = RealDisk(tmp_path)
    owner.lock()
    with pytest.raises(StoreLocked, match="in use by process"):
        loaded(tmp_path)
    assert (tmp_path / FILE).stat().st_ino == before
    owner.unlock()
    loaded(tmp_path)


def test_an_epoch_that_finds_no_room_is_not_entered_and_the_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = loaded(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.pwritev", full)
    with pytest.raises(StoreError, match=rf"{tmp_path / FILE} cannot be written: no space left .*: free space"):
        one.persist_epoch(7)
    monkeypatch.undo()
    assert one.epoch == 0
    one.persist_epoch(7)
    assert loaded(tmp_path).epoch == 7
