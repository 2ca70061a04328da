"""One question to several servers that all may answer it: the next is asked when one fails, or is silent for a moment.

For questions that change nothing. A machine that is gone without a word is noticed at the end of a call's deadline
only; a sender that waits for the route of a broker group has not got that long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from evenq.errors import ConnectionFailed, Error, RequestTimeout, TlsFailed
from evenq.runtime.tasks import spawn

__all__ = ["SILENT_MS", "first_answer", "telling"]

SILENT_MS = 300
"""After this time without an answer the next server is asked, too."""

FailureT = TypeVar("FailureT", bound=Error)
Ask = Callable[[str], Coroutine[None, None, bytes]]


async def first_answer(targets: Sequence[str], ask: Ask, *, passed_over: Callable[[str], None]) -> bytes:
    """The first answer; `passed_over` is called with each server before the one that gave it. Raises the last server's
    ConnectionFailed or RequestTimeout if all fail, or the one that says what is wrong with TLS, and any other error at
    once.
    """
    left = list(targets)
    running: dict[asyncio.Task[bytes], str] = {}
    failure: ConnectionFailed | RequestTimeout | None = None
    try:
        while left or running:
            if left:
                target = left.pop(0)
                running[spawn(ask(target), name=f"question to {target}")] = target
            done, _ = await asyncio.wait(
                running, timeout=SILENT_MS / 1_000 if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task in done]:
                target = running.pop(task)
                try:
                    response = task.result()
                except (ConnectionFailed, RequestTimeout) as error:
                    failure = telling(failure, error)
                    continue
                for passed in targets[: list(targets).index(target)]:
                    passed_over(passed)
                return response
    finally:
        for task in running:
            task.cancel()
    assert failure is not None, "there is at least one server"
    raise failure


def telling(before: FailureT | None, error: FailureT) -> FailureT:
    """Which of two servers' failures says more: trouble with TLS, because copies of a broker that do not lead do not
    listen at all; else the later one.
    """
    return before if isinstance(before, TlsFailed) else error
