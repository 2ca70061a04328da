"""Index files and timer runs are checked block by block, and a start makes them again."""

from array import array

import pytest

from evenq.store.copies.snapshot_copy import TIMERS_UNKNOWN
from evenq.store.index import index_file
from evenq.store.index.index_file import PAGE_BYTES, PAGE_ENTRIES, IndexFile, pack_page
from evenq.store.inspection.findings import Harm
from evenq.store.inspection.repair import plan_of
from evenq.store.log import snapshot
from evenq.store.log.snapshot import Snapshot
from evenq.store.timers import manifest, runs
from evenq.store.timers.manifest import Manifest, RunUse
from evenq.store.timers.runs import BLOCK_BYTES, RunWriter

INDEX = "index/00000000000000000000"
RUN = "timers/00000000000000000001"


@pytest.fixture
def indexed(filled):
    """A folder with an index file of three pages."""
    disk = filled()
    count = 2 * PAGE_ENTRIES + 5
    numbers = array("Q", (number for entry in range(count) for number in (entry * 1000, entry)))
    pages = [pack_page(0, numbers[first : first + 2 * PAGE_ENTRIES]) for first in range(0, 2 * count, 2 * PAGE_ENTRIES)]
    index_file.write(disk, IndexFile(count, 0, 0, 64 << 20, 1, 2), pages)
    return disk


@pytest.fixture
def timed(filled):
    """A folder whose newest snapshot names a run of timers of three blocks."""
    disk = filled()
    writer = RunWriter(disk, 1)
    keys = [number.to_bytes(runs.KEY_BYTES, "big") for number in range(1, 1200)]
    writer.add(keys)
    run = writer.finish()
    newest = int(disk.list("snapshot")[-1])
    section = manifest.pack(Manifest(next_run=2, floor=0, runs=(RunUse(1, run.count, 0),), keys=[]))
    snapshot.save(disk, Snapshot(newest, b"owner", timers=section))
    return disk


def test_good_ones_are_clean(indexed, timed, look):
    assert look(indexed).findings.listed == []
    assert look(timed).findings.listed == []


@pytest.mark.parametrize(
    ("byte", "found_at"), [(3, 0), (20, 0), (PAGE_BYTES + 7, PAGE_BYTES), (3 * PAGE_BYTES + 40, 3 * PAGE_BYTES)]
)
def test_a_flipped_bit_in_an_index_file_has_its_page(indexed, look, byte, found_at):
    indexed.files[INDEX].data[byte] ^= 1
    verdict = look(indexed)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm, finding.file, finding.byte) == (
        "index-damaged", Harm.REBUILT, INDEX, found_at,
    )  # fmt: skip
    assert [step.path for step in plan_of(indexed, verdict).steps] == [INDEX]


def test_a_shortened_index_file_ends_too_early(indexed, look):
    indexed.files[INDEX].data[-100:] = b""
    (finding,) = look(indexed).findings.listed
    assert (finding.kind, finding.byte) == ("index-damaged", 4 * PAGE_BYTES - 100)


@pytest.mark.parametrize("byte", [10, 200, runs.HEADER.size + 2 * BLOCK_BYTES + 50])
def test_a_flipped_bit_in_a_run_of_timers_is_found(timed, look, byte):
    timed.files[RUN].data[byte] ^= 1
    verdict = look(timed)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm, finding.file) == ("run-damaged", Harm.REBUILT, RUN)
    assert "at byte" in finding.what
    assert [step.path for step in plan_of(timed, verdict).steps] == [RUN]


def test_a_missing_run_is_found_and_needs_no_repair(timed, look):
    timed.remove(RUN)
    verdict = look(timed)
    (finding,) = verdict.findings.listed
    assert finding.kind == "run-damaged"
    assert "missing" in finding.what
    assert plan_of(timed, verdict).left == []


def test_a_damaged_manifest_is_found_in_its_snapshot(filled, look):
    disk = filled()
    newest = int(disk.list("snapshot")[-1])
    snapshot.save(disk, Snapshot(newest, b"owner", timers=b"no manifest at all, is it?" * 3))
    assert [finding.kind for finding in look(disk).findings.listed] == ["manifest-damaged"]


def test_a_restored_folder_whose_snapshot_names_no_timers_is_clean_and_says_why(filled, look):
    disk = filled()
    newest = int(disk.list("snapshot")[-1])
    snapshot.save(disk, Snapshot(newest, b"owner", timers=TIMERS_UNKNOWN))
    verdict = look(disk)
    (finding,) = verdict.findings.listed
    assert (finding.kind, finding.harm) == ("timers-unread", Harm.NOTE)
    assert "restored from a backup" in finding.what
    assert verdict.clean
    assert plan_of(disk, verdict).steps == []
