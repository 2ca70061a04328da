"""The task that begins at once, against what asyncio asks of a current task."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from evenq.serving.http2.eager_task import EagerTask


class Task(EagerTask):
    """Keeps its outcome."""

    __slots__ = ("outcome",)

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        super().__init__(asyncio.get_running_loop())
        self.outcome: asyncio.Future[Any] = self.get_loop().create_future()
        self._run(work)

    def _returned(self, result: Any) -> None:
        self.outcome.set_result(result)

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.outcome.set_result("cancelled")
        else:
            self.outcome.set_exception(error)


def outcome_of(make: Callable[[], Coroutine[Any, Any, Any]], then: Callable[[Task], None] = lambda _: None) -> Any:
    """Run it from a callback of the loop, as a protocol does."""

    async def main() -> Any:
        made: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: made.set_result(Task(make())))
        task = await made
        then(task)
        async with asyncio.timeout(60):
            return await task.outcome

    return asyncio.run(main())


def test_work_that_does_not_wait_is_over_before_the_next_line() -> None:
    async def work() -> str:
        return "done"

    def check(task: Task) -> None:
        assert task.done()
        assert not task.cancel()

    assert outcome_of(work, check) == "done"


def test_it_waits_for_futures_sleeps_and_bare_turns() -> None:
    async def work() -> list[int]:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return await asyncio.gather(*(asyncio.sleep(0, number) for number in range(3)))

    assert outcome_of(work) == [0, 1, 2]


def test_timeouts_and_groups_work_inside() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            inner = group.create_task(asyncio.sleep(0, "inner"))
        with pytest.raises(ExceptionGroup):
            await fail_together()
        return inner.result()

    async def fail_together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.wait_for(asyncio.Event().wait(), 0.01))
            await asyncio.Event().wait()

    assert outcome_of(work) == "inner"


def test_it_is_the_current_task_of_its_own_steps_only() -> None:
    async def work() -> bool:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        return isinstance(before, Task) and asyncio.current_task() is before

    assert outcome_of(work)


def test_a_cancel_is_raised_where_it_waits_and_may_be_outlived() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "went on"

    assert outcome_of(stubborn, lambda task: task.cancel()) == "went on"
    assert outcome_of(lambda: asyncio.Event().wait(), lambda task: task.cancel()) == "cancelled"  # type: ignore[arg-type, return-value]  # a coroutine too


def test_what_it_raises_and_what_it_cannot_await_are_its_outcome() -> None:
    async def wrong() -> None:
        raise KeyError("x")

    class Strange:
        def __await__(self) -> Any:
            yield 5

    async def strange() -> None:
        await Strange()

    with pytest.raises(KeyError):
        outcome_of(wrong)
    with pytest.raises(RuntimeError, match="awaits 5"):
        outcome_of(strange)


def test_context_variables_are_its_own() -> None:
    variable = ContextVar("variable", default="outside")

    async def work() -> str:
        variable.set("inside")
        await asyncio.sleep(0)
        return variable.get()

    def check(_task: Task) -> None:
        assert variable.get() == "outside"

    assert outcome_of(work, check) == "inside"
