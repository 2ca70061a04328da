"""What is written waits for its commit: no sender is answered, nothing is shown, and no derived file tells of it before."""

from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import asynccontextmanager

import pytest
from evenq_proofs.fault_disk import BLOCK_BYTES, FaultDisk, image_of

from evenq.errors import (
    Error,
    HaNotAvailable,
    PersistenceTimeout,
    PreconditionFailed,
    StoreError,
    StoreFull,
    StorePoisoned,
    TooManyRequests,
)
from evenq.store import AppendBlock, FlushMode, TimerAppend
from evenq.store.io.disk import RealDisk
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import snapshot
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import KINDS, frame_at
from evenq.store.opening import checkpoint

HOUR = 3_600_000


def timer(due_ms, head=b"later"):
    return TimerAppend(1, 5, 0, due_ms=due_ms, kind=1, born_ms=0, head=head, system=b"")


def block(*heads, topic_id=1, queue_id=0):
    return AppendBlock(
        topic_id, b"".join(heads), 0, queue_ids=[queue_id] * len(heads), tag_hashes=[0] * len(heads),
        born_ms=[0] * len(heads), head_bytes=[*map(len, heads)], system_bytes=[0] * len(heads),
    )  # fmt: skip


async def until(state):
    """Wait for what threads bring about; nothing else moves the clock."""
    async with asyncio.timeout(60):
        while not state():  # noqa: ASYNC110  # it is the store's own counters that are looked at
            await asyncio.sleep(0)


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0)


async def written(opened, append):
    """What `append` appends is in the log, and synced if each group is; its future."""
    future = append()
    end, appender = opened.store._appender.assigned_end, opened.store._appender
    await until(lambda: opened.store.stats.written_end >= end and appender._busy is None)
    return future


@asynccontextmanager
async def leading(open_store, where=None, **options):
    opened = await open_store(FaultDisk() if where is None else where, **{"replicated": True, **options})
    try:
        yield opened
        opened.store._state.check()
    finally:
        await opened.store.close()


# -- waiting for the commit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_what_is_written_is_neither_answered_nor_shown_before_its_commit(
    open_store, message, tmp_path, engine, flush
):
    async with leading(open_store, tmp_path if engine == "folder" else MemoryDisk(), flush=flush) as opened:
        store = opened.store
        later = timer(1 << 50)
        calls = [
            store.append([message(b"a"), message(b"b", queue_id=1)], state=b"with them", timers=[later]),
            store.append_state(b"alone"),
        ]
        end = store._appender.assigned_end
        await until(lambda: store.stats.written_end == end and store._appender._busy is None)
        await turns()
        assert not any(call.done() for call in calls)
        assert (store.queue_range(1, 0), store.queue_range(1, 1)) == ((0, 0), (0, 0))
        assert [store.placed_end(1, queue_id) for queue_id in (0, 1, 2)] == [1, 1, 0]
        assert store.read_hot(1, 0, 0, count_max=9, bytes_max=999).messages == []
        assert (await store.read(1, 0, 0, count_max=9, bytes_max=999)).messages == []
        assert await store.read_at(1, 0, [0]) == []
        assert await store.read_timers([later.log_offset]) == [None]
        assert await store.cancel_timers([later.log_offset]) == []
        assert (store.stats.log_end, store.stats.messages, store.stats.states) == (0, 0, 0)
        assert (store.stats.cache_bytes, store.stats.waiting, store.timers.stats.pending) == (0, 5, 0)
        assert opened.dispatched == []
        store.commit(end)
        assert store.queue_range(1, 0) == (0, 1)
        await asyncio.gather(*calls)
        assert opened.dispatched == [[(1, 0, 1), (1, 1, 1)]]
        assert await opened.contents() == [b"a"]
        assert [one.log_offset for one in await store.read_timers([later.log_offset])] == [later.log_offset]
        assert (store.stats.log_end, store.stats.messages, store.stats.waiting) == (end, 2, 0)
        assert store.timers.stats.pending == 1
        assert store.stats.cache_bytes > 0


@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_the_next_group_is_written_while_the_one_before_waits(open_store, message, tmp_path, engine):
    async with leading(open_store, tmp_path if engine == "folder" else None) as opened:
        store, ends = opened.store, []
        store.on_written = ends.append
        calls = [await written(opened, lambda: store.append([message()])) for _ in range(5)]
        assert len(ends) == 5
        assert ends == sorted(set(ends))
        assert ends[-1] == store.stats.written_end
        assert not any(call.done() for call in calls)
        store.commit(ends[2])
        assert [call.done() for call in calls] == [True, True, True, False, False]
        assert (store.queue_range(1, 0), store.stats.log_end) == ((0, 3), ends[2])
        store.commit(ends[4])
        await asyncio.gather(*calls)


async def test_the_log_reaches_the_file_before_the_commit_in_both_groups(open_store, message, tmp_path):
    async with leading(open_store, tmp_path) as opened:
        for head in (b"a" * 50, b"b" * 50):
            await written(opened, lambda: opened.store.append([message(head)]))  # noqa: B023  # awaited at once
            assert head in (tmp_path / "commitlog" / ("0" * 20)).read_bytes()
        assert opened.store.stats.log_end == 0


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_what_was_written_just_now_is_given_out_as_it_lies_in_the_files(open_store, message, tmp_path, flush):
    """Groups of all kinds, and over the ends of files; what is in two files is read from them."""
    async with leading(open_store, tmp_path, flush=flush, segment_bytes=8192) as opened:
        store, size = opened.store, 8_192
        pieces = LogPieces(RealDisk(tmp_path), size)
        places, kept = [store.stats.written_end], []

        def heard(end):
            given = store.recent(places[-1], end)
            kept.append(given is not None)
            assert given in {None, pieces.read(places[-1], end, 1 << 20)}
            places.append(end)
            if len(places) > 3 and all(kept[-3:]):
                assert store.recent(places[-4], end) == pieces.read(places[-4], end, 1 << 20)
            store.commit(end)

        store.on_written = heard
        for number in range(60):
            calls = [store.append([message(bytes([number]) * 400), message(b"more")], state=b"with them")]
            calls += [store.append_state(b"alone"), store.append([], timers=[timer(1 << 50)], state=b"x")]
            await asyncio.gather(*calls)
        assert places[-1] > 4 * size
        assert kept.count(True) > 30
        assert False in kept, "a group in two files"
        pieces.close()


async def test_a_commit_may_end_anywhere_never_goes_back_and_never_runs_ahead(open_store, message):
    async with leading(open_store) as opened:
        store = opened.store
        calls = [await written(opened, lambda: store.append([message(), message()])) for _ in range(3)]
        end = store.stats.written_end
        one = end // 3
        for offset, shown in ((0, 0), (one - 1, 0), (one, 2), (one + 5, 2), (1, 2), (2 * one + 1, 4)):
            store.commit(offset)
            assert store.queue_range(1, 0) == (0, shown)
        with pytest.raises(AssertionError, match=f"committed up to {end + 1}, but this log is written up to {end}"):
            store.commit(end + 1)
        assert [call.done() for call in calls] == [True, True, False]
        store.commit(end)
        assert store.queue_range(1, 0) == (0, 6)


@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_the_only_copy_in_sync_commits_while_it_hears_of_what_is_written(open_store, message, tmp_path, engine):
    async with leading(open_store, tmp_path if engine == "folder" else None) as opened:
        store = opened.store
        store.on_written = store.commit
        for number in range(20):
            await store.append([message(b"%d" % number)])
        assert await opened.contents() == [b"%d" % number for number in range(20)]


async def test_what_waits_for_its_commit_counts_for_the_bounds(open_store, message):
    async with leading(open_store, append_queue_max=3) as opened:
        store = opened.store
        for _ in range(3):
            await written(opened, lambda: store.append([message()]))
        with pytest.raises(TooManyRequests, match=r"3 records of \d+ bytes wait to be committed, the limits are 3 rec"):
            store.append([message()])
        store.commit(store.stats.written_end)
        store.append([message()])
    async with leading(open_store, append_bytes_max=1_000) as opened:
        store = opened.store
        await written(opened, lambda: store.append([message(bytes(600))]))
        await written(opened, lambda: store.append([message(bytes(600))]))
        with pytest.raises(TooManyRequests, match="1000 bytes"):
            store.append([message()])
        store.commit(store.stats.written_end // 2)
        store.append([message()])


async def test_bytes_that_are_written_are_not_kept_for_the_commit(open_store, message):
    async with leading(open_store) as opened:
        await written(opened, lambda: opened.store.append([message(bytes(3_000))]))
        (batch,) = opened.store._appender._uncommitted
        assert (batch.runs, batch.data) == ([], b"")
        assert batch.bytes > 3_000


# -- a full disk ------------------------------------------------------------------------------------------------------


async def test_a_full_disk_takes_back_only_what_is_behind_the_groups_that_wait(open_store, message):
    async with leading(open_store) as opened:
        store, disk = opened.store, opened.store._disk
        first = await written(opened, lambda: store.append([message(b"a"), message(b"x", queue_id=1)]))
        second = await written(opened, lambda: store.append([message(b"b")]))
        end = store.stats.written_end
        disk.faults_of["write"] = errno.ENOSPC
        calls = [store.append([message(b"lost"), message(b"lost", queue_id=2)])]
        for _ in range(3):  # the first is with the writer, these two gather behind it
            await asyncio.sleep(0)
            if store._appender._busy is not None:
                calls.append(store.append([message(b"lost too", queue_id=1)]))
        for call in calls:
            with pytest.raises(StoreFull):
                await call
        assert len(calls) > 1
        assert (store.stats.written_end, store._appender.assigned_end) == (end, end)
        assert not first.done()
        assert not second.done()
        disk.faults_of.clear()
        store._state.set_full(None)
        third = await written(opened, lambda: store.append([message(b"c"), message(b"y", queue_id=1)]))
        store.commit(store.stats.written_end)
        await asyncio.gather(first, second, third)
        assert await opened.contents() == [b"a", b"b", b"c"]
        assert await opened.contents(1, 1) == [b"x", b"y"]
        assert store.queue_range(1, 2) == (0, 0)
        await store.checkpoint()
        again = await open_store(image_of(disk))
        assert await again.contents() == [b"a", b"b", b"c"]
        assert await again.contents(1, 1) == [b"x", b"y"]
        await again.store.close()


async def test_blocks_that_wait_keep_their_places_when_the_disk_is_full_behind_them(open_store, message):
    async with leading(open_store) as opened:
        store, disk = opened.store, opened.store._disk
        first = await written(opened, lambda: store.append([message(b"a")]))
        second = await written(opened, lambda: store.append([], blocks=[block(b"b", b"c")], state=b"done"))
        disk.faults_of["write"] = errno.ENOSPC
        with pytest.raises(StoreFull):
            await store.append([message(b"lost")])
        disk.faults_of.clear()
        store._state.set_full(None)
        store.commit(store.stats.written_end)
        await asyncio.gather(first, second)
        last = await written(opened, lambda: store.append([message(b"d")]))
        store.commit(store.stats.written_end)
        await last
        assert await opened.contents() == [b"a", b"b", b"c", b"d"]


# -- derived files ----------------------------------------------------------------------------------------------------


async def test_a_checkpoint_ends_with_what_is_committed_and_is_not_clean(open_store, message):
    async with leading(open_store) as opened:
        store, disk = opened.store, opened.store._disk
        await written(opened, lambda: store.append([message(b"a")]))
        store.commit(store.stats.written_end)
        end = store.stats.log_end
        await written(opened, lambda: store.append([message(b"b"), message(b"new", queue_id=7)]))
        await store.checkpoint()
        saved = checkpoint.load(disk)
        assert (saved.log_offset, saved.clean, saved.queues) == (end, False, {(1, 0): (0, 1)})
        assert store.stats.log_synced == store.stats.written_end > end
        store._state.check()
        assert disk.list("consumequeue/1") == ["0"]
        await store.close()
        assert checkpoint.load(disk).log_offset == end


async def test_a_snapshot_waits_until_all_that_it_tells_of_is_committed(open_store, message):
    async with leading(open_store) as opened:
        store, disk = opened.store, opened.store._disk
        await written(opened, lambda: store.append([message(b"a")], timers=[timer(1 << 50)]))
        store.commit(store.stats.written_end)
        end = store.stats.log_end
        future = await written(opened, lambda: store.append([message(b"b")], state=b"s", timers=[timer(1 << 50)]))
        saving = asyncio.ensure_future(store.save_snapshot(b"tells of s"))
        await turns()
        assert disk.list("snapshot") == []
        store.commit(store.stats.written_end)
        await saving
        saved = snapshot.load(disk, log_start=0)
        assert (saved.log_offset, saved.queues) == (end, {(1, 0): (0, 1)})
        again = await open_store(image_of(disk))
        assert (again.store.timers.stats.pending, again.snapshots, again.states) == (2, [b"tells of s"], [b"s"])
        await again.store.close()
        await future


async def test_nothing_is_derived_from_a_recovered_end_before_a_commit_behind_it(open_store, message):
    """Another leader may cut it off."""
    disk, options = FaultDisk(), {"replicated": True, "keys_of": lambda _, system: [system], **RETENTION}
    opened = await open_store(disk, **options)
    store = opened.store
    await written(opened, lambda: store.append([message(b"committed")], timers=[timer(1 << 50)]))
    store.commit(store.stats.written_end)
    await store.checkpoint()
    end = store.stats.log_end
    for _ in range(60):
        await written(opened, lambda: store.append([message(bytes(200))], state=b"s"))
    disk = image_of(disk)
    await store.abandon(PersistenceTimeout("deposed"))

    opened = await open_store(disk, **options, epoch=2, clock=opened.clock)
    store = opened.store
    assert store.queue_range(1, 0) == (0, 61)
    opened.clock.jump_wall(100 * HOUR)
    saving = asyncio.ensure_future(store.save_snapshot(b"of all"))
    await store.checkpoint()
    before = store._appender.assigned_end
    async with asyncio.timeout(60):
        await store.clean()
    await opened.clock.advance(1_300_000)
    assert store._appender.assigned_end == before, "no timer moves"
    assert store.stats.index_end > end
    saved = checkpoint.load(disk)
    assert (saved.log_offset, saved.clean) == (end, False)
    assert [disk.list(folder) for folder in ("snapshot", "index")] == [[], []]
    assert disk.list("commitlog")[0] == "0" * 20
    store._state.check()
    assert not saving.done()
    store.commit(store.stats.written_end - 1)
    await turns()
    assert not saving.done()

    store.commit(store.stats.written_end)
    await saving
    assert len(await store.find(1, b"sys", count_max=99)) == 61
    await opened.clock.advance(6_000)
    assert disk.list("index")
    assert checkpoint.load(disk).log_offset == store.stats.log_end > end
    assert disk.list("snapshot")
    store.on_written = store.commit
    await store.clean()
    assert disk.list("commitlog")[0] != "0" * 20
    await store.close()


RETENTION = {"retention_hour": -1, "retention_ms": 10 * HOUR, "snapshot_of": lambda: b"state"}


async def test_no_file_of_the_log_goes_before_a_commit_behind_the_recovered_end(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, replicated=True, **RETENTION)
    store = opened.store
    store.on_written = store.commit
    await store.append([message(b"committed")], timers=[timer(1 << 50)])
    await store.checkpoint()
    store.on_written = lambda _: None
    for _ in range(60):
        await written(opened, lambda: store.append_state(bytes(200)))
    await store.abandon(PersistenceTimeout("deposed"))

    opened = await open_store(disk, replicated=True, epoch=2, clock=opened.clock, **RETENTION)
    store, before = opened.store, opened.store._appender.assigned_end
    opened.clock.jump_wall(100 * HOUR)
    async with asyncio.timeout(60):
        await store.clean()
    assert store._appender.assigned_end == before, "no timer moves"
    store.on_written = store.commit
    store.commit(before)
    await store.clean()
    assert disk.list("commitlog")[0] != "0" * 20
    await store.close()


async def test_an_open_takes_the_mark_of_a_clean_stop_away(open_store, message):
    """Else a torn write behind it would look like damage."""
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append([message(b"a")])
    await opened.store.close()
    assert checkpoint.load(disk).clean
    opened = await open_store(disk, replicated=True, epoch=2)
    await written(opened, lambda: opened.store.append([message(b"torn" * 100)]))
    image = image_of(disk)
    await opened.store.close()
    assert not checkpoint.load(image).clean
    del image.files["commitlog/" + "0" * 20].data[-100:]
    again = await open_store(image)
    assert await again.contents() == [b"a"]
    await again.store.close()


async def test_a_timer_fires_when_it_is_committed_and_its_message_waits_too(open_store):
    async with leading(open_store) as opened:
        store, clock = opened.store, opened.clock
        store.fire_timers()
        await written(opened, lambda: store.append([], timers=[timer(clock.now_ms() + 100)]))
        end = store.stats.written_end
        await clock.advance(1_000)
        assert (store.stats.written_end, store.timers.stats.fired) == (end, 0)
        store.commit(end)
        await clock.advance(300)
        assert store.stats.written_end > end
        assert (store.timers.stats.fired, store.queue_range(1, 5)) == (0, (0, 0))
        store.commit(store.stats.written_end)
        await clock.advance(1)
        assert (store.timers.stats.fired, store.queue_range(1, 5)) == (1, (0, 1))


async def test_a_message_is_found_by_key_when_it_is_committed(open_store, message):
    async with leading(open_store, keys_of=lambda _, system: [system]) as opened:
        store = opened.store
        await written(opened, lambda: store.append([message(b"a", system=b"key")]))
        assert await store.find(1, b"key") == []
        store.commit(store.stats.written_end)
        assert [found.head for found in await store.find(1, b"key")] == [b"a"]


# -- syncs ------------------------------------------------------------------------------------------------------------


async def test_the_owner_hears_of_each_sync_behind_what_was_written(open_store, message, tmp_path):
    async with leading(open_store, tmp_path, flush=FlushMode.SYNC) as opened:
        store, heard = opened.store, []
        store.on_written = lambda end: heard.append(("written", end))
        store.on_synced = lambda end: heard.append(("synced", end))
        for _ in range(3):
            await written(opened, lambda: store.append([message()]))
        one = store.stats.written_end // 3
        assert heard == [(what, number * one) for number in (1, 2, 3) for what in ("written", "synced")]


async def test_copies_hear_of_a_group_before_its_sync_and_their_commit_waits_for_it(open_store, message, tmp_path):
    async with leading(open_store, tmp_path, flush=FlushMode.SYNC) as opened:
        store, heard, release = opened.store, [], threading.Event()
        store.on_written = lambda end: heard.append(("written", end))
        store.on_synced = lambda end: heard.append(("synced", end))
        sync, store._log.sync = store._log.sync, lambda: (release.wait(60), sync())
        try:
            call = store.append([message(b"a")])
            await until(lambda: heard)
            end = store.stats.written_end
            assert heard == [("written", end)]
            store.commit(end)  # the copies were faster
            await turns()
            assert not call.done()
            assert store.queue_range(1, 0) == (0, 0)
        finally:
            release.set()
        await call
        assert heard == [("written", end), ("synced", end)]
        assert store.queue_range(1, 0) == (0, 1)


async def test_in_async_mode_the_interval_and_the_size_bring_what_is_uncommitted_to_disk(open_store, message):
    async with leading(open_store, flush=FlushMode.ASYNC, flush_bytes=2000) as opened:
        store, synced = opened.store, []
        store.on_synced = synced.append
        await written(opened, lambda: store.append([message()]))
        assert synced == []
        await opened.clock.advance(501)
        assert synced == [store.stats.written_end]
        assert (store.stats.log_end, store.stats.log_synced) == (0, store.stats.written_end)
        await written(opened, lambda: store.append([message(bytes(2_500))]))
        await opened.clock.advance(1)
        assert synced[1:] == [store.stats.written_end]


async def test_what_is_written_can_be_synced_without_a_commit(open_store, message, tmp_path):
    async with leading(open_store, tmp_path, flush=FlushMode.ASYNC) as opened:
        store, synced = opened.store, []
        store.on_synced = synced.append
        assert await store.sync_written() == 0
        future = await written(opened, lambda: store.append([message()]))
        end = store.stats.written_end
        assert await store.sync_written() == end
        assert synced == [end] == [store.stats.log_synced]
        assert not future.done()
        flushed = asyncio.ensure_future(store.flush())
        await turns()
        assert not flushed.done()
        store.commit(end)
        await flushed


async def test_a_snapshot_that_waits_for_a_commit_does_not_hold_up_the_sync_that_the_commit_waits_for(
    open_store, message
):
    async with leading(
        open_store,
        flush=FlushMode.ASYNC,
        snapshot_interval_ms=1000,
        flush_interval_ms=500,
        snapshot_of=lambda: b"state",
    ) as opened:
        store = opened.store

        def commit(end):
            store.commit(end)
            if len(futures) < 2:  # the snapshot of this round is to tell of it, and it is not on disk
                futures.append(store.append([message()]))

        store.on_synced = commit
        await opened.clock.advance(900)
        futures = [await written(opened, lambda: store.append([message()]))]
        await opened.clock.advance(200)
        assert (len(futures), store.stats.snapshots) == (2, 0)
        await opened.clock.advance(2_000)
        assert futures[1].done()
        assert store.stats.snapshots >= 1


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_what_is_refused_is_not_written_whatever_it_is(open_store, message):
    async with leading(open_store) as opened:
        store = opened.store
        waiting = await written(opened, lambda: store.append([message(b"before")]))
        end = store.stats.written_end
        reason = HaNotAvailable("1 copy is in sync, 2 are needed")
        store.refuse(reason)
        appends = [
            lambda: store.append([message()]),
            lambda: store.append_state(b"s"),
            lambda: store.append([], timers=[timer(5)]),
            lambda: store.append([], blocks=[block(b"a")], state=b"s"),
            lambda: store.append([], ended=[0]),
        ]
        for append in appends:
            with pytest.raises(HaNotAvailable, match="1 copy is in sync, 2 are needed") as raised:
                append()
            assert raised.value is not reason
        assert store.stats.refused == len(appends)
        await turns()
        assert (store._appender.assigned_end, store.stats.written_end) == (end, end)
        store.commit(end)
        await waiting
        store.refuse(None)
        store.on_written = store.commit
        for append in appends[:-1]:
            await append()
        assert store.failure is None


async def test_timers_wait_while_all_is_refused_and_fire_at_once_afterwards(open_store, caplog):
    async with leading(open_store) as opened:
        store, clock = opened.store, opened.clock
        store.on_written = store.commit
        await store.append([], timers=[timer(clock.now_ms() + 100), timer(clock.now_ms() + 400_000)])
        store.fire_timers()
        store.refuse(PreconditionFailed("this broker hands over"))
        await clock.advance(300_000)
        stats = store.timers.stats
        assert (stats.fired, stats.aside, stats.retries, stats.pending) == (0, 0, 0, 2)
        store.refuse(None)
        await clock.advance(300)
        assert (store.timers.stats.fired, store.queue_range(1, 5)) == (1, (0, 1))
        assert "not fired" not in caplog.text


@pytest.mark.parametrize("replicated", [True, False])
async def test_a_refusal_does_not_end_the_duties(open_store, message, replicated, caplog):
    disk = FaultDisk()
    opened = await open_store(disk, replicated=replicated, **RETENTION)
    store = opened.store
    store.on_written = store.commit
    await store.append([], timers=[timer(1 << 50)])
    for number in range(40):
        await store.append([message(b"%d" % number * 100)])
    opened.clock.jump_wall(100 * HOUR)
    store.refuse(PreconditionFailed("this broker hands over"))
    await opened.clock.advance(120_000)  # the timer cannot move, so its file stays
    assert disk.list("commitlog")[0] == "0" * 20
    store.refuse(None)
    await opened.clock.advance(120_000)
    assert disk.list("commitlog")[0] != "0" * 20
    assert store.timers.stats.pending == 1
    await store.close()
    assert "background work of the store failed, trying again later: this broker hands over" in caplog.text


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_an_abandoned_store_tells_all_who_wait_at_once_and_keeps_what_is_written(
    open_store, message, tmp_path, engine
):
    disk = tmp_path if engine == "folder" else FaultDisk()
    opened = await open_store(disk, replicated=True, snapshot_of=lambda: b"state")
    store, failures = opened.store, []
    store.on_failure = failures.append
    await written(opened, lambda: store.append([message(b"a")]))
    store.commit(store.stats.written_end)
    calls = [await written(opened, lambda: store.append([message(b"b")])) for _ in range(2)]
    release, write = threading.Event(), store._log.write
    if engine == "folder":
        store._log.write = lambda runs: (release.wait(60), write(runs))
    calls.append(store.append([message(b"c")]))  # the writer has it, and finishes it
    await until(lambda: store._appender._busy is not None)
    settled = asyncio.ensure_future(store.flush())
    saving = asyncio.ensure_future(store.save_snapshot(b"of all"))
    await asyncio.sleep(0)
    if engine == "folder":
        calls.append(store.append([message(b"gathers behind it, and is gone")]))
        threading.Timer(0.3, release.set).start()
    deposed = PersistenceTimeout("broker 2 leads epoch 8")
    abandoning = asyncio.ensure_future(store.abandon(deposed))
    await asyncio.sleep(0)  # its first step
    errors = [call.exception() for call in calls]
    assert {(type(error), str(error)) for error in errors} == {(PersistenceTimeout, str(deposed))}
    assert len({*map(id, errors), id(deposed)}) == len(errors) + 1
    for append in (lambda: store.append([message()]), lambda: store.append_state(b"s")):
        with pytest.raises(PersistenceTimeout, match="broker 2 leads epoch 8"):
            append()
    await abandoning
    for waiting in (settled, saving):
        with pytest.raises(PersistenceTimeout, match="broker 2 leads epoch 8"):
            await waiting
    store.commit(store.stats.written_end)
    assert store.queue_range(1, 0) == (0, 1)
    assert failures == []
    await store.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evenq-store")]
    again = await open_store(disk)
    assert await again.contents() == [b"a", b"b", b"b", b"c"]
    assert again.snapshots == []
    await again.store.close()


async def test_only_who_waited_when_the_log_was_given_up_does_not_know_whether_it_is_kept(open_store, message):
    async with leading(open_store) as opened:
        store = opened.store
        waits = await written(opened, lambda: store.append([message(b"a")]))
        end = store._appender.assigned_end
        store.give_up(PersistenceTimeout("deposed: kept or not"), later=HaNotAvailable("deposed: not taken"))
        assert type(waits.exception()) is PersistenceTimeout
        for append in (
            lambda: store.append([message(b"b")]),
            lambda: store.append([message(b"b")], timers=[timer(1)]),
            lambda: store.append_state(b"s"),
        ):
            with pytest.raises(HaNotAvailable, match="not taken"):
                append()
        assert store._appender.assigned_end == end


async def test_a_snapshot_whose_log_is_being_synced_is_not_written_any_more(open_store, message, tmp_path):
    opened = await open_store(tmp_path, replicated=True, flush=FlushMode.ASYNC)
    store, begun, release, sync = opened.store, threading.Event(), threading.Event(), opened.store._log.sync
    await written(opened, lambda: store.append([message()]))
    store.commit(store.stats.written_end)
    store._log.sync = lambda: (begun.set(), release.wait(60), sync())
    saving = asyncio.ensure_future(store.save_snapshot(b"state"))
    await until(begun.is_set)
    threading.Timer(0.3, release.set).start()
    await store.abandon(PersistenceTimeout("deposed"))
    with pytest.raises(PersistenceTimeout, match="deposed"):
        await saving
    assert store._disk.list("snapshot") == []


async def test_an_abandoned_store_marks_no_clean_stop_and_leaves_its_checkpoint(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, replicated=True)
    opened.store.on_written = opened.store.commit
    await opened.store.append([message()])
    await opened.store.checkpoint()
    await opened.store.append([message()])
    before = checkpoint.load(disk)
    await opened.store.abandon(PersistenceTimeout("deposed"))
    assert checkpoint.load(disk) == before
    assert not before.clean


async def test_timers_that_were_being_fired_are_not_to_blame_for_the_end(open_store, caplog):
    opened = await open_store(FaultDisk(), replicated=True)
    store, clock = opened.store, opened.clock
    store.fire_timers()
    await written(opened, lambda: store.append([], timers=[timer(clock.now_ms())]))
    store.commit(store.stats.written_end)
    await clock.advance(300)
    assert store.stats.written_end > store.stats.log_end
    await store.abandon(PreconditionFailed("broker 2 leads epoch 8"))
    assert store.timers.stats.aside == 0
    assert "not fired" not in caplog.text


async def test_a_store_that_was_abandoned_while_it_closed_stops_waiting(open_store, message):
    opened = await open_store(FaultDisk(), replicated=True)
    call = await written(opened, lambda: opened.store.append([message()]))
    closing = asyncio.ensure_future(opened.store.close(close_wait_ms=60_000))
    await turns()
    assert not closing.done()
    await opened.store.abandon(PersistenceTimeout("broker 2 leads epoch 8"))
    await closing
    assert str(call.exception()) == "broker 2 leads epoch 8"


@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_a_close_does_not_wait_for_commits_unless_it_is_told_so(open_store, message, tmp_path, engine):
    disk = tmp_path if engine == "folder" else FaultDisk()
    opened = await open_store(disk, replicated=True)
    store = opened.store
    await written(opened, lambda: store.append([message(b"a")]))
    store.commit(store.stats.written_end)
    call = await written(opened, lambda: store.append([message(b"b")]))
    settled = asyncio.ensure_future(store.flush())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await store.close()
    for waiting in (call, settled):
        with pytest.raises(PersistenceTimeout, match="may or may not be stored"):
            await waiting
    saved = checkpoint.load(store._disk)
    assert (saved.log_offset, saved.clean) == (store.stats.log_end, False)
    again = await open_store(disk)
    assert await again.contents() == [b"a", b"b"]
    await again.store.close()


async def test_nobody_hears_of_a_group_that_is_written_while_the_store_closes(open_store, message, tmp_path):
    opened = await open_store(tmp_path, replicated=True)
    store, heard, release, write = opened.store, [], threading.Event(), opened.store._log.write
    store.on_written = heard.append
    store._log.write = lambda runs: (release.wait(60), write(runs))
    call = store.append([message(b"a")])
    await until(lambda: store._appender._busy is not None)
    threading.Timer(0.3, release.set).start()
    await store.close()
    await turns()
    assert heard == []
    with pytest.raises(PersistenceTimeout):
        await call
    again = await open_store(tmp_path)
    assert await again.contents() == [b"a"]
    await again.store.close()


def test_a_close_waits_as_long_as_it_is_told_and_marks_a_clean_stop_if_all_is_committed(open_store, message):
    async def story(commits):
        disk = FaultDisk()
        opened = await open_store(disk, replicated=True)
        store, clock = opened.store, opened.clock
        call = await written(opened, lambda: store.append([message()]))
        closing = asyncio.ensure_future(store.close(close_wait_ms=5_000))
        await clock.advance(4_999)
        assert not closing.done()
        if commits:
            store.commit(store.stats.written_end)
        await clock.advance(1)
        await closing
        assert (call.exception() is None) == commits
        saved = checkpoint.load(disk)
        assert (saved is not None and saved.clean) == commits

    asyncio.run(story(commits=True))
    asyncio.run(story(commits=False))


async def test_a_broken_disk_fails_those_who_wait_for_a_commit_too(open_store, message):
    async with leading(open_store) as opened:
        store = opened.store
        call = await written(opened, lambda: store.append([message()]))
        store._state.poison("the disk is broken")
        with pytest.raises(StorePoisoned, match="the disk is broken"):
            await call
        store.commit(store.stats.written_end)
        assert store.queue_range(1, 0) == (0, 0)


async def test_a_store_with_one_copy_waits_for_nobody(open_store, message):
    async with leading(open_store, replicated=False) as opened:
        store, heard = opened.store, []
        store.on_written = heard.append
        await store.append([message()])
        assert store.stats.log_end == store.stats.written_end > 0
        assert heard == []
        store.commit(store.stats.written_end)
        with pytest.raises(AssertionError):
            store.commit(store.stats.written_end + 1)


# -- epochs -----------------------------------------------------------------------------------------------------------


def frames_of(disk):
    found = []
    for name in disk.list("commitlog"):
        data, start, position = bytes(disk.files[f"commitlog/{name}"].data), int(name), 0
        while (frame := frame_at(data, position, start + position)) is not None:
            found.append(frame)
            position += frame.size
    return found


async def test_every_record_carries_the_epoch_it_was_appended_in_and_a_log_of_several_opens(open_store, message):
    disk, stored = FaultDisk(), 0
    for epoch in (1, 7, (1 << 40) + 1):
        opened = await open_store(disk, replicated=True, epoch=epoch)
        store = opened.store
        assert store.queue_range(1, 0) == (0, stored)
        store.on_written = store.commit
        begin = store.stats.log_end
        for _ in range(4):  # over the end of a file, so that there is padding
            later = timer(1 << 50)
            await store.append([message(bytes(700)), message(bytes(700))], state=b"s", timers=[later])
        await store.append([], ended=[later.log_offset], blocks=[block(b"in a block")])
        stored += 9
        frames = [frame for frame in frames_of(disk) if frame.log_offset >= begin]
        assert {frame.kind for frame in frames} == set(KINDS)
        assert {frame.epoch for frame in frames} == {epoch}
        if epoch == 7:
            disk = image_of(disk)
            await store.abandon(PersistenceTimeout("deposed"))
        else:
            await store.close()
    assert [frame.epoch for frame in frames_of(disk)] == sorted(frame.epoch for frame in frames_of(disk))
    disk.remove("consumequeue")
    disk.remove("checkpoint")
    again = await open_store(disk)
    assert again.store.queue_range(1, 0) == (0, stored)
    assert len(await again.contents()) == stored
    assert len(again.states) == 12
    assert again.store.timers.stats.pending == 9
    await again.store.close()


async def test_every_error_can_be_told_to_many(open_store, message):
    """Each gets an error of its own, whatever the class."""

    class Deposed(Error):
        def __init__(self, text, *, leader=""):
            super().__init__(text)
            self.leader = leader

    opened = await open_store(FaultDisk(), replicated=True)
    call = await written(opened, lambda: opened.store.append([message()]))
    await opened.store.abandon(Deposed("gone", leader="broker-b"))
    assert (str(call.exception()), call.exception().leader) == ("gone", "broker-b")


async def test_a_repair_that_would_write_a_part_of_a_lost_block_is_refused_and_the_store_goes_on(open_store, message):
    """Decision 94: a leader that stopped for it would not come back, for its start would meet the same block."""
    disk = FaultDisk()
    opened = await open_store(disk, segment_bytes=8 * BLOCK_BYTES)
    for _ in range(20):
        await opened.store.append([message(bytes(1_000))])
    file = disk.files[f"commitlog/{0:020d}"]
    right = bytes(file.data[: 3 * BLOCK_BYTES])
    file.lose(BLOCK_BYTES)
    with pytest.raises(StoreError, match="no part of them can be written") as raised:
        await opened.store.rewrite(BLOCK_BYTES - 5, right[BLOCK_BYTES - 5 : BLOCK_BYTES + 5])
    assert not isinstance(raised.value, StorePoisoned)
    await opened.store.append([message(b"goes on")])
    await opened.store.rewrite(0, right)
    assert not file.lost
    await opened.store.close()
