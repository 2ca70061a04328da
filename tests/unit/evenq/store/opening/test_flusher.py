"""What time brings: syncs, checkpoints, and a look at the space."""

import asyncio
import errno
import threading
from contextlib import asynccontextmanager

import pytest

from evenq.errors import StoreFull, StorePoisoned
from evenq.store import FlushMode
from evenq.store.io.disk import ReadOnlyDisk, RealDisk, RealFile, Usage
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import consume_queue
from evenq.store.opening import checkpoint


class SmallDisk(MemoryDisk):
    """A disk that blocks, as far as the watermark is concerned."""

    room = Usage(1_000, 1_000)

    def usage(self):
        return self.room


@asynccontextmanager
async def an_opened(open_store, disk=None, **options):
    opened = await open_store(disk or MemoryDisk(), flush=FlushMode.ASYNC, **options)
    try:
        yield opened
    finally:
        await opened.store.close()


async def test_in_async_mode_a_sync_comes_with_the_interval_and_only_if_there_is_something(open_store, message):
    async with an_opened(open_store, flush_interval_ms=500) as opened:
        store, clock = opened.store, opened.clock
        await store.append([message()])
        before = store.stats.fsyncs
        await clock.advance(499)
        assert (store.stats.fsyncs, store.stats.log_synced) == (before, 0)
        await clock.advance(2)
        assert store.stats.fsyncs == before + 1
        assert store.stats.log_synced == store.stats.log_end
        await clock.advance(2_000)
        assert store.stats.fsyncs == before + 1


async def test_a_checkpoint_comes_with_its_interval_and_with_many_entries(open_store, message):
    async with an_opened(open_store, checkpoint_entries=10, checkpoint_interval_ms=5000) as opened:
        store, clock = opened.store, opened.clock
        await store.append([message() for _ in range(9)])
        await clock.advance(100)
        assert store._state.unfiled == 9
        await store.append([message()])
        await clock.advance(1)
        assert store._state.unfiled == 0, "ten entries start one early"
        await store.append([message()])
        await clock.advance(5_600)
        assert store._state.unfiled == 0


async def test_messages_are_refused_and_taken_again_as_the_space_goes_and_comes(open_store):
    disk = SmallDisk()
    async with an_opened(open_store, disk=disk, flush_interval_ms=500) as opened:
        store, clock = opened.store, opened.clock
        for free, value in ((99, "90.1% full, messages are refused from 90.0%"), (101, "")):
            disk.room = Usage(1_000, free)
            await clock.advance(501)
            assert (value in str(store.full)) if value else store.full is None


async def test_a_small_volume_that_is_written_fast_is_looked_at_before_the_next_round(open_store, message):
    """A volume of 64 MiB was written to its last byte between two rounds."""
    disk = SmallDisk()
    disk.room = Usage(64 << 20, 9 << 20)

    async def sent(store, count):
        for _ in range(count):
            await store.append([message(bytes(4_000))])

    async with an_opened(open_store, disk=disk, flush_interval_ms=500) as opened:
        store, clock = opened.store, opened.clock
        await clock.advance(10)
        await sent(store, 300)
        disk.room = Usage(64 << 20, 6 << 20)
        await clock.advance(1)
        assert store.full is None, "1.2 MB do not make it look, as 2.6 MiB are left"
        with pytest.raises(StoreFull, match="messages are refused"):
            await sent(store, 50)


async def test_the_text_that_senders_read_names_no_folder(open_store):
    disk = SmallDisk()
    disk.room = Usage(1_000, 0)
    async with an_opened(open_store, disk=disk) as opened:
        assert "memory:" not in str(opened.store.full)
        assert "the broker's memory for messages is 100.0% full" in str(opened.store.full), (
            "a full disk is not looked for"
        )
        assert "raise memory_bytes_max" in str(opened.store.full)


async def test_a_checkpoint_that_is_cancelled_by_the_close_leaves_its_entries_to_the_last_one(
    open_store, message, tmp_path
):
    opened = await open_store(tmp_path)
    busy, free = threading.Event(), threading.Event()

    def hold():
        busy.set()
        assert free.wait(60)

    await opened.store.append([message(b"a"), message(b"b")])
    holding = asyncio.ensure_future(opened.store._flush_jobs.run(hold))
    await asyncio.to_thread(busy.wait, 10)
    checkpoint = asyncio.ensure_future(opened.store.checkpoint())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not opened.store._state.dirty
    checkpoint.cancel()  # as `close` does with the flusher's task
    await asyncio.gather(checkpoint, return_exceptions=True)
    free.set()
    await holding
    await opened.store.close()
    again = await open_store(tmp_path)
    assert await again.contents() == [b"a", b"b"]
    await again.store.close()


class FailingOnce:
    """Replaces a call that waits for the disk: the first one waits for `release`, then fails; the system reports an
    error once, so later ones succeed.
    """

    def __init__(self, call):
        self.began = threading.Event()
        self._may_fail = threading.Event()
        self._call = call

    def __call__(self, *arguments):
        if self.began.is_set():
            return self._call(*arguments)
        self.began.set()
        assert self._may_fail.wait(60)
        raise OSError(errno.EIO, "lost pages")

    async def begun(self):
        await asyncio.to_thread(self.began.wait, 60)
        assert self.began.is_set()

    def release(self):
        self._may_fail.set()


async def closed_with_a_failure(opened, failing, tmp_path):
    """Closes the store while a call of the flush thread fails that nothing waits for any more."""
    failures = []
    opened.store.on_failure = failures.append
    closing = asyncio.ensure_future(opened.store.close())
    while opened.store._flusher._task is not None:  # noqa: ASYNC110  # it sets no event
        await asyncio.sleep(0)
    failing.release()
    await closing
    assert not checkpoint.load(ReadOnlyDisk(tmp_path)).clean, "it would vouch for what the disk lost"
    assert isinstance(opened.store.failure, StorePoisoned)
    assert failures == [opened.store.failure]
    assert "lost pages" in str(opened.store.failure)


async def test_a_sync_that_fails_after_the_close_cancelled_its_caller_leaves_no_clean_stop(
    open_store, message, tmp_path, monkeypatch
):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, flush_interval_ms=500)
    await opened.store.append([message()])
    failing = FailingOnce(RealFile.sync)
    monkeypatch.setattr(RealFile, "sync", lambda file: failing(file))  # noqa: PLW0108  # a method
    await opened.clock.advance(501)
    await failing.begun()
    await closed_with_a_failure(opened, failing, tmp_path)


@pytest.mark.parametrize("folder", [consume_queue.FOLDER, ""], ids=["queues", "checkpoint"])
async def test_a_checkpoint_that_fails_after_its_caller_is_gone_leaves_no_clean_stop(
    open_store, message, tmp_path, monkeypatch, folder
):
    opened = await open_store(tmp_path)
    await opened.store.append([message()])
    sync_folder = RealDisk.sync_folder
    failing = FailingOnce(sync_folder)
    monkeypatch.setattr(
        RealDisk, "sync_folder", lambda disk, path: (failing if path == folder else sync_folder)(disk, path)
    )
    task = asyncio.ensure_future(opened.store.checkpoint())
    await failing.begun()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await closed_with_a_failure(opened, failing, tmp_path)


async def test_a_snapshot_that_fails_after_its_caller_is_gone_leaves_no_clean_stop(
    open_store, message, tmp_path, monkeypatch
):
    """Its name may be lost, and the log before it must not be deleted for it."""
    opened = await open_store(tmp_path)
    await opened.store.append([message()])
    sync_folder = RealDisk.sync_folder
    failing = FailingOnce(sync_folder)
    monkeypatch.setattr(
        RealDisk, "sync_folder", lambda disk, path: (failing if path == "snapshot" else sync_folder)(disk, path)
    )
    task = asyncio.ensure_future(opened.store.save_snapshot(b"state"))
    await failing.begun()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await closed_with_a_failure(opened, failing, tmp_path)
