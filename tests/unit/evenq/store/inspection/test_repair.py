"""What can be proven is mended, and the store then opens and serves; what costs data wants a word for it."""

import pytest

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.inspection import dump
from evenq.store.inspection.folder import read_folder
from evenq.store.inspection.repair import RepairAction, apply, plan_of
from evenq.store.inspection.verify import verify
from evenq.store.log.record import MESSAGE

QUEUE = "consumequeue/1/1/00000000000000000000"


def content(disk):
    return {path: bytes(file.data) for path, file in disk.files.items()}


def test_a_plan_changes_nothing(filled, look):
    disk = filled(clean=False)
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    disk.files[path].data += b"torn"
    disk.files["checkpoint"].data[20] ^= 1
    before = content(disk)
    plan = plan_of(disk, look(disk))
    assert [(step.action, step.path) for step in plan.steps] == [
        (RepairAction.CUT, path),
        (RepairAction.MOVE, "checkpoint"),
    ]
    assert plan.left == []
    assert content(disk) == before


def test_nothing_is_planned_for_a_clean_folder(filled, look):
    disk = filled()
    before = content(disk)
    plan = plan_of(disk, look(disk))
    assert (plan.steps, plan.left, plan.lost_from) == ([], [], None)
    assert list(apply(disk, look(disk).folder, plan, into="repair-1")) == []
    assert content(disk) == before


def test_a_torn_tail_is_cut_and_kept(filled, mend, serves, whole):
    disk = filled(clean=False)
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    end = len(disk.files[path].data)
    disk.files[path].data += b"torn"
    assert mend(disk).findings.listed == []
    assert len(disk.files[path].data) == end
    assert disk.files[f"repair-1/{path}"].data[end:] == b"torn"
    assert serves(disk) == whole


@pytest.mark.parametrize("damage", ["entry", "short", "checkpoint", "snapshot", "both snapshots"])
def test_a_derived_file_that_does_not_agree_is_taken_out_and_made_again(filled, mend, serves, look, whole, damage):
    disk = filled()
    snapshots = [f"snapshot/{name}" for name in disk.list("snapshot")]
    match damage:
        case "entry":
            disk.files[QUEUE].data[25] ^= 1
        case "short":
            disk.files[QUEUE].data[50:] = b""
        case "checkpoint":
            disk.files["checkpoint"].data[20] ^= 1
        case "snapshot":
            disk.files[snapshots[-1]].data[20] ^= 1
        case "both snapshots":
            for path in snapshots:
                disk.files[path].data[20] ^= 1
    assert not look(disk).clean
    plan = plan_of(disk, look(disk))
    assert plan.steps
    assert plan.left == []
    mend(disk)
    assert all(f"repair-1/{step.path}" in disk.files for step in plan.steps)
    assert serves(disk) == whole
    assert look(disk).findings.listed == []


def test_damage_is_left_alone_without_a_word(filled, look, places):
    disk = filled()
    _, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][45]
    disk.files[path].data[byte + 100] ^= 1
    before = content(disk)
    plan = plan_of(disk, look(disk))
    assert plan.steps == []
    assert [finding.kind for finding in plan.left] == ["log-damaged"]
    assert content(disk) == before


def test_with_a_word_the_log_is_cut_and_what_goes_can_be_dumped(filled, look, mend, serves, places, whole):
    disk = filled()
    log_offset, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][45]
    disk.files[path].data[byte + 100] ^= 1
    verdict = look(disk)
    plan = plan_of(disk, verdict, accept_loss=True)
    assert plan.lost_from == log_offset
    assert plan.lost_bytes == verdict.folder.log_end - log_offset
    assert [str(gone) for gone in plan.lost] == [f"messages 15 to 19 of queue {queue} of topic 1" for queue in range(3)]
    assert plan.left == []
    mend(disk, accept_loss=True)
    assert serves(disk) == [queue[:15] for queue in whole]
    assert look(disk).clean
    moved = type(disk)()
    for name, file in disk.files.items():
        if name.startswith("repair-1/"):
            moved.open(name.removeprefix("repair-1/"), create=True).pwrite([bytes(file.data)], 0)
    folder = read_folder(moved, owner=None)
    saved = [frame.head.split(b".")[0] for frame in dump.frames(moved, folder, dump.Wanted())]
    assert saved == [b"%d" % number for number in range(46, 60)]


def test_a_cut_before_the_first_snapshot_replays_the_whole_log(filled, mend, serves, places, look, whole):
    disk = filled()
    _, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][9]
    disk.files[path].data[byte + 100] ^= 1
    mend(disk, accept_loss=True)
    assert disk.list("snapshot") == []
    assert serves(disk) == [queue[:3] for queue in whole]
    assert look(disk).clean


def test_a_missing_file_in_the_middle_is_cut_at(filled, mend, serves, look):
    disk = filled()
    disk.remove(f"commitlog/{disk.list('commitlog')[3]}")
    mend(disk, accept_loss=True)
    assert len(disk.list("commitlog")) == 3
    assert all(serves(disk))
    assert look(disk).clean


def test_a_log_that_is_too_short_goes_on_from_its_end(filled, mend, serves, look, places, whole):
    disk = filled()
    _, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][-1]
    disk.files[path].data[byte:] = b""
    mend(disk, accept_loss=True)
    assert serves(disk) == [whole[0], whole[1], whole[2][:-1]]
    assert look(disk).clean


def test_a_cut_that_would_leave_no_snapshot_is_refused(filled, look, places):
    disk = filled()
    _, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][9]
    disk.files[path].data[byte + 100] ^= 1
    verdict = look(disk)
    verdict.folder.log_start = 1
    with pytest.raises(StoreCorrupted, match="Restore a snapshot"):
        plan_of(disk, verdict, accept_loss=True)


def test_a_crash_between_two_steps_can_be_gone_on_from(filled, look, places, serves, whole):
    for done in range(1, 5):
        disk = filled()
        _, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][30]
        disk.files[path].data[byte + 100] ^= 1
        steps = apply(disk, look(disk).folder, plan_of(disk, look(disk), accept_loss=True), into="repair-1")
        for _ in range(done):
            next(steps, None)
        again = look(disk)
        for _ in apply(disk, again.folder, plan_of(disk, again, accept_loss=True), into="repair-2"):
            pass
        assert serves(disk) == [queue[:10] for queue in whole]


def test_a_store_in_use_is_refused(filled):
    disk = filled()
    disk.files["checkpoint"].data[20] ^= 1
    verdict = verify(disk, owner=lambda: "17")
    with pytest.raises(StoreError, match="process 17"):
        list(apply(disk, verdict.folder, plan_of(disk, verdict), into="repair-1"))
