"""The group record in a file: several processes, crashes, locks that are held, and files from a backup."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import Pair, RecordRefused, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack
from evenq_broker.loops.coordinators.file import BYTES_MAX, FileCoordinator

from evenq.runtime.clock import SystemClock

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
RENEW = """
import asyncio, sys
from pathlib import Path
from evenq.runtime.clock import SystemClock
from evenq_broker.loops.coordinators.file import FileCoordinator
async def main(path, mark, times):
    one = FileCoordinator(Path(path), mark_path=Path(mark), clock=SystemClock(), lock_wait_ms=30_000)
    while times:
        seen = await one.read()
        times -= await one.compare_and_set(seen, seen.record.renewed()) is not None
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def of(tmp_path: Path, *, broker: str = "a", lock_wait_ms: int = 2_000) -> FileCoordinator:
    return FileCoordinator(
        tmp_path / "group", mark_path=tmp_path / f"mark-{broker}", clock=SystemClock(), lock_wait_ms=lock_wait_ms
    )


def test_processes_that_write_at_once_lose_no_write(tmp_path: Path) -> None:
    asyncio.run(of(tmp_path).compare_and_set(None, FIRST))
    children = [
        subprocess.Popen([sys.executable, "-c", RENEW, str(tmp_path / "group"), str(tmp_path / f"mark-{n}"), "20"])
        for n in range(3)
    ]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    seen = asyncio.run(of(tmp_path).read())
    assert seen is not None
    assert seen.record.version == FIRST.version + 60


async def test_a_file_of_a_lower_epoch_is_refused_by_who_saw_the_higher_one(tmp_path: Path) -> None:
    a = of(tmp_path)
    first = await a.compare_and_set(None, FIRST)
    backup = (tmp_path / "group").read_bytes()
    await a.compare_and_set(first, FIRST.elected(0))
    (tmp_path / "group").write_bytes(backup)
    with pytest.raises(RecordWentBack, match="epoch 0, version 1; this broker has seen epoch 1, version 2"):
        await of(tmp_path).read()
    with pytest.raises(RecordWentBack):
        await of(tmp_path).compare_and_set(first, FIRST.elected(1))
    newcomer = await of(tmp_path, broker="b").read()  # who saw nothing cannot know
    assert newcomer is not None


async def test_who_only_read_an_epoch_refuses_a_lower_one_too(tmp_path: Path) -> None:
    a, b = of(tmp_path), of(tmp_path, broker="b")
    first = await a.compare_and_set(None, FIRST)
    backup = (tmp_path / "group").read_bytes()
    await a.compare_and_set(first, FIRST.elected(0))
    await b.read()
    (tmp_path / "group").write_bytes(backup)
    with pytest.raises(RecordWentBack):
        await b.read()


async def test_a_record_that_is_gone_is_not_a_new_group(tmp_path: Path) -> None:
    a = of(tmp_path)
    first = await a.compare_and_set(None, FIRST)
    await a.compare_and_set(first, FIRST.elected(0))
    (tmp_path / "group").unlink()
    with pytest.raises(RecordWentBack, match="is gone; this broker has seen epoch 1"):
        await a.compare_and_set(None, FIRST)


async def test_a_lock_that_is_held_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    a = of(tmp_path, lock_wait_ms=50)
    seen = await a.compare_and_set(None, FIRST)
    with (tmp_path / "group.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = rf"process {os.getpid()} has had the lock .*group.lock for 50 ms: nothing was written.*kill -CONT"
        with pytest.raises(CoordinatorUnknown, match=said):
            await a.compare_and_set(seen, FIRST.elected(0))
        (tmp_path / "group.lock").write_bytes(b"\xff")
        with pytest.raises(CoordinatorUnknown, match="another process has had the lock"):
            await a.compare_and_set(seen, FIRST.elected(0))
        assert await a.read() == seen  # reading needs no lock


async def test_what_a_crash_left_of_a_write_is_not_read(tmp_path: Path) -> None:
    a = of(tmp_path)
    seen = await a.compare_and_set(None, FIRST)
    (tmp_path / "group.77").write_text('{"token": "9", "ver')
    assert await of(tmp_path).read() == seen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("[]", "a group record is an object, not list"),
        ('{"token": "1", "version": 0}', "isr is None"),
        ("x" * (BYTES_MAX + 1), f"is over {BYTES_MAX} bytes"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "group").write_text(text)
    with pytest.raises(RecordRefused, match=said):
        asyncio.run(of(tmp_path).read())


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "group.lock").mkdir()
    with pytest.raises(CoordinatorUnknown, match="cannot be written: Is a directory"):
        asyncio.run(of(tmp_path).compare_and_set(None, FIRST))


async def test_a_record_is_not_used_while_the_mark_of_this_broker_cannot_be(tmp_path: Path) -> None:
    """The record is well: neither is its place blamed, nor the lock."""
    seen = await of(tmp_path).compare_and_set(None, FIRST)
    (tmp_path / "mark-b").mkdir()
    b = of(tmp_path, broker="b")
    for call in (b.read(), b.compare_and_set(seen, FIRST.elected(0))):
        with pytest.raises(
            CoordinatorUnknown, match=r"^the epoch that this broker saw in .*mark-b: Is a directory"
        ) as raised:
            await call
        assert "need a folder on this machine" not in raised.value.message
    (tmp_path / "mark-b").rmdir()
    assert await b.read() == seen
