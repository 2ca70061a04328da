"""Descriptors kept for the store, at a limit that is really reached."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreFull
from evenq.store.io import descriptors
from evenq.store.io.descriptors import SpareFiles


@pytest.fixture
def crowded() -> Iterator[list[int]]:
    """No descriptor is free: a caller that wants one closes one of these."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    taken: list[int] = []
    yield taken
    for one in taken:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(taken: list[int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))


def test_the_store_opens_files_although_none_is_free_and_gets_its_spares_back(
    tmp_path: Path, crowded: list[int]
) -> None:
    spares = SpareFiles(4)
    spares.fill()
    crowd(crowded)
    opened = [spares.ensured(lambda: os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)) for _ in range(3)]
    assert len(spares) == 1
    for one in opened:
        os.write(one, b"x")
        spares.close_file(one)
        crowd(crowded)
    assert len(spares) == 4, "no thread slipped in between"
    spares.close()
    assert (tmp_path / "f").read_bytes() == b"x"
    assert len(spares) == 0


def test_without_a_spare_it_waits_for_a_descriptor_and_then_says_so(
    crowded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "WAIT_S", 0.1)
    spares = SpareFiles(0)
    spares.fill()
    crowd(crowded)
    with pytest.raises(OSError, match="Too many open files"):
        spares.ensured(lambda: os.open(os.devnull, os.O_RDONLY))
    tries = 0

    def after_a_while() -> int:
        nonlocal tries
        tries += 1
        if tries == 3:
            os.close(crowded.pop())
        return os.open(os.devnull, os.O_RDONLY)

    crowded.append(spares.ensured(after_a_while))
    assert tries == 3
    spares.close()


def test_another_error_is_raised_at_once() -> None:
    spares = SpareFiles(1)
    spares.fill()
    with pytest.raises(FileNotFoundError):
        spares.ensured(lambda: os.open("/no/such/file", os.O_RDONLY))
    assert len(spares) == 1
    spares.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("kind", ["create", "rename", "preallocate"])
async def test_what_fails_for_want_of_descriptors_is_tried_again_and_the_store_lives(open_store, message, kind, number):
    """A new log file, the one set aside, entries, checkpoint and snapshot: all of them open something."""
    disk = FaultDisk()
    opened = await open_store(disk, snapshot_of=lambda: b"state", checkpoint_interval_ms=1_000)
    store, clock = opened.store, opened.clock
    stored = 0
    for round_number in range(3):
        disk.faults_of = {kind: number} if round_number == 1 else {}
        for _ in range(8):
            with contextlib.suppress(StoreFull):
                await store.append([message(b"%d|" % stored + b"x" * 1_000)])
                stored += 1
            await clock.advance(600)
        with contextlib.suppress(StoreFull):
            await store.save_snapshot(b"state")
    assert store.failure is None
    assert stored >= 16
    assert len(await opened.contents()) == stored
    await store.close()
    again = await open_store(disk, snapshot_of=lambda: b"state")
    assert len(await again.contents()) == stored
    await again.store.close()
