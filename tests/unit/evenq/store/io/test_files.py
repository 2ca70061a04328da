"""Open files are bounded, and a file in use is never closed."""

from __future__ import annotations

import pytest

from evenq.store.io.disk import RealDisk
from evenq.store.io.files import ReadFiles


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
        assert files.take_if_open("b") is None, "another thread has the lock"


class SlowDisk(RealDisk):
    """While it opens a file, something else happens."""

    meanwhile = None

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return file


@pytest.fixture
def slow(disk):
    return SlowDisk(disk.root)


def test_while_a_file_is_opened_nobody_waits_for_those_that_are_open(slow):
    files = ReadFiles(slow, 2)
    with files.using("a"):
        pass
    taken = []

    def meanwhile():
        opened = files.take_if_open("a")
        taken.append(opened)
        files.give_back(opened)

    slow.meanwhile = meanwhile
    with files.using("b") as file:
        assert file.pread(9, 0) == b"b"
    assert taken[0].file.pread(9, 0) == b"a"


def test_two_who_open_the_same_file_share_the_one_that_was_there_first(slow):
    files = ReadFiles(slow, 2)
    others = []

    def meanwhile():
        with files.using("a") as other:
            others.append(other)

    slow.meanwhile = meanwhile
    with files.using("a") as file:
        assert file is others[0]
        assert file.pread(9, 0) == b"a"
    assert len(files) == 1


def test_a_file_that_is_removed_while_it_is_opened_is_not_kept(slow):
    files = ReadFiles(slow, 2)

    def meanwhile():
        slow.remove("a")
        files.forget("a")

    slow.meanwhile = meanwhile
    with files.using("a") as file:
        assert file.pread(9, 0) == b"a"
    with pytest.raises(OSError, match="Bad file"):
        file.pread(9, 0)
    assert len(files) == 0
    with pytest.raises(FileNotFoundError), files.using("a"):
        pass
