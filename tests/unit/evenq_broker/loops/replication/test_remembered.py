"""What a copy remembers of its group's record, and when that counts as nothing."""

from __future__ import annotations

import errno
import json
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.record import GroupRecord, MemberAddress, Pair
from evenq_broker.loops.replication import identity, remembered
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.remembered import BYTES_MAX, FILE, RememberedRecord, replace_file
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.store.io.disk import Disk, RealDisk

RECORD = GroupRecord(
    version=9, epoch=7, leader=0, isr=(Pair(0, "a" * 32), Pair(1, "b" * 32)), min_isr=2, members=(0, 1, 2)
)


def loaded(folder: Path, *, cluster: str = "c", broker_id: int = 1, store_id: str = "b" * 32) -> RememberedRecord:
    return RememberedRecord.load(RealDisk(folder), cluster=cluster, broker_id=broker_id, store_id=store_id)


def of_a_copy(folder: Path, mode: Mode = Mode.REPL_SYNC) -> ReplicaIdentity:
    return ReplicaIdentity.load(RealDisk(folder), cluster="c", broker_id=1, mode=mode)


def test_the_record_is_there_at_the_next_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = replace(RECORD, addresses=(MemberAddress(2, "db3:8083"),))
    assert loaded(tmp_path).record is None
    loaded(tmp_path).keep(record)
    assert loaded(tmp_path).record == record
    assert not caplog.records, "that there is none is no news"


def test_an_epoch_that_is_entered_is_remembered_with_its_record(tmp_path: Path) -> None:
    one = of_a_copy(tmp_path)
    one.persist_epoch(7, RECORD)
    again = of_a_copy(tmp_path)
    assert (again.epoch, again.remembered.record) == (7, RECORD)
    again.forget()
    assert not list(tmp_path.glob(f"*{FILE}*"))


def test_other_copies_in_the_epoch_are_news_and_renewals_and_other_epochs_are_not(tmp_path: Path) -> None:
    one = of_a_copy(tmp_path)
    assert not one.forgets(RECORD), "the epoch is not entered"
    one.persist_epoch(7, RECORD)
    assert not one.forgets(replace(RECORD, version=10, isr=RECORD.isr[:1]))
    assert one.forgets(replace(RECORD, version=10, members=(0, 1)))
    assert one.forgets(replace(RECORD, version=10, addresses=(MemberAddress(2, "db9:8083"),)))
    assert not one.forgets(replace(RECORD, version=10, epoch=8, members=(0, 1)))


@pytest.mark.parametrize(
    "other", [{"cluster": "other"}, {"broker_id": 2}, {"store_id": "c" * 32}], ids=lambda one: next(iter(one))
)
def test_what_another_cluster_broker_or_store_remembers_counts_as_nothing(
    tmp_path: Path, other: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    loaded(tmp_path).keep(RECORD)
    assert loaded(tmp_path, **other).record is None  # type: ignore[arg-type]
    assert [line.levelno for line in caplog.records] == [logging.WARNING]
    assert f"{tmp_path / FILE} is not used" in caplog.text


def test_a_store_that_lost_its_page_cache_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: in memory mode it is another store after another start of the kernel."""
    monkeypatch.setattr(identity, "_boot_id", lambda: "now")
    of_a_copy(tmp_path, Mode.REPL_MEMORY).persist_epoch(7, RECORD)
    assert of_a_copy(tmp_path, Mode.REPL_MEMORY).remembered.record == RECORD
    monkeypatch.setattr(identity, "_boot_id", lambda: "later")
    assert of_a_copy(tmp_path, Mode.REPL_MEMORY).remembered.record is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"record": {}}', "x" * (BYTES_MAX + 1), "\xff"])
def test_a_damaged_file_counts_as_nothing_and_the_log_names_it(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert loaded(tmp_path).record is None
    assert f"{tmp_path / FILE} is not used" in caplog.text


@pytest.mark.parametrize("change", [{"epoch": -1}, {"leader": 5}, {"members": []}, {"isr": {}}])
def test_a_record_that_no_group_has_counts_as_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    loaded(tmp_path).keep(RECORD)
    fields = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({**fields, "record": {**fields["record"], **change}}))
    assert loaded(tmp_path).record is None


def test_a_disk_without_room_for_it_hinders_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a help and no promise."""
    one, whole = of_a_copy(tmp_path), remembered.replace_file

    def full(disk: RealDisk, name: str, fields: dict[str, object]) -> None:
        if name == FILE:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(disk, name, fields)

    monkeypatch.setattr(remembered, "replace_file", full)
    one.persist_epoch(7, RECORD)
    assert one.epoch == 7
    assert f"{tmp_path / FILE} cannot be written: no space left" in caplog.text
    assert one.forgets(RECORD), "it is tried again with the next change"


OWNER = {"cluster": "c", "broker_id": 1, "store_id": "b" * 32}


def on(disk: Disk) -> GroupRecord | None:
    return RememberedRecord.load(disk, **OWNER).record  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", Keep)
def test_what_is_kept_outlives_the_loss_of_power_right_after(keep: Keep) -> None:
    for seed in range(20):
        disk = FaultDisk()
        for epoch in (7, 8):
            RememberedRecord.load(disk, **OWNER).keep(replace(RECORD, epoch=epoch))  # type: ignore[arg-type]
        assert on(disk.crash(keep, random.Random(seed))) == replace(RECORD, epoch=8)


def test_a_file_that_is_replaced_while_the_power_goes_is_the_old_one_or_the_new_one() -> None:
    whole = FaultDisk()
    replace_file(whole, FILE, {"number": 1})
    before = whole.operations
    replace_file(whole, FILE, {"number": 2})
    seen: set[int] = set()
    for cut in range(before, whole.operations):
        for seed in range(10):
            disk = FaultDisk()
            replace_file(disk, FILE, {"number": 1})
            disk.cut = (cut, seed)
            with pytest.raises(OSError, match="error"):
                replace_file(disk, FILE, {"number": 2})
            found = disk.crash(Keep.SOME, random.Random(seed)).files[FILE].data
            seen.add(json.loads(found)["number"])
    assert seen == {1, 2}


def test_an_epoch_that_was_entered_is_known_after_a_loss_of_power() -> None:
    """R3: a copy that forgot it could act in an older one."""
    for seed in range(20):
        disk = FaultDisk()
        ReplicaIdentity.load(disk, cluster="c", broker_id=1, mode=Mode.REPL_SYNC).persist_epoch(7, RECORD)
        left = disk.crash(Keep.SOME if seed else Keep.NONE, random.Random(seed))
        again = ReplicaIdentity.load(left, cluster="c", broker_id=1, mode=Mode.REPL_SYNC)
        assert (again.epoch, again.remembered.record) == (7, RECORD)
