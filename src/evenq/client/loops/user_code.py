"""Runs what the user wrote (listeners, checkers, callbacks) in a thread, whatever it raises.

Some exceptions would harm the loop that waits for the thread: SystemExit ends it, StopIteration never arrives, and a
cancellation looks like the consumer's own. Here they are failures of the user's code like any other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Executor

__all__ = ["UserCodeFailed", "in_thread"]


class UserCodeFailed(Exception):
    """Something that user code must not raise; its cause is what was raised."""


async def in_thread(threads: Executor | None, code: Callable[..., object], *arguments: object) -> object:
    """What `code` returns. Raises its exception, always an `Exception`. `threads` None: the loop's own."""

    def run() -> object:
        try:
            return code(*arguments)
        except (StopIteration, concurrent.futures.CancelledError) as error:
            raise UserCodeFailed(f"{code!r} raised {error!r}") from error
        except Exception:
            raise
        except BaseException as error:
            raise UserCodeFailed(f"{code!r} raised {error!r}") from error

    return await asyncio.get_running_loop().run_in_executor(threads, run)
