"""Strictly sequential writes; a full disk is undone, anything else is final."""

import errno
import threading

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreFull
from evenq.store.io.memory_disk import MemoryDisk, MemoryFile
from evenq.store.log import commit_log as commit_log_module
from evenq.store.log.commit_log import SPARE, CommitLog, LogRun, SyncFailed
from evenq.store.log.segment import path_of

SIZE = 4_096


def run(start, position, *parts, seals=False):
    made = LogRun(start, position)
    made.seals = seals
    for part in parts:
        made.add(part)
    return made


def content(disk, start):
    return bytes(disk.files[path_of(start)].data)


def test_a_group_may_fill_one_file_and_go_on_in_the_next():
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"ab", b"c")])
    commit_log.write([run(0, 3, b"d", seals=True), run(SIZE, 0, b"e")])
    assert content(disk, 0) == b"abcd" + bytes(SIZE - 4)
    assert content(disk, SIZE) == b"e"
    assert commit_log.fsyncs == 1, "a full file is synced when it is sealed"
    commit_log.close()
    again = CommitLog(disk, SIZE, SIZE + 1)
    again.write([run(SIZE, 1, b"f")])
    assert content(disk, SIZE) == b"ef"


def test_a_full_disk_leaves_the_log_as_it_was():
    disk = MemoryDisk(SIZE + 100)
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"kept")])
    with pytest.raises(StoreFull, match=r"raise memory_bytes_max.*sends resume by themselves"):
        commit_log.write([run(0, 4, b"x", seals=True), run(SIZE, 0, bytes(200))])
    assert disk.list("commitlog") == [f"{0:020d}"]
    assert content(disk, 0) == b"kept"
    commit_log.write([run(0, 4, b"more")])
    assert content(disk, 0) == b"keptmore"


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_any_other_error_is_final(number, monkeypatch):
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)

    def fails(*_):
        raise OSError(number, "broken")

    monkeypatch.setattr(MemoryFile, "pwrite", fails)
    with pytest.raises(OSError, match="broken"):
        commit_log.write([run(0, 0, b"x")])


def test_a_failed_sync_is_no_full_disk_even_if_it_says_so(monkeypatch):
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"x")])

    def fails(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(MemoryFile, "sync", fails)
    with pytest.raises(OSError, match="fsync failed: no space"):
        commit_log.sync()


def test_a_failed_sync_is_remembered_as_the_system_reports_it_once(monkeypatch):
    commit_log = CommitLog(MemoryDisk(), SIZE, 0)
    commit_log.write([run(0, 0, b"x")])
    failures = [OSError(errno.EIO, "lost pages")]

    def fails_once(_):
        if failures:
            raise failures.pop()

    monkeypatch.setattr(MemoryFile, "sync", fails_once)
    for _ in range(2):
        with pytest.raises(SyncFailed, match="fsync failed: lost pages") as raised:
            commit_log.sync()
        assert raised.value.errno == errno.EIO
    with pytest.raises(SyncFailed):
        commit_log.write([run(0, 1, b"seals the file", seals=True)])


def test_two_syncs_at_a_time_do_not_pass_if_the_system_reports_the_error_to_one(monkeypatch):
    commit_log = CommitLog(MemoryDisk(), SIZE, 0)
    commit_log.write([run(0, 0, b"x")])
    first_syncs, both_came, failures = threading.Event(), threading.Event(), [OSError(errno.EIO, "lost pages")]
    came, syncing, outcomes = [], [], []

    def comes(point):
        if point == "log.before_sync":
            came.append(point)
            if len(came) == 2:
                both_came.set()

    def fails_once(_):
        syncing.append(None)
        assert len(syncing) == 1, "a success beside a failing sync proves nothing"
        first_syncs.set()
        assert both_came.wait(60)
        syncing.pop()
        if failures:
            raise failures.pop()

    def sync():
        try:
            commit_log.sync()
        except (SyncFailed, AssertionError) as error:
            outcomes.append(type(error))
        else:
            outcomes.append(None)

    monkeypatch.setattr(commit_log_module, "passing", comes)
    monkeypatch.setattr(MemoryFile, "sync", fails_once)
    threads = [threading.Thread(target=sync) for _ in range(2)]
    threads[0].start()
    assert first_syncs.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert outcomes == [SyncFailed, SyncFailed]


def test_the_flush_thread_never_closes_a_file_that_it_may_still_sync(monkeypatch):
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"a")])
    opened, closed = disk.open, []
    monkeypatch.setattr(MemoryFile, "close", lambda file: closed.append(id(file)))

    def open_while_the_flush_thread_works(path, **how):
        commit_log.close_sealed()
        assert closed == [], "it is still the newest file"
        return opened(path, **how)

    monkeypatch.setattr(disk, "open", open_while_the_flush_thread_works)
    commit_log.write([run(0, 1, b"b", seals=True), run(SIZE, 0, b"c")])
    commit_log.close_sealed()
    assert len(closed) == 1


def test_half_a_file_wants_the_next_one_prepared_once_and_going_on_takes_it():
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, bytes(SIZE // 2))])
    assert not commit_log.wants_spare(SIZE // 2 - 1)
    assert commit_log.wants_spare(SIZE // 2)
    disk.open(SPARE, create=True).pwrite([b"of another process"], 0)
    commit_log.prepare(SIZE // 2)
    assert not commit_log.wants_spare(SIZE // 2)
    assert disk.files[SPARE].size() == 0
    commit_log.write([run(0, SIZE // 2, b"x", seals=True), run(SIZE, 0, b"next")])
    assert SPARE not in disk.files
    assert (disk.list("commitlog"), content(disk, SIZE)) == ([f"{0:020d}", f"{SIZE:020d}"], b"next")
    commit_log.prepare(SIZE + SIZE // 2)
    commit_log.close()
    assert SPARE not in disk.files, "a stopped store keeps no space aside"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_no_space_for_the_next_file_is_no_error_and_is_not_asked_again(number):
    disk = FaultDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    disk.faults_of["preallocate"] = number
    commit_log.prepare(SIZE // 2)
    assert SPARE not in disk.files
    assert not commit_log.wants_spare(SIZE // 2)
    commit_log.write([run(0, 0, b"x", seals=True), run(SIZE, 0, b"next")])
    assert content(disk, SIZE) == b"next"
    assert commit_log.wants_spare(SIZE + SIZE // 2)


def test_a_group_that_is_undone_does_not_lose_its_file_to_the_spare():
    disk = MemoryDisk(3 * SIZE)
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"kept")])
    commit_log.prepare(SIZE // 2)
    disk.bytes_max = SIZE + 100
    with pytest.raises(StoreFull):
        commit_log.write([run(0, 4, b"x", seals=True), run(SIZE, 0, bytes(200))])
    assert (content(disk, 0), disk.list("commitlog")) == (b"kept", [f"{0:020d}"])


# -- on the loop -----------------------------------------------------------------------------------------------------


def test_only_a_write_that_continues_the_open_file_is_done_on_the_loop():
    disk = MemoryDisk()
    commit_log = CommitLog(disk, SIZE, 0)
    assert not commit_log.write_more([run(0, 0, b"begins the file")])
    assert disk.list("commitlog") == []
    commit_log.write([run(0, 0, b"ab")])
    assert commit_log.write_more([run(0, 2, b"c", b"d")])
    assert not commit_log.write_more([run(0, 4, b"e", seals=True)])
    assert not commit_log.write_more([run(0, 4, b"e"), run(SIZE, 0, b"f")])
    assert not commit_log.write_more([run(SIZE, 0, b"f")])
    assert content(disk, 0) == b"abcd"
    assert commit_log.fsyncs == 0


def test_what_found_the_disk_full_on_the_loop_is_undone_or_written_by_the_thread():
    disk = MemoryDisk(SIZE)
    commit_log = CommitLog(disk, SIZE, 0)
    commit_log.write([run(0, 0, b"kept")])
    group = [run(0, 4, bytes(SIZE))]
    assert not commit_log.write_more(group)
    assert commit_log.fsyncs == 0, "an undo is durable, so it may take long"
    with pytest.raises(StoreFull):
        commit_log.write(group)
    assert content(disk, 0) == b"kept"
    assert not commit_log.write_more(group)
    disk.bytes_max = 2 * SIZE
    commit_log.write(group)
    assert content(disk, 0) == b"kept" + bytes(SIZE)


def test_any_other_error_on_the_loop_is_final(monkeypatch):
    commit_log = CommitLog(MemoryDisk(), SIZE, 0)
    commit_log.write([run(0, 0, b"kept")])

    def fails(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(MemoryFile, "pwrite", fails)
    with pytest.raises(OSError, match="broken"):
        commit_log.write_more([run(0, 4, b"x")])
