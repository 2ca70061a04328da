"""Locks of the system in files: who has one, how long it is waited for, and what a file may hold."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenq.runtime.clock import FakeClock, SystemClock
from evenq.runtime.lock_file import LockHeld, lock_file, run_locked

HOLD = "import sys; from pathlib import Path; from evenq.runtime.lock_file import lock_file\nwith lock_file(Path(sys.argv[1])):\n    print(flush=True); sys.stdin.read()"  # fmt: skip


def test_who_has_the_lock_is_named_and_it_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LockHeld, match=f"^process {other.pid}$"), lock_file(path):
            pass
        other.kill()
    with lock_file(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_lock_is_given_back_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_file(tmp_path / "lock"):
        raise KeyError
    with lock_file(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("data", [b"", b"\xff", b"no number\n", b"9" * 20 + b"x"])
def test_a_file_that_names_no_process(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lock"
    with lock_file(path):
        path.write_bytes(data)
        with pytest.raises(LockHeld, match=r"^(another process|process 9{20})$"), lock_file(path):
            pass
        assert path.read_bytes() == data


async def test_a_lock_is_waited_for_until_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path):
        waits = asyncio.create_task(run_locked(path, lambda: "done", clock=SystemClock(), wait_ms=60_000))
        await asyncio.sleep(0.05)
        assert not waits.done()
    assert await waits == "done"


async def test_a_lock_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    path, clock, runs = tmp_path / "lock", FakeClock(), list[int]()
    with lock_file(path), pytest.raises(LockHeld, match=f"process {os.getpid()}"):
        await clock.during(run_locked(path, lambda: runs.append(1), clock=clock, wait_ms=50))
    assert clock.monotonic_ms() >= 50
    assert not runs


def test_what_the_action_raises_and_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(run_locked(tmp_path / "lock", fail, clock=SystemClock(), wait_ms=0))
    with pytest.raises(IsADirectoryError):
        asyncio.run(run_locked(tmp_path, fail, clock=SystemClock(), wait_ms=0))
