"""The one small file that cannot be made anew."""

from __future__ import annotations

import contextlib
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreCorrupted, StoreError
from evenq.local import state_file

STATE = {"engine": "local", "groups": {"g": {"T": {"0": 4}}}}


def test_what_is_saved_is_loaded():
    disk = FaultDisk()
    assert state_file.load(disk) is None
    state_file.save(disk, STATE)
    assert state_file.load(disk) == {"format": 1, **STATE}


def test_any_harm_is_refused_or_changes_nothing():
    disk = FaultDisk()
    state_file.save(disk, STATE)
    whole = bytes(disk.files[state_file.PATH].data)
    for bit in range(8 * len(whole)):
        data = disk.files[state_file.PATH].data
        data[:] = whole
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert state_file.load(disk) == {"format": 1, **STATE}
        except StoreError as error:
            assert "offsets.json" in str(error)  # noqa: PT017
    for end in range(len(whole) - 1):
        disk.files[state_file.PATH].data[:] = whole[:end]
        with pytest.raises(StoreCorrupted):
            state_file.load(disk)


def test_a_crash_leaves_the_old_one_or_the_new_one():
    for number in range(6):
        for keep in Keep:
            disk = FaultDisk()
            state_file.save(disk, {"n": 1})
            disk.cut = (disk.operations + number, 9)
            with contextlib.suppress(OSError):
                state_file.save(disk, {"n": 2})
            found = state_file.load(disk.crash(keep, random.Random(number)))
            assert found is not None
            assert found["n"] in {1, 2}
