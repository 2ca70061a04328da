"""Data folders to look into: made by a real store over a memory disk, then damaged by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.store.inspection.repair import apply, plan_of
from evenq.store.inspection.verify import FolderVerdict, verify
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.record import HEADER, HEADER_BYTES, MAGIC, PADDING

COUNT = 60
SEGMENT_BYTES = 4096


def image_of(disk: MemoryDisk) -> MemoryDisk:
    """What is on a disk now, as a disk of its own that no process holds."""
    image = MemoryDisk()
    for path, file in disk.files.items():
        if path != "lock":
            image.open(path, create=True).pwrite([bytes(file.data)], 0)
    return image


@pytest.fixture
def filled(open_store, message) -> Callable[..., MemoryDisk]:
    """A folder with three queues, states, two snapshots and several log files; `clean` False: as a kill leaves it."""

    def fill(*, clean: bool = True, count: int = COUNT) -> MemoryDisk:
        async def run() -> MemoryDisk:
            disk = FaultDisk()
            opened = await open_store(disk)
            for number in range(count):
                opened.clock.jump_wall(1)
                await opened.store.append([message(b"%d" % number + b"." * 150, queue_id=number % 3)])
                await opened.store.append_state(b"s%d" % number)
                if number in {20, 40}:
                    await opened.store.save_snapshot(b"until %d" % number)
                if number == 45:
                    await opened.store.checkpoint()
            image = image_of(disk)
            await opened.store.close()
            return image_of(disk) if clean else image

        return asyncio.run(run())

    return fill


@pytest.fixture
def look() -> Callable[[MemoryDisk], FolderVerdict]:
    """Verify a folder that no process holds."""
    return lambda disk: verify(disk, owner=lambda: None)


@pytest.fixture
def mend(look) -> Callable[..., FolderVerdict]:
    """Plan, apply, verify again."""

    def run(disk: MemoryDisk, *, accept_loss: bool = False) -> FolderVerdict:
        verdict = look(disk)
        for _ in apply(disk, verdict.folder, plan_of(disk, verdict, accept_loss=accept_loss), into="repair-1"):
            pass
        return look(disk)

    return run


@pytest.fixture
def serves(open_store) -> Callable[[MemoryDisk], list[list[bytes]]]:
    """Open the folder, read all of three queues, close it."""

    def run(disk: MemoryDisk) -> list[list[bytes]]:
        async def read() -> list[list[bytes]]:
            opened = await open_store(disk)
            found = [await opened.contents(1, queue_id) for queue_id in range(3)]
            await opened.store.close()
            return found

        return asyncio.run(read())

    return run


@pytest.fixture
def places() -> Callable[[MemoryDisk], list[tuple[int, str, int, int]]]:
    """Every frame: log offset, file, byte, kind."""

    def find(disk: MemoryDisk) -> list[tuple[int, str, int, int]]:
        found = []
        for name in disk.list("commitlog"):
            data, at = disk.files[f"commitlog/{name}"].data, 0
            while len(data) - at >= HEADER_BYTES:
                header = HEADER.unpack_from(data, at)
                if header[1] != MAGIC:
                    break
                found.append((int(name) + at, f"commitlog/{name}", at, header[4]))
                at += header[0]
                if header[4] == PADDING:
                    break
        return found

    return find


@pytest.fixture
def whole() -> list[list[bytes]]:
    """What the three queues hold."""
    return [[b"%d" % number + b"." * 150 for number in range(queue, COUNT, 3)] for queue in range(3)]
