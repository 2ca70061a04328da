"""Tasks with names, limits and guards."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

import pytest

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import done_within, let_threads_run, outlasting, spawn, to_its_end


async def test_a_task_has_the_name_it_was_given():
    task = spawn(asyncio.sleep(0), name="a name")
    assert task.get_name() == "a name"
    await task


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (None, []),
        (ConnectionFailed("no server answers"), []),
        (ValueError("a slip"), ["the work failed after its caller was cancelled"]),
    ],
)
async def test_a_task_outlasts_its_callers_and_only_a_mistake_of_ours_is_logged_then(caplog, error, lines):
    reports, held, ended = [], asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))

    async def work():
        await held.wait()
        ended.append(True)
        if error is not None:
            raise error
        return 7

    task = spawn(work(), name="the work")
    callers = [spawn(outlasting(task), name=f"caller {number}") for number in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait({callers[0]})
    assert callers[0].cancelled()
    held.set()
    await asyncio.wait({task, callers[1]})
    assert ended == [True]
    if error is None:
        assert callers[1].result() == 7
    else:
        assert callers[1].exception() is error
    del task, callers
    await asyncio.sleep(0)
    gc.collect()
    assert reports == []
    assert [record.message for record in caplog.records] == lines


async def test_what_nobody_waits_for_any_more_leaves_no_report_of_asyncio(caplog):
    reports, held = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))

    async def work():
        await held.wait()
        raise ConnectionFailed("no server answers")

    task = spawn(work(), name="the work")
    caller = spawn(outlasting(task), name="caller")
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    held.set()
    await asyncio.wait({task})
    del task, caller
    await asyncio.sleep(0)
    gc.collect()
    assert reports == []
    assert not caplog.records


@pytest.fixture
def nobody_is_made_to_stop():
    before = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_waits_gets_the_interpreter(nobody_is_made_to_stop: None) -> None:
    """Else it would wait for a minute and more: the test's own thread never stops working by itself."""
    begin, ran = threading.Lock(), threading.Lock()
    begin.acquire()
    ran.acquire()

    def work() -> None:
        begin.acquire()
        ran.release()

    thread = threading.Thread(target=work)
    thread.start()
    begin.release()
    rests = 0
    while ran.locked():
        sum(range(1_000))
        let_threads_run()
        rests += 1
        assert rests < 100_000, "it never runs"
    thread.join()


async def test_a_call_that_creates_something_ends_before_its_caller_is_cancelled() -> None:
    created, begun = [], asyncio.Event()

    async def create() -> str:
        begun.set()
        await asyncio.sleep(0.02)
        created.append("topic")
        return "made"

    assert await to_its_end(create(), name="create") == "made"
    begun.clear()
    caller = asyncio.ensure_future(to_its_end(create(), name="create"))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert created == ["topic", "topic"]


async def test_what_is_not_done_within_the_limit_is_cancelled() -> None:
    clock = FakeClock()
    never: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(done_within(never, 50, clock=clock))
    await clock.advance(50)
    assert await waiting is False
    assert never.cancelled()
