"""Running a server process: settings, logs, the loop, signals, exit codes. Called by each program's `__main__`.

SIGTERM and SIGINT set the `stop` event, and the program drains and returns. A second signal cancels it. An error of
`evenq.errors` ends the process with one line that contains the fix, any other one with a traceback in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from evenq.errors import Error, PortInUse, SettingsError
from evenq.runtime.allocator import keep_freed_memory
from evenq.runtime.clock import SystemClock
from evenq.runtime.printable import printable
from evenq.runtime.tasks import spawn
from evenq.serving.program.logs import setup_logs
from evenq.serving.program.open_files import watch_open_files
from evenq.serving.program.settings import HelpWanted, load

log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # a person must change a setting or port; a restart without a change cannot help
FILES_MAX = 1 << 20
"""Most open files that a server requests: each client needs one, and many systems allow only 1024 by default."""
PARENT = "EVENQ_PARENT_PID"  # set by `evenq up` and test clusters for the processes that they start
PARENT_MS = 1_000

ModelT = TypeVar("ModelT", bound=BaseModel)


def run_program(
    program: str,
    kind: type[ModelT],
    serve: Callable[[ModelT, asyncio.Event], Coroutine[Any, Any, None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Loads settings of class `kind` for `evenq-<program>`, sets up logs, runs `serve`; returns the exit code."""
    try:
        settings = load(kind, program, sys.argv[1:] if argv is None else argv, os.environ)
    except HelpWanted as wanted:
        sys.stdout.write(f"{wanted}\n")
        return EXIT_OK
    except SettingsError as error:
        sys.stderr.write(printable(f"evenq-{program}: {error}", keep="\n") + "\n")
        return EXIT_USAGE
    setup_logs(str(getattr(settings, "log_level", "INFO")), program=program)
    return run(lambda stop: serve(settings, stop), program=program)


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, program: str = "") -> int:
    """Runs `main(stop)` on uvloop if installed, otherwise on asyncio's loop; returns the exit code, raises nothing."""
    _calm_collector()
    keep_freed_memory()
    _allow_files()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_with_signals(main))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001  the end of the process: it can only report the reason
        return _exit_code(error, program)
    return EXIT_OK


def _calm_collector() -> None:
    """Makes the garbage collector run less often. Reference counts free the objects of a call. Tables and cached
    messages live long, and checking them after each 700 new objects costs 5 % of the hot path.
    """
    gc.collect()
    # Imported objects live as long as the process, so collections skip them.
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def _allow_files() -> None:
    """Raises the limit of open files to the most that the system allows, up to FILES_MAX."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < files:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they report
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


async def _with_signals(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task is not None

    def on_signal(name: str) -> None:
        if stop.is_set():
            task.cancel()
            return
        log.info("stopping", extra={"signal": name})
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    watching = [spawn(watch_open_files(SystemClock()), name="open files")]
    watching += parent_watch(lambda: on_signal("parent ended"))
    try:
        await main(stop)
    finally:
        for watch in watching:
            watch.cancel()


def parent_watch(end: Callable[[], None]) -> list[asyncio.Task[None]]:
    """Returns a task that calls `end` when the process of `PARENT` has ended; none without that variable."""
    parent = os.environ.get(PARENT, "")
    return [spawn(_watch_parent(int(parent), end), name="parent")] if parent.isdigit() else []


async def _watch_parent(parent: int, end: Callable[[], None]) -> None:
    """Stops cleanly when the process that started this one has ended: otherwise its port would stay in use."""
    clock = SystemClock()
    while os.getppid() == parent:
        await clock.sleep_ms(PARENT_MS)
    end()


def _exit_code(error: BaseException, program: str) -> int:
    """Prints or logs the error that ends the process; returns the exit code."""
    known = _first_known(error)
    if known is None:
        log.critical("process ends after an internal error", exc_info=error)
        return EXIT_FAILED
    text = f"evenq-{program}: {known}" if program else str(known)
    sys.stderr.write(printable(text, keep="\n") + "\n")
    return EXIT_USAGE if isinstance(known, SettingsError | PortInUse) else EXIT_FAILED


def _first_known(error: BaseException) -> Error | None:
    """Returns the error itself, or the first of a TaskGroup's group if all in it are known errors."""
    if isinstance(error, Error):
        return error
    if isinstance(error, BaseExceptionGroup):
        causes = [_first_known(inner) for inner in error.exceptions]
        return causes[0] if all(inner is not None for inner in causes) else None
    return None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
