"""The real disk and the one in memory behave alike."""

from __future__ import annotations

import errno
import os

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.store.io.disk import WRITE_BYTES, RealDisk, read_whole, write_whole
from evenq.store.io.memory_disk import MemoryDisk


@pytest.fixture(params=["real", "memory", "fault"])
def disk(request, tmp_path):
    return {"real": lambda: RealDisk(tmp_path / "a" / "b"), "memory": MemoryDisk, "fault": FaultDisk}[request.param]()


def test_files_are_written_and_read_at_any_place(disk):
    disk.make_folder("x/y")
    file = disk.open("x/y/f", create=True)
    file.pwrite([b"%d," % number for number in range(3_000)], 4)  # more parts than one writev takes
    assert file.pread(8, 0) == b"\0\0\0\0000,1,"
    file.truncate(6)
    file.sync()
    assert file.size() == 6
    assert file.pread(100, 4) == b"0,"
    file.close()
    assert disk.list("x") == ["y"]
    assert disk.list("none") == []
    with pytest.raises(FileNotFoundError):
        disk.open("x/none")


@pytest.mark.parametrize("wait", [True, False])
def test_pieces_are_read_into_rooms_all_or_not(disk, wait):
    file = disk.open("f", create=True)
    file.pwrite([bytes(range(100))], 0)
    buffer = memoryview(bytearray(8))
    rooms = [(buffer[:3],), (buffer[3:8],)]
    if not file.pread_each([90, 10], rooms, wait=wait):
        assert not wait
        pytest.skip("this file system does not say what is in memory")
    assert bytes(buffer) == bytes([90, 91, 92, 10, 11, 12, 13, 14])
    assert not file.pread_each([10, 96], rooms, wait=wait), "the last piece is one byte short"
    file.close()


def test_a_file_system_that_cannot_say_what_is_in_memory_is_not_asked_again(tmp_path, monkeypatch):
    calls = []

    def refuses(*arguments):
        calls.append(arguments)
        raise OSError(errno.EOPNOTSUPP, "no")

    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite([b"abc"], 0)
    monkeypatch.setattr(os, "preadv", refuses)
    for _ in range(2):
        assert not file.pread_each([0], [(memoryview(bytearray(3)),)], wait=False)
    assert len(calls) == 1
    file.close()


def test_what_is_not_in_memory_is_not_waited_for(tmp_path, monkeypatch):
    def waits(*_):
        raise BlockingIOError(errno.EAGAIN, "not now")

    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite([b"abc"], 0)
    room = bytearray(3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", waits)
        assert not file.pread_each([0], [(memoryview(room),)], wait=False)
    assert file.pread_each([0], [(memoryview(room),)])
    assert room == b"abc"
    file.close()


def test_small_files_are_replaced_whole(disk):
    assert read_whole(disk, "f") is None
    write_whole(disk, "f", b"old and long")
    write_whole(disk, "f", b"new")
    assert read_whole(disk, "f") == b"new"
    assert disk.list("") == ["f"]
    disk.make_folder("g/h")
    write_whole(disk, "g/h/f", b"new")
    disk.remove("g")
    disk.remove("g")
    assert disk.list("") == ["f"]


def test_a_file_system_without_locks_leaves_no_open_file(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("evenq.store.io.disk.fcntl.flock", refuses)
    real = RealDisk(tmp_path)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(OSError, match="no locks available"):
            real.lock()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_lock_has_one_owner_and_its_pid(disk):
    disk.lock()
    other = RealDisk(disk.root) if isinstance(disk, RealDisk) else disk
    with pytest.raises(BlockingIOError, match=str(os.getpid())):
        other.lock()
    disk.unlock()
    other.lock()
    other.unlock()
    assert disk.usage().free > 0


def test_a_short_write_goes_on_where_it_stopped(tmp_path, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, parts, offset: real(descriptor, [b"".join(parts)[:5]], offset)
    )
    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite([b"hello ", b"wide ", b"world"], 2)
    assert file.pread(99, 2) == b"hello wide world"
    file.close()


def test_no_call_to_the_system_writes_much_at_once(tmp_path, monkeypatch):
    calls = []
    real = os.pwritev

    def seen(descriptor, parts, offset):
        calls.append(sum(map(len, parts)))
        return real(descriptor, parts, offset)

    monkeypatch.setattr(os, "pwritev", seen)
    parts = [b"first", os.urandom(3 * WRITE_BYTES + 7), b"", bytearray(b"last")]
    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite(parts, 3)
    assert file.pread(4 * WRITE_BYTES, 3) == b"".join(parts)
    assert calls == [WRITE_BYTES] * 3 + [5 + 7 + 4]
    file.close()


def test_memory_has_a_size_and_gives_back_what_is_removed():
    disk = MemoryDisk(100)
    file = disk.open("f", create=True)
    file.pwrite([b"x" * 90], 0)
    file.pwrite([b"y" * 90], 5)
    with pytest.raises(OSError, match="memory_bytes_max is reached") as caught:
        file.pwrite([b"z" * 20], 90)
    assert caught.value.errno == errno.ENOSPC
    assert disk.usage().free == 5
    file.truncate(10)
    assert disk.usage().free == 90
    disk.remove("f")
    assert disk.usage().free == 100


def test_space_is_set_aside_without_changing_the_size(tmp_path):
    disk = RealDisk(tmp_path)
    disk.preallocate("next", 1 << 20)
    assert disk.open("next").size() == 0
    assert (tmp_path / "next").stat().st_blocks * 512 in (0, 1 << 20)  # 0: a file system that cannot


def test_more_space_than_the_disk_has_is_refused(tmp_path):
    disk = RealDisk(tmp_path)
    disk.preallocate("small", 4096)
    if not (tmp_path / "small").stat().st_blocks:
        pytest.skip("this file system sets no space aside")
    with pytest.raises(OSError, match="No space left") as caught:
        disk.preallocate("next", disk.usage().total * 2)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
