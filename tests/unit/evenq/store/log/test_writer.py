"""One batch at a time, reported once, whatever became of it."""

import asyncio
import errno
import threading

import pytest

from evenq.errors import StoreFull
from evenq.store.log.writer import WriteBatch, Writer


class Log:
    """A commit log that does what the test says."""

    def __init__(self, error=None):
        self.error = error
        self.events = []
        self.threads = set()

    def write(self, runs):
        self.threads.add(threading.get_ident())
        self.events.append("write")
        if self.error is not None:
            raise self.error

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

        writer = Writer(log, sync_each=sync_each, threaded=threaded, done=report)
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
    writer = Writer(log, sync_each=False, threaded=False, done=lambda batch, error: reports.append(batch))
    writer.submit(WriteBatch(0))
    writer.close()
    await asyncio.sleep(0)
    assert (log.events, reports) == ([], [])
