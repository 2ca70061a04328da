"""One batch at a time, reported once, whatever became of it."""

import asyncio
import errno
import threading

import pytest

from evenq.errors import StoreFull
from evenq.runtime.clock import FakeClock
from evenq.store.log.writer import HERE_BYTES, WriteBatch, Writer


class Log:
    """A commit log that does what the test says."""

    def __init__(self, error=None, *, more=True, before=lambda: None):
        self.error = error
        self.more, self.before = more, before
        self.events = []
        self.threads = set()

    def write(self, runs):
        self.threads.add(threading.get_ident())
        self.events.append("write")
        if self.error is not None:
            raise self.error

    def write_more(self, runs):
        self.before()
        if self.more:
            self.write(runs)
        return self.more

    def sync(self):
        self.events.append("sync")


def written(log, *, sync_each=False, threaded=True):
    """What the writer reported on two batches."""

    async def story():
        reports, done = [], asyncio.Event()

        def report(batch, error):
            reports.append((batch.start, error))
            if len(reports) == 2:
                done.set()
            else:
                writer.submit(WriteBatch(1))

        writer = Writer(log, sync_each=sync_each, threaded=threaded, done=report, clock=FakeClock())
        writer.submit(WriteBatch(0))
        await asyncio.wait_for(done.wait(), 60)
        writer.close()
        writer.close()
        return reports

    return asyncio.run(story())


@pytest.mark.parametrize("threaded", [True, False])
def test_batches_are_written_in_order_and_synced_if_told_so(threaded):
    log = Log()
    assert written(log, sync_each=True, threaded=threaded) == [(0, None), (1, None)]
    assert log.events == ["write", "sync"] * 2
    assert (threading.get_ident() in log.threads) is not threaded


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), StoreFull("full"), ValueError("a mistake of ours")])
def test_every_error_is_reported_and_the_writer_goes_on(error):
    assert written(Log(error), sync_each=True) == [(0, error), (1, error)]


async def test_without_a_thread_nothing_is_written_behind_the_close():
    log, reports = Log(), []
    writer = Writer(
        log, sync_each=False, threaded=False, done=lambda batch, error: reports.append(batch), clock=FakeClock()
    )
    writer.submit(WriteBatch(0))
    writer.close()
    await asyncio.sleep(0)
    assert (log.events, reports) == ([], [])
    assert not writer.writes_here(WriteBatch(0))


# -- on the loop -----------------------------------------------------------------------------------------------------


def on_loop(log, *, threaded=True, sync_each=False, clock=None, busy=lambda: False):
    """A writer, its reports, and an event for each."""
    reports, reported = [], asyncio.Event()

    def report(batch, error):
        reports.append((batch.start, error))
        reported.set()

    writer = Writer(
        log, sync_each=sync_each, threaded=threaded, done=report, clock=clock or FakeClock(), disk_is_busy=busy
    )
    return writer, reports, reported


async def test_a_small_group_is_written_on_the_loop_and_reported_before_the_call_returns():
    log = Log()
    writer, reports, _ = on_loop(log)
    try:
        for number in range(3):
            assert writer.writes_here(WriteBatch(number))
            writer.write_here(WriteBatch(number))
            assert reports[-1] == (number, None)
        assert log.threads == {threading.get_ident()}
    finally:
        writer.close()


async def test_the_loop_writes_no_large_group_and_none_that_is_synced_or_meets_a_sync():
    size, busy = HERE_BYTES, [False]
    writer, _, _ = on_loop(Log(), busy=lambda: busy[0])
    synced, _, _ = on_loop(Log(), sync_each=True)
    try:
        small, large = WriteBatch(0), WriteBatch(0)
        small.end, large.end = size, size + 1
        assert (writer.writes_here(small), writer.writes_here(large)) == (True, False)
        assert not synced.writes_here(small)
        busy[0] = True
        assert not writer.writes_here(small)
    finally:
        writer.close()
        synced.close()


@pytest.mark.parametrize(("took_ms", "pause_ms"), [(2_000, 19_800), (40, 200), (20, 0), (0, 0)])
async def test_slow_writes_send_later_groups_to_the_thread_for_ten_times_as_long(took_ms, pause_ms):
    clock = FakeClock()

    def stalls():
        clock._monotonic += took_ms

    writer, reports, _ = on_loop(Log(before=stalls), clock=clock)
    try:
        writer.write_here(WriteBatch(0))
        assert reports == [(0, None)]
        began, clock._monotonic = clock._monotonic, clock._monotonic + max(0, pause_ms - took_ms - 1)
        assert writer.writes_here(WriteBatch(1)) is (pause_ms <= took_ms)
        clock._monotonic = began + pause_ms
        assert writer.writes_here(WriteBatch(1))
    finally:
        writer.close()


async def test_writes_that_are_slow_all_the_time_take_a_tenth_of_the_loops_time():
    clock = FakeClock()

    def takes_a_while():
        clock._monotonic += 3

    writer, reports, _ = on_loop(Log(before=takes_a_while), clock=clock)
    try:
        while clock._monotonic < 100_000:
            if writer.writes_here(WriteBatch(0)):
                writer.write_here(WriteBatch(0))
            else:
                clock._monotonic += 1
        assert 9_900 <= 3 * len(reports) <= 10_100
    finally:
        writer.close()


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize("error", [None, StoreFull("full")])
async def test_what_the_loop_cannot_write_is_written_and_reported_once_by_the_thread(threaded, error):
    log = Log(error, more=False)
    writer, reports, reported = on_loop(log, threaded=threaded)
    try:
        writer.write_here(WriteBatch(0))
        assert reports == []
        await asyncio.wait_for(reported.wait(), 60)
        assert reports == [(0, error)]
        assert log.events == ["write"]
        assert (threading.get_ident() in log.threads) is not threaded
    finally:
        writer.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("a mistake of ours")])
async def test_every_other_error_on_the_loop_is_reported_as_from_the_thread(error):
    writer, reports, _ = on_loop(Log(error))
    try:
        writer.write_here(WriteBatch(0))
        assert reports == [(0, error)]
    finally:
        writer.close()
