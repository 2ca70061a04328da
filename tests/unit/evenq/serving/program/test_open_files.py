"""Few descriptors left is said once, and its end once."""

import asyncio
import os
import resource

import pytest

from evenq.runtime.clock import FakeClock
from evenq.serving.program import open_files
from evenq.serving.program.open_files import LOOK_MS, watch_open_files


def test_what_is_open_is_counted_against_the_limit() -> None:
    used, limit = open_files.open_files()
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    assert open_files.open_files()[0] == used + 10
    for one in taken:
        os.close(one)


async def test_it_is_said_once_when_few_are_left_and_once_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    caplog.set_level("INFO")
    clock = FakeClock()
    watching = asyncio.ensure_future(watch_open_files(clock))
    for used in (10, 89, 90, 100, 85, 79, 10):
        monkeypatch.setattr(open_files, "open_files", lambda n=used: (n, 100))
        for _ in range(3):
            await clock.advance(LOOK_MS)
            await asyncio.to_thread(int)
    watching.cancel()
    assert [record.getMessage().partition(" file")[0] for record in caplog.records] == ["90 of 100", "79 of 100"]
