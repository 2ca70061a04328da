"""How a server process ends: code and words."""

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from evenq.errors import PortInUse, SettingsError, StoreLocked
from evenq.serving.program.run import EXIT_FAILED, EXIT_OK, EXIT_USAGE, FILES_MAX, run, run_program
from evenq.serving.program.settings import ServerSettings


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """A program that ends leaves the handlers of its loop behind, and a garbage collector that seldom looks; other tests of
    this process hear signals, and leave garbage.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def raising(error: BaseException) -> Callable[[asyncio.Event], Coroutine[Any, Any, None]]:
    async def main(_stop: asyncio.Event) -> None:
        raise error

    return main


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop_and_the_exit_is_clean(number: signal.Signals) -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 60)

    assert run(main) == EXIT_OK


def test_a_server_may_open_as_many_files_as_the_system_gives() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = []

    async def main(_stop: asyncio.Event) -> None:
        result.append(resource.getrlimit(resource.RLIMIT_NOFILE))

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        assert run(main) == EXIT_OK
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    expected = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    assert result == [(expected, hard)]


def test_a_server_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("evenq.serving.program.run.keep_freed_memory", lambda: kept.append(True))

    async def main(_stop: asyncio.Event) -> None:
        assert kept == [True]

    assert run(main) == EXIT_OK


def test_a_second_signal_cancels() -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 60)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.Event().wait(), 60)

    assert run(main) == 130


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PortInUse("port 1 is in use"), EXIT_USAGE),
        (SettingsError("port 1 is in use"), EXIT_USAGE),
        (StoreLocked("port 1 is in use"), EXIT_FAILED),
        (ExceptionGroup("tasks", [StoreLocked("port 1 is in use")]), EXIT_FAILED),
    ],
)
def test_our_errors_end_in_one_line_without_traceback(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error), program="broker") == code
    assert capsys.readouterr().err == "evenq-broker: port 1 is in use\n"


def test_a_mistake_of_ours_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert run(raising(KeyError("x"))) == EXIT_FAILED
    assert caplog.records[0].exc_info is not None


def test_bad_settings_and_help_end_before_the_program_starts(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(_settings: ServerSettings, _stop: asyncio.Event) -> None:
        raise AssertionError("must not run")

    assert run_program("broker", ServerSettings, main, ["--prot=1"]) == EXIT_USAGE
    assert "did you mean --port?" in capsys.readouterr().err
    assert run_program("broker", ServerSettings, main, ["--help"]) == EXIT_OK
    assert "--port" in capsys.readouterr().out
