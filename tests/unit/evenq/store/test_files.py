"""Open files are bounded, and a file in use is never closed."""

from __future__ import annotations

import pytest

from evenq.store.disk import RealDisk
from evenq.store.files import ReadFiles


@pytest.fixture
def disk(tmp_path):
    disk = RealDisk(tmp_path)
    for name in "abcde":
        file = disk.open(name, create=True)
        file.pwrite([name.encode()], 0)
        file.close()
    return disk


def test_the_least_recently_used_file_is_closed_first_and_never_one_in_use(disk):
    files = ReadFiles(disk, 2)
    with files.using("a") as first:
        for name in "bcde":
            with files.using(name) as file:
                assert file.pread(9, 0) == name.encode()
            assert len(files) == 2
        assert first.pread(9, 0) == b"a"
    with pytest.raises(OSError, match="Bad file"):
        first.pread(9, 0)
    with files.using("e") as again:
        pass
    files.close()
    with pytest.raises(OSError, match="Bad file"):
        again.pread(9, 0)


def test_a_missing_file_leaves_nothing_behind(disk):
    files = ReadFiles(disk, 2)
    with pytest.raises(FileNotFoundError), files.using("z"):
        pass
    assert len(files) == 0


def test_a_forgotten_file_is_closed_by_its_last_user(disk):
    files = ReadFiles(disk, 2)
    with files.using("a") as file:
        files.forget("a")
        files.forget("b")
        assert file.pread(9, 0) == b"a"
    with pytest.raises(OSError, match="Bad file"):
        file.pread(9, 0)
    assert len(files) == 0


def test_only_an_open_file_is_taken_without_waiting(disk):
    files = ReadFiles(disk, 1)
    assert files.take_if_open("a") is None
    with files.using("a"):
        pass
    opened = files.take_if_open("a")
    assert opened is not None
    with files.using("b"):
        assert opened.file.pread(9, 0) == b"a", "forgotten, but in use"
    files.give_back(opened)
    with pytest.raises(OSError, match="Bad file"):
        opened.file.pread(9, 0)
    with files._lock:
        assert files.take_if_open("b") is None, "another thread may be opening a file"
