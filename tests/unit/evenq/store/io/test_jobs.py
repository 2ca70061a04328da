"""Blocking calls: on threads, or inline where nothing blocks."""

import asyncio
import threading

import pytest

from evenq.store.io.jobs import Jobs


def test_inline_jobs_run_on_the_callers_thread_at_once():
    jobs = Jobs(threads=1, name="x", threaded=False)
    coroutine = jobs.run(threading.get_ident)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value == threading.get_ident()
    jobs.close()


async def test_threaded_jobs_run_elsewhere_in_order_and_errors_come_back():
    jobs = Jobs(threads=1, name="mine", threaded=True)
    order = []
    await asyncio.gather(*(jobs.run(lambda number=number: order.append(number)) for number in range(20)))
    assert order == list(range(20))
    assert (await jobs.run(lambda: threading.current_thread().name)).startswith("mine")
    with pytest.raises(ZeroDivisionError):
        await jobs.run(lambda: 1 // 0)
    jobs.close()


async def test_jobs_count_as_running_from_the_call_to_their_end():
    jobs, may_end = Jobs(threads=1, name="mine", threaded=True), threading.Event()
    tasks = [asyncio.ensure_future(jobs.run(lambda: may_end.wait(60))) for _ in range(2)]
    await asyncio.sleep(0)
    assert jobs.running == 2
    may_end.set()
    await asyncio.gather(*tasks)
    with pytest.raises(ZeroDivisionError):
        await jobs.run(lambda: 1 // 0)
    assert jobs.running == 0
    jobs.close()


async def test_a_job_whose_caller_is_gone_counts_until_it_ends_and_one_that_has_not_begun_never_runs():
    jobs, began, may_end, ran = Jobs(threads=1, name="mine", threaded=True), threading.Event(), threading.Event(), []

    def work():
        began.set()
        assert may_end.wait(60)
        raise OSError("of no one's concern")

    tasks = [asyncio.ensure_future(jobs.run(job)) for job in (work, lambda: ran.append("not begun"))]
    await asyncio.to_thread(began.wait, 60)
    assert jobs.running == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert jobs.running == 1
    may_end.set()
    await jobs.run(lambda: ran.append("next"))
    assert jobs.running == 0
    assert ran == ["next"]
    jobs.close()
