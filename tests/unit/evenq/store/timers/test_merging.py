"""Merging gives all keys once and in order; a scan finds what lies below."""

from __future__ import annotations

import random

import pytest
from evenq_proofs.fault_disk import FaultDisk
from hypothesis import given
from hypothesis import strategies as st

from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.timers import runs
from evenq.store.timers.keys import id_of, key_of
from evenq.store.timers.merging import MergeJob, ScanJob, SpillJob, merged


@given(sources=st.lists(st.lists(st.integers(0, 300), max_size=40), max_size=5), piece=st.integers(1, 7))
def test_pieces_of_sorted_sources_come_out_in_one_order(sources, piece):
    sources = [sorted(source) for source in sources]
    pieces = [iter([s[n : n + piece] for n in range(0, len(s), piece)]) for s in sources]
    assert [key for taken in merged(pieces) for key in taken] == sorted(key for s in sources for key in s)


def _spilled(disk, number, keys):
    job = SpillJob(number, list(keys), ahead=512)
    list(job.steps(disk))
    return job.run


def test_a_merge_leaves_out_what_was_used_or_ended_and_keeps_the_first_keys_at_hand():
    disk, rng = MemoryDisk(), random.Random(3)
    keys = [key_of(rng.randrange(9_999), n, 1) for n in range(20_000)]
    files = [_spilled(disk, number, keys[number::3]) for number in range(3)]
    left = [sorted(keys[number::3])[700:] for number in range(3)]
    ended = {id_of(key) for key in left[0][::50]}
    job = MergeJob(9, [(file, 700) for file in files], ended, ahead=1_024)
    list(job.steps(disk))
    wanted = sorted(key for part in left for key in part if id_of(key) not in ended)
    assert [key for piece in runs.entries(disk, job.run) for key in piece] == wanted
    assert job.first_keys == wanted[:1_024]
    assert set(job.dropped) == ended


def test_a_merge_of_nothing_leaves_no_file():
    disk = MemoryDisk()
    file = _spilled(disk, 1, [key_of(1, 1, 1)])
    job = MergeJob(2, [(file, 0)], {1}, ahead=512)
    list(job.steps(disk))
    assert job.run is None
    assert disk.list("timers") == ["0" * 19 + "1"]


def test_a_full_disk_leaves_no_half_file():
    disk = FaultDisk(1_000)
    job = SpillJob(1, [key_of(n, n, 1) for n in range(1_000)], ahead=512)
    with pytest.raises(OSError, match="No space left"):
        list(job.steps(disk))
    assert disk.list("timers") == []


def test_a_scan_stops_when_it_found_enough_and_says_so():
    disk = MemoryDisk()
    used = [(_spilled(disk, 1, [key_of(n, n, 1) for n in range(10_000)]), 100)]
    job = ScanJob(used, below=9_000, count_max=50, skip={101})
    list(job.steps(disk))
    assert not job.whole
    assert {id_of(key) for key in job.found} >= {100, 102}
    assert 101 not in {id_of(key) for key in job.found}
    rest = ScanJob(used, below=103, count_max=50)
    list(rest.steps(disk))
    assert rest.whole
    assert [id_of(key) for key in rest.found] == [100, 101, 102]
