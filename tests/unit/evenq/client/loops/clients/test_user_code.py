"""Whatever user code raises in its thread is an exception here, and the loop lives on."""

from __future__ import annotations

import asyncio
import concurrent.futures
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenq.client.loops.clients.user_code import NotCalled, UserCodeFailed, in_thread, reporter
from evenq.errors import Error, Forbidden


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), StopIteration(1), asyncio.CancelledError(), concurrent.futures.CancelledError(),
     GeneratorExit()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_what_would_harm_the_loop_is_a_failure_like_any_other(error: BaseException) -> None:
    def code() -> None:
        raise error

    with pytest.raises(UserCodeFailed) as raised:
        await asyncio.wait_for(in_thread(None, code), 60)
    assert raised.value.__cause__ is error
    assert await in_thread(None, lambda number: number + 1, 2) == 3


async def test_an_ordinary_exception_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(None, lambda: 1 // 0)


def test_code_that_threads_take_no_more_was_not_called() -> None:
    """As when the interpreter ends."""
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    with pytest.raises(NotCalled, match="cannot schedule new futures after shutdown"):
        asyncio.run(in_thread(threads, lambda: None))


@pytest.mark.parametrize("failure", [KeyError("a mistake"), asyncio.CancelledError()])
async def test_whatever_on_error_raises_is_logged(failure: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    called = asyncio.Event()

    async def on_error(_: Error) -> None:
        called.set()
        raise failure

    reporter(on_error)(Forbidden("no grant"))
    await asyncio.wait_for(called.wait(), 10)
    await asyncio.sleep(0)
    assert "on_error failed for: " in caplog.text
