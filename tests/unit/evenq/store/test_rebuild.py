"""Consume queues, index and checkpoint are pure functions of the log and its snapshots (CL-15): deleted, they come back
byte for byte.
"""

from __future__ import annotations

import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions

DERIVED = ("consumequeue", "index", "checkpoint")


async def opened(disk, clock=None, **options):
    values = {"segment_bytes": 16_384, "flush": FlushMode.SYNC, "checkpoint_entries": 50, **options}
    return await MessageStore.open(
        None, StoreOptions(**values), clock=clock or FakeClock(), disk=disk, broker_name="broker-a",
        on_state=lambda *_: None, on_snapshot=lambda _: None, snapshot_of=lambda: b"state",
        keys_of=lambda head, _: [head[:4]],
    )  # fmt: skip


def derived(disk):
    found = {path: bytes(file.data) for path, file in disk.files.items() if path.split("/")[0] in DERIVED}
    assert found.pop("checkpoint")
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_all_derived_bytes_come_back(seed, monkeypatch):
    monkeypatch.setattr("evenq.store.log.consume_queue.FILE_ENTRIES", 64)
    rng = random.Random(seed)
    disk = FaultDisk()
    store = await opened(disk)
    for number in range(300):
        entries = [
            Append(rng.randint(1, 3), rng.randint(0, 2), rng.getrandbits(60), number, b"%04d" % number * 20, b"s")
            for _ in range(rng.randint(1, 5))
        ]
        await store.append(entries, state=b"progress" if rng.random() < 0.3 else b"")
        if rng.random() < 0.02:
            await store.save_snapshot(b"state")
        if rng.random() < 0.05:
            await store.checkpoint()
    await store.find(1, b"0001")
    await store.close()
    wanted = derived(disk)
    image = disk.crash(Keep.ALL, rng)
    for path in DERIVED:
        image.remove(path)
    again = await opened(image)
    assert again.stats.recovered_records > 300
    await again.find(1, b"0001")
    await again.close()
    assert derived(image) == wanted
    assert len([path for path in wanted if path.startswith("consumequeue/")]) > 9


async def test_after_retention_they_come_back_from_the_minimum_on():
    disk, clock = FaultDisk(), FakeClock()
    store = await opened(disk, clock, retention_hour=-1)
    for number in range(400):
        if number == 300:
            clock.jump_wall(100 * 3_600_000)
        await store.append([Append(1, number % 3, 7, 0, b"%04d" % number * 40, b"") for _ in range(2)])
    await store.clean()
    ranges = {queue_id: store.queue_range(1, queue_id) for queue_id in range(3)}
    assert all(low > 50 for low, _ in ranges.values())
    await store.close()
    image = disk.crash(Keep.ALL, random.Random(0))
    for path in DERIVED:
        image.remove(path)
    again = await opened(image, clock, retention_ms=0)
    await again.close()
    for queue_id, (low, high) in ranges.items():
        path = f"consumequeue/1/{queue_id}/{0:020d}"
        assert again.queue_range(1, queue_id) == (low, high)
        before, after = (bytes(one.files[path].data) for one in (disk, image))
        assert after[low * 20 :] == before[low * 20 : high * 20]
