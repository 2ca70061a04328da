"""The promise about flush and replication as two settings: semantics.md section 6 (HA-7), replication.md 2.1. What whole
groups promise (HA-1 to HA-6, HA-8) is tests/integration/test_replicated_promises.py and test_replicated_group.py.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions


async def opened(disk, *, flush, replicated=False):
    return await MessageStore.open(
        None, StoreOptions(segment_bytes=4096, flush=flush), clock=FakeClock(), disk=disk, broker_name="broker-a",
        on_state=lambda *_: None, on_snapshot=lambda _: None, replicated=replicated,
    )  # fmt: skip


@pytest.mark.parametrize("flush", FlushMode)
@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "copies"])
async def test_ha_7_the_own_disk_and_the_copies_are_waited_for_by_two_settings(flush, replicated):
    """Each of the four pairs: who answers waits for the disk if flush says so, for the copies if there are any, and
    neither stands for the other."""
    disk = FaultDisk()
    store = await opened(disk, flush=flush, replicated=replicated)
    end = store.stats.written_end
    appended = store.append([Append(1, 0, 7, 0, b"kept", b"")])
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.stats.written_end > end
    assert (store.stats.log_synced == store.stats.written_end) is (flush is FlushMode.SYNC)
    assert appended.done() is not replicated
    assert store.queue_range(1, 0) == (0, 0 if replicated else 1)
    image = disk.crash(Keep.NONE, random.Random(1))
    if replicated:
        disk.dead = False
        store.commit(store.stats.written_end)
        await appended
        assert store.queue_range(1, 0) == (0, 1)
    again = await opened(image, flush=flush)
    assert again.queue_range(1, 0) == (0, 1 if flush is FlushMode.SYNC else 0), "what a power loss leaves"
    await again.close()
