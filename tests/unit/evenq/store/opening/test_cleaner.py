"""Old files go, minimum offsets rise and never fall again, and no reader notices more than that."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep, image_of

from evenq.errors import StoreCorrupted, StoreFull, TooManyRequests
from evenq.store import TimerAppend
from evenq.store.log import consume_queue, snapshot
from evenq.store.log.record import HEADER_BYTES

HOUR = 3_600_000
ANY = {"retention_hour": -1, "retention_ms": 10 * HOUR}


def head(number):
    return b"%d" % number + b"." * 200


async def old_and_new(open_store, message, disk, old=60, new=6, **options):
    """Three queues with messages twelve hours old and young ones; queue 9 has old ones only."""
    values = {"snapshot_of": lambda: b"state", **ANY, **options}
    opened = await open_store(disk, **values)
    await opened.store.append([message(b"gone", queue_id=9)] * 2)
    for number in range(old):
        await opened.store.append([message(head(number), queue_id=number % 3)])
    opened.clock.jump_wall(12 * HOUR)
    for number in range(old, old + new):
        await opened.store.append([message(head(number), queue_id=number % 3)])
    return opened


def log_start(disk):
    return int(disk.list("commitlog")[0])


async def check(opened, total=66):
    """Whatever is above the minima is all there."""
    minima = {}
    for queue_id in range(3):
        low, high = opened.store.queue_range(1, queue_id)
        assert high == total // 3
        assert await opened.contents(1, queue_id) == [head(number * 3 + queue_id) for number in range(low, high)]
        minima[queue_id] = low
    assert opened.store.queue_range(1, 9) == (2, 2)
    return minima


async def cleaned(open_store, message, disk, **options):
    opened = await old_and_new(open_store, message, disk, **options)
    await opened.clock.advance(61_000)
    return opened


async def test_expired_files_go_and_minima_rise(open_store, message):
    disk = FaultDisk()
    opened = await cleaned(open_store, message, disk)
    minima = await check(opened)
    assert log_start(disk) > 8_000
    assert all(low > 8 for low in minima.values())
    stats = opened.store.stats
    assert stats.deleted_bytes == log_start(disk) == stats.deleted_files * 4096
    assert stats.log_bytes == stats.log_end - log_start(disk)
    assert all(int(name) >= log_start(disk) for name in disk.list("snapshot"))
    await opened.store.append([message(b"more", queue_id=9)])
    assert opened.store.queue_range(1, 9) == (2, 3)
    await opened.store.close()


@pytest.mark.parametrize("loss", ["none", "consume queues", "checkpoint", "both", "newest snapshot", "old checkpoint"])
async def test_minima_survive_restarts_and_rebuilds(open_store, message, loss):
    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk)
    before = bytes(disk.files["checkpoint"].data)
    await opened.clock.advance(61_000)
    minima = await check(opened)
    if loss == "newest snapshot":
        await opened.store.append([message(b"x", queue_id=7)])
        await opened.store.save_snapshot(b"state")
    for clean in (False, True):
        if clean:
            await opened.store.close()
        image = image_of(disk)
        if loss in ("consume queues", "both"):
            image.remove("consumequeue")
        if loss in ("checkpoint", "both"):
            image.remove("checkpoint")
        if loss == "newest snapshot":
            image.files[f"snapshot/{image.list('snapshot')[-1]}"].data[-1] ^= 1
        if loss == "old checkpoint":
            image.files["checkpoint"].data[:] = before
        again = await open_store(image, retention_ms=0)
        assert again.snapshots == [b"state"]
        assert await check(again) == minima
        await again.store.append([message(b"more", queue_id=9)])
        assert await again.contents(1, 9) == [b"more"]
        await again.store.close()


async def test_a_crash_at_any_step_of_the_deletion_is_finished_by_the_next_start(open_store, message):
    failures = 0
    for step in range(0, 200, 2):
        disk = FaultDisk()
        opened = await old_and_new(open_store, message, disk)
        disk.cut = (disk.operations + step, 0)
        await opened.clock.advance(61_000)
        if opened.store.failure is None:
            await opened.store.close()
            break
        failures += 1
        for keep in (Keep.ALL, Keep.NONE, Keep.SOME):
            image = disk.crash(keep, random.Random(step))
            disk.dead = False
            again = await open_store(image, retention_ms=0)
            for queue_id in range(3):
                low, high = again.store.queue_range(1, queue_id)
                assert high == 22
                assert await again.contents(1, queue_id) == [head(n * 3 + queue_id) for n in range(low, high)]
            await again.store.close()
        await opened.store.close()
    assert failures > 10


async def test_a_beginning_that_nobody_gave_up_is_refused(open_store, message):
    disk = FaultDisk()
    opened = await cleaned(open_store, message, disk)
    await opened.store.close()
    first = disk.list("commitlog")[0]
    image = image_of(disk)
    image.remove(f"commitlog/{first}")
    with pytest.raises(StoreCorrupted, match=f"commitlog/{first} is missing at the beginning of the log"):
        await open_store(image)
    image = image_of(disk)
    image.remove("snapshot")
    with pytest.raises(StoreCorrupted, match="holds no snapshot and the log before offset"):
        await open_store(image)


async def test_a_reader_that_meets_a_deleted_file_answers_from_the_new_minimum(open_store, message):
    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk, cache_bytes=0)
    store = opened.store
    assert store.queue_range(1, 0)[0] == 0
    run = store._reads.jobs.run

    async def late(job):
        """The file goes between the look at the queue and the read."""
        await store.clean()
        return await run(job)

    store._reads.jobs.run = late
    found = await store.read(1, 0, 3, count_max=5, bytes_max=1 << 20)
    store._reads.jobs.run = run
    low = store.queue_range(1, 0)[0]
    assert low > 5
    assert found.messages[0].queue_offset == low == found.min_offset
    assert [one.queue_offset for one in await store.read_at(1, 0, [0, 1, low])] == [low]
    assert await store.offset_at(1, 0, 0) == low
    await store.close()


async def test_topics_keep_longer_shorter_or_for_ever(open_store, message):
    kept = {1: None, 2: 2 * HOUR, 3: 0}
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms=kept.get, **ANY)
    for _ in range(20):
        await opened.store.append([message(head(1), topic_id=1), message(head(2), topic_id=2)])
    await opened.store.append([message(head(3), topic_id=3)])
    for _ in range(20):
        await opened.store.append([message(head(1), topic_id=1), message(head(2), topic_id=2)])
    opened.clock.jump_wall(5 * HOUR)
    await opened.clock.advance(250_000)
    assert opened.store.queue_range(2, 0) == (0, 40)
    await opened.clock.advance(110_000)
    assert opened.store.queue_range(2, 0) == (40, 40)
    assert opened.store.queue_range(1, 0) == (0, 40)
    image = image_of(disk)
    for path in ("checkpoint", "consumequeue"):
        image.remove(path)
    again = await open_store(image)
    assert again.store.queue_range(2, 0) == (40, 40)
    await again.store.close()
    opened.clock.jump_wall(20 * HOUR)
    await opened.clock.advance(130_000)
    assert opened.store.queue_range(3, 0) == (0, 1)
    assert opened.store.queue_range(1, 0)[0] > 5  # up to the file that topic 3 holds
    start = log_start(disk)
    assert 0 < start < 40 * 300
    opened.clock.jump_wall(200 * HOUR)
    await opened.clock.advance(130_000)
    assert log_start(disk) == start
    await opened.store.close()


@pytest.mark.parametrize("options", [{"retention_ms": 0}, {"retention_ms": 100 * HOUR, "retention_hour": 12}])
async def test_files_in_which_no_queue_keeps_anything_go_at_any_hour(open_store, message, options):
    kept = {1: HOUR, 2: None, 3: HOUR}
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=lambda: b"mine", topic_retention_ms=kept.get, **options)
    store, clock = opened.store, opened.clock
    for _ in range(40):
        await store.append([message(head(1), topic_id=1), message(head(3), topic_id=3)])
    await store.append([message(head(2), topic_id=2)])
    for _ in range(40):
        await store.append([message(head(1), topic_id=1)])
    timer = TimerAppend(2, 1, 0, due_ms=clock.now_ms() + 50 * HOUR, kind=1, born_ms=0, head=b"t", system=b"")
    await store.append([], timers=[timer])
    clock.jump_wall(2 * HOUR)
    await store.append([message(head(4), topic_id=3)])  # unfiled until the next checkpoint
    await clock.advance(400_000)
    assert [store.queue_range(topic, 0) for topic in (1, 2, 3)] == [(80, 80), (0, 1), (40, 41)]
    start = log_start(disk)
    held = (await store.read(2, 0, 0, count_max=1, bytes_max=999)).messages[0].log_offset
    assert 0 < start <= held < start + 4096
    kept[2] = 1  # the topic is gone
    await clock.advance(400_000)
    assert log_start(disk) == store.stats.log_end // 4096 * 4096
    assert store.timers.pinned_before() > start
    image = image_of(disk)
    image.remove("consumequeue")
    again = await open_store(image)
    assert [again.store.queue_range(topic, 0) for topic in (1, 2, 3)] == [(80, 80), (1, 1), (40, 41)]
    assert again.store.timers.stats.pending == 1
    await again.store.close()
    await store.close()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("older", [False, True], ids=["deleted now", "deleted in an earlier run"])
async def test_no_file_of_a_deleted_topic_stays(open_store, message, older, goes_on):
    """Nor of one that was deleted before this start; a queue that goes on all the same makes its file anew."""
    kept = {1: None, 2: None, 3: None}
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms=kept.get, **ANY)
    for number in range(3):
        await opened.store.append([message(head(number), topic_id=topic) for topic in (1, 2, 3)])
        await opened.store.append([message(head(number), topic_id=2, queue_id=1)])
    await opened.clock.advance(10_000)
    assert disk.list("consumequeue") == ["1", "2", "3"]
    if older:
        await opened.store.close()
        disk = image_of(disk)
        opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms=kept.get, **ANY)
    kept[2] = 1
    await opened.clock.advance(400_000)
    assert disk.list("consumequeue") == ["1", "3"], "before any file of the log goes"
    assert log_start(disk) == 0
    if goes_on:
        kept[2] = None
        await opened.store.append([message(head(3), topic_id=2)])
        await opened.clock.advance(10_000)
        assert disk.list("consumequeue/2/0")
        await opened.clock.advance(400_000)
    again = await open_store(image_of(disk), topic_retention_ms=kept.get)
    assert [again.store.queue_range(2, at) for at in (0, 1)] == [(3, 4 if goes_on else 3), (3, 3)]
    assert await again.contents(2, 0) == [head(3)] * goes_on
    assert await again.contents(1, 0) == await again.contents(3, 0) == [head(number) for number in range(3)]
    await again.store.close()
    await opened.store.close()


@pytest.mark.parametrize("keep", list(Keep))
async def test_a_crash_while_files_of_a_deleted_topic_go_costs_nothing(open_store, message, keep):
    failures = 0
    for step in range(60):
        kept = {1: None, 2: None}
        disk = FaultDisk()
        opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms=kept.get, **ANY)
        for number in range(2):
            await opened.store.append([message(head(number), topic_id=topic) for topic in (1, 2)])
        await opened.clock.advance(10_000)
        kept[2] = 1
        disk.cut = (disk.operations + step, 0)
        await opened.clock.advance(400_000)
        over = opened.store.failure is None
        failures += not over
        image = disk.crash(keep, random.Random(step))
        disk.dead = False
        again = await open_store(image, topic_retention_ms=kept.get, **ANY)
        assert await again.contents(1, 0) == [head(0), head(1)]
        assert again.store.queue_range(2, 0)[1] == 2
        await again.clock.advance(400_000)
        assert image.list("consumequeue") == ["1"], "the next start ends it"
        await again.store.close()
        await opened.store.close()
        if over:
            break
    assert over
    assert failures > 5


async def test_a_queue_that_is_filed_while_a_round_looks_keeps_its_messages(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms={1: HOUR}.get, retention_ms=0)
    store = opened.store
    for _ in range(40):
        await store.append([message(head(1), topic_id=1)])
    await store.checkpoint()
    opened.clock.jump_wall(2 * HOUR)
    look = store._cleaner._look
    seen = []

    async def late(job):
        """The new queue appears after the round chose whom to ask, before it looks at the files."""
        if seen:  # the first look raised the minimum of topic 1
            for number in range(40):
                await store.append([message(head(number), topic_id=2)])
            await store.checkpoint()
        seen.append(job)
        return await look(job)

    store._cleaner._look = late
    await store.clean()
    store._cleaner._look = look
    assert len(seen) > 1
    assert store.queue_range(1, 0) == (40, 40)
    assert store.queue_range(2, 0) == (0, len(await opened.contents(2, 0)))
    await store.clean()
    assert log_start(disk) > 4_000
    assert store.queue_range(2, 0) == (0, len(await opened.contents(2, 0)))
    await store.close()


@pytest.mark.parametrize("options", [{"retention_ms": 0, "topic_retention_ms": lambda _: HOUR}, ANY])
@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("fails", range(8))
async def test_minima_rise_on_disk_before_anybody_sees_them(open_store, message, options, automatic, fails):
    disk = FaultDisk()
    snapshot_of = (lambda: b"mine") if automatic else None
    opened = await open_store(disk, snapshot_of=snapshot_of, **options)
    store = opened.store
    for number in range(60):
        await store.append([message(head(number))])
    await store.checkpoint()
    if not automatic:
        await store.save_snapshot(b"mine")
    opened.clock.jump_wall(12 * HOUR)
    writes = disk.kinds.count("write")

    def full(kind, step=disk.step):
        if kind == "write" and disk.kinds.count("write") >= writes + fails:
            disk.fail(errno.ENOSPC)
        return step(kind)

    disk.step = full
    with contextlib.suppress(StoreFull):
        await store.clean()
    low, high = store.queue_range(1, 0)
    image = image_of(disk)
    again = await open_store(image, retention_ms=0)
    assert low <= again.store.queue_range(1, 0)[0] <= high == 60
    await again.store.close()
    await store.close()


async def test_rounds_come_one_after_the_other(open_store, message):
    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk)
    store = opened.store
    looks, go_on = [], asyncio.Event()
    look = store._cleaner._look

    async def slow(job):
        looks.append(job)
        await go_on.wait()
        return await look(job)

    store._cleaner._look = slow
    rounds = [asyncio.ensure_future(store.clean()) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(looks) == 1
    go_on.set()
    await asyncio.gather(*rounds)
    assert len(looks) > 3
    start = log_start(disk)
    assert start > 8_000
    assert store.stats.deleted_bytes == start
    await store.close()


async def test_nothing_goes_while_there_is_no_space_to_file_entries(open_store, message, monkeypatch):
    def full(disk, filings):
        raise OSError(errno.ENOSPC, "no space")

    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk, cache_bytes=0)
    with monkeypatch.context() as patch:
        patch.setattr(consume_queue, "write_all", full)
        await opened.clock.advance(61_000)
        assert log_start(disk) == 0
        assert [opened.store.queue_range(1, queue_id) for queue_id in (0, 1, 2, 9)] == [(0, 22)] * 3 + [(0, 2)]
        assert len(await opened.contents()) == 22
    await opened.clock.advance(61_000)
    assert log_start(disk) > 8_000
    await check(opened)
    await opened.store.close()


async def test_a_pressed_disk_gives_up_what_topics_do_not_keep_in_each_round(open_store, message):
    disk = FaultDisk(bytes_max=60_000)
    opened = await open_store(disk, snapshot_of=bytes, topic_retention_ms={1: 5_000}.get, retention_ms=0)
    for number in range(600):
        await opened.store.append([message(head(number))])
        await opened.clock.advance(500)
    assert opened.store.queue_range(1, 0)[0] > 500
    assert disk.bytes_used < 50_000
    await opened.store.close()


async def test_a_full_disk_gets_space_back_although_pending_timers_lie_in_its_oldest_files(open_store, message):
    disk = FaultDisk(bytes_max=200_000)
    opened = await open_store(disk, snapshot_of=bytes, retention_ms=1000 * HOUR, disk_force_ratio=0.85)
    store, clock = opened.store, opened.clock
    due_ms = clock.now_ms() + 10 * HOUR
    timers = [
        TimerAppend(5, 0, 0, due_ms=due_ms, kind=1, born_ms=0, head=b"%d" % number + b"t" * 100, system=b"")
        for number in range(30)
    ]
    await store.append([], timers=timers)
    await store.append([message(head(0))])
    while disk.usage().used_ratio < 0.92:  # faster than the rounds of retention
        await store.append([message(b"x" * 3_000)])
    await clock.advance(600)
    with pytest.raises(StoreFull):
        await store.append([message(b"refused")])
    await clock.advance(120_000)
    assert store.full is None
    assert log_start(disk) > timers[-1].log_offset
    assert store.timers.stats.pending == 30
    for _ in range(20):
        await store.append([message(b"more")])
    store.fire_timers()
    clock.jump_wall(11 * HOUR)
    await clock.advance(5_000)
    assert sorted(await opened.contents(5, 0)) == sorted(timer.head for timer in timers)
    await store.close()
    again = await open_store(disk)
    assert len(await again.contents(5, 0)) == 30
    assert again.store.timers.stats.pending == 0
    await again.store.close()


@pytest.mark.parametrize("error", [StoreFull("full"), TooManyRequests("busy")])
async def test_timers_that_cannot_move_now_move_later(open_store, message, error):
    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk)
    opened.store._snapshotter.timers = timers = Timers(200)
    timers.error = error
    await opened.clock.advance(61_000)
    assert log_start(disk) == 0
    assert opened.store.failure is None
    timers.error = None
    await opened.clock.advance(61_000)
    assert log_start(disk) > 0
    await opened.store.close()


async def test_the_disks_upper_mark_takes_the_oldest_whatever_their_age(open_store, message):
    disk = FaultDisk(bytes_max=100_000)
    opened = await open_store(disk, snapshot_of=bytes, disk_force_ratio=0.85)
    for number in range(600):
        await opened.store.append([message(head(number))])
        await opened.clock.advance(1_000)
    low, high = opened.store.queue_range(1, 0)
    assert high == 600
    assert low > 200
    assert await opened.contents() == [head(number) for number in range(low, high)]
    assert disk.bytes_used < 90_000
    await opened.store.close()


class Timers:
    """One pending timer, which moves when it is asked to."""

    def __init__(self, at):
        self.at = at
        self.moved = []
        self.error = None

    def freeze(self):
        return lambda: b"pending"

    def pinned_before(self):
        return self.at

    async def roll_forward(self, log_offset):
        if self.error is not None:
            raise self.error
        self.moved.append(log_offset)
        self.at = 1 << 40


async def test_pending_timers_move_forward_before_their_file_goes(open_store, message):
    disk = FaultDisk()
    opened = await old_and_new(open_store, message, disk)
    opened.store._snapshotter.timers = timers = Timers(200)
    await opened.clock.advance(61_000)
    assert timers.moved == [log_start(disk)]
    assert snapshot.load(disk, log_start=0).timers == b"pending"
    await opened.store.close()


class Unrepaired:
    """The other copies, none of which answers."""

    version = 0

    async def repair(self, error, seen):
        raise StoreCorrupted(f"{error.message}; no copy answers", log_offset=error.log_offset)


@pytest.mark.parametrize("case", ["repaired later", "disk full", "one copy"])
async def test_a_damaged_timer_keeps_its_file_while_another_copy_may_repair_it(open_store, message, caplog, case):
    """It was given up, and its end was a record that the other copies applied, too."""
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=bytes, **ANY)
    store, clock = opened.store, opened.clock
    timer = TimerAppend(5, 0, 0, due_ms=clock.now_ms() + 99 * HOUR, kind=1, born_ms=0, head=b"later", system=b"")
    await store.append([], timers=[timer])
    for number in range(60):
        await store.append([message(head(number))])
    clock.jump_wall(12 * HOUR)
    for number in range(60):
        await store.append([message(head(number))])
    data = disk.files[f"commitlog/{0:020d}"].data
    data[HEADER_BYTES] ^= 1
    if case != "one copy":
        store.repair_by(Unrepaired())
    if case == "disk full":
        store._state.set_full(StoreFull("no space"))
    await store.clean()
    if case == "repaired later":
        assert (log_start(disk), store.timers.stats.pending) == (0, 1)
        assert "expired log files kept for their timers: timer 0 is damaged here" in caplog.text
        data[HEADER_BYTES] ^= 1
        await store.clean()
    assert log_start(disk) > 0
    assert store.timers.stats.pending == (case == "repaired later")
    await store.close()


async def test_without_a_way_to_take_snapshots_only_what_the_last_one_does_not_need_goes(open_store, message):
    disk = FaultDisk()
    opened = await cleaned(open_store, message, disk, snapshot_of=None)
    assert log_start(disk) == 0
    await opened.store.save_snapshot(b"mine")
    await opened.clock.advance(61_000)
    assert log_start(disk) > 8_000
    minima = await check(opened)
    image = image_of(disk)
    for path in ("checkpoint", "consumequeue"):
        image.remove(path)
    again = await open_store(image)
    assert again.snapshots == [b"mine"]
    assert await check(again) == minima
    await again.store.close()
    await opened.store.close()


class Tables:
    """Ends of tables: offsets by topic, the same for each queue of it."""

    def __init__(self, **ends):
        self.ends = {int(name[1:]): end for name, end in ends.items()}
        self.lost = []

    def exported(self, topic_id, _queue_id):
        return self.ends.get(topic_id)

    def deleted(self, *what):
        self.lost.append(what)


async def test_messages_wait_for_the_exporter_of_their_table_until_it_wrote_them(open_store, message):
    disk, tables = FaultDisk(), Tables(t1=0)
    opened = await old_and_new(open_store, message, disk, tables=tables, table_wait_ms=24 * HOUR)
    await opened.clock.advance(61_000)
    assert (log_start(disk), opened.store.queue_range(1, 0)) == (0, (0, 22)), "expired, and not exported"
    tables.ends[1] = 10
    await opened.clock.advance(61_000)
    minima = await check(opened)
    assert log_start(disk) > 0
    assert all(0 < low <= 10 for low in minima.values()), "only whole files of what is exported"
    assert tables.lost == []
    await opened.store.close()


async def test_the_wait_ends_at_its_bound_and_reports_what_was_not_exported(open_store, message):
    disk, tables = FaultDisk(), Tables(t1=3)
    opened = await old_and_new(open_store, message, disk, tables=tables, table_wait_ms=24 * HOUR)
    opened.clock.jump_wall(20 * HOUR)
    await opened.clock.advance(61_000)
    assert opened.store.queue_range(1, 0)[0] <= 3, "32 h old, 34 h are kept"
    opened.clock.jump_wall(3 * HOUR)
    await opened.clock.advance(61_000)
    low = opened.store.queue_range(1, 0)[0]
    assert low > 8
    assert (1, 0, 3, low) in tables.lost
    assert all(topic == 1 for topic, *_ in tables.lost), "the other topic has no table"
    await opened.store.close()


@pytest.mark.parametrize(
    "options", [{"table_wait_ms": 0}, {"disk_clean_ratio": 0.1}], ids=["no wait", "the disk fills"]
)
async def test_a_bound_of_zero_and_a_filling_disk_end_the_wait(open_store, message, options):
    disk, tables = FaultDisk(bytes_max=200_000), Tables(t1=0)
    opened = await old_and_new(open_store, message, disk, tables=tables, **options)
    assert 0.1 < disk.usage().used_ratio < 0.75
    await opened.clock.advance(61_000)
    assert opened.store.queue_range(1, 0)[0] > 8
    assert tables.lost
    await opened.store.close()


async def test_a_topic_that_keeps_less_waits_for_its_exporter_too(open_store, message):
    disk, tables = FaultDisk(), Tables(t2=15)
    opened = await open_store(
        disk, snapshot_of=bytes, topic_retention_ms={1: 1_000 * HOUR, 2: HOUR}.get, tables=tables,
        retention_ms=0, table_wait_ms=10 * HOUR,
    )  # fmt: skip
    for _ in range(40):
        await opened.store.append([message(head(1), topic_id=1), message(head(2), topic_id=2)])
    opened.clock.jump_wall(2 * HOUR)
    await opened.clock.advance(310_000)
    assert opened.store.queue_range(2, 0) == (15, 40)
    tables.ends[2] = 20
    await opened.clock.advance(310_000)
    assert opened.store.queue_range(2, 0) == (20, 40)
    assert tables.lost == []
    opened.clock.jump_wall(10 * HOUR)
    await opened.clock.advance(310_000)
    assert opened.store.queue_range(2, 0) == (40, 40)
    assert tables.lost == [(2, 0, 20, 40)]
    await opened.store.close()
