"""Whatever goes wrong before a store is there, its folder is free again and the caller learns why."""

from __future__ import annotations

import errno

import pytest

from evenq.errors import StoreError, StoreLocked
from evenq.store import StoreOptions
from evenq.store.io.jobs import Jobs
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.opening import owned_folder


@pytest.fixture
def jobs():
    return Jobs(threads=1, name="test", threaded=False)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad disk"), StoreError("mine"), KeyboardInterrupt()])
def test_a_failed_opening_gives_the_folder_back(jobs, error):
    disk = MemoryDisk()
    result = StoreError if isinstance(error, OSError) else type(error)
    with pytest.raises(result) as raised, owned_folder.owned(disk, jobs):
        raise error
    if isinstance(error, OSError):
        assert "memory: cannot be opened: [Errno 5] bad disk" in str(raised.value)
    with owned_folder.owned(disk, jobs):
        pass


def test_an_owned_folder_stays_owned(jobs):
    disk = MemoryDisk()
    with owned_folder.owned(disk, jobs):
        pass
    with pytest.raises(StoreLocked), owned_folder.owned(disk, jobs):
        pytest.fail("two owners")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file/data cannot be created"):
        owned_folder.disk_of(tmp_path / "file" / "data", StoreOptions())


def test_without_a_folder_the_disk_is_memory_of_the_size_asked_for():
    disk = owned_folder.disk_of(None, StoreOptions(memory_bytes_max=5_000))
    assert isinstance(disk, MemoryDisk)
    assert disk.usage().total == 5_000
