"""The mark by which a broker refuses a record from a backup: what it keeps, and where."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import Pair, RecordRefused, first_record
from evenq_broker.loops.coordinators.coordinator import RecordWentBack
from evenq_broker.loops.coordinators.epoch_mark import EpochMark, MarkUnusable

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
SECOND = FIRST.elected(0)


def test_a_higher_epoch_is_kept_for_the_next_start(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path / "mark")
    mark.accept(FIRST, "x")
    mark.accept(SECOND, "x")
    for one in (mark, EpochMark(tmp_path / "mark")):
        with pytest.raises(RecordWentBack, match=r"record x is at epoch 0, version 1; .* seen epoch 1, version 2"):
            one.accept(FIRST, "x")
        with pytest.raises(RecordWentBack, match="record x is gone; this broker has seen epoch 1"):
            one.accept(None, "x")
        assert one.is_over(FIRST)
        assert one.is_over(None)
        assert not one.is_over(SECOND)


def test_an_older_version_of_the_same_epoch_is_refused_while_the_process_runs(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path / "mark")
    mark.accept(SECOND, "x")
    mark.accept(SECOND.renewed(), "x")
    with pytest.raises(RecordWentBack, match="version 2; this broker has seen epoch 1, version 3"):
        mark.accept(SECOND, "x")
    EpochMark(tmp_path / "mark").accept(SECOND, "x")  # renewals are not worth a sync


def test_what_goes_back_is_not_proposed(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path / "mark")
    mark.check_proposal(FIRST)
    mark.accept(SECOND, "x")
    mark.check_proposal(SECOND.renewed())
    with pytest.raises(RecordRefused, match="epoch 0, version 9 is not written: this broker has seen epoch 1"):
        mark.check_proposal(replace(FIRST, version=9))


def test_nothing_seen_is_no_mark_and_nonsense_is_refused(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path / "mark")
    mark.accept(None, "x")
    assert not mark.is_over(None)
    (tmp_path / "mark").write_text("seven\n")
    with pytest.raises(RecordRefused, match="must hold an epoch and a version"):
        mark.accept(FIRST, "x")


def test_a_mark_that_finds_no_room_is_named_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is elsewhere and can be read: what is full is this broker's disk."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    mark = EpochMark(tmp_path / "mark")
    with pytest.raises(
        MarkUnusable, match=rf"record x cannot be kept in {tmp_path / 'mark'}: no space left .*: free space"
    ):
        mark.accept(FIRST, "x")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    mark.accept(FIRST, "x")
    assert not mark.is_over(FIRST)


def test_a_mark_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "mark").mkdir()
    with pytest.raises(MarkUnusable, match=rf"cannot be read from {tmp_path / 'mark'}: Is a directory"):
        EpochMark(tmp_path / "mark").accept(FIRST, "x")
