"""The group record in a real etcd of three members: one gone, one paused, two gone, and back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import Pair, Seen, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown
from evenq_broker.loops.coordinators.epoch_mark import EpochMark
from evenq_broker.loops.coordinators.etcd import EtcdStore, endpoints_of, etcd_net
from evenq_broker.loops.coordinators.remote import RemoteCoordinator, RemoteTiming
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.etcd import Etcd

from evenq.runtime.clock import SystemClock

# slow: three members that lose their leader; the unit tests of etcd kill and pause one
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_SECONDS + 300)]
FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
TIMING = RemoteTiming(total_ms=5_000, silence_ms=3_000, retry_ms_max=500)
SETTLED_SECONDS = 60


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd", members=3) as etcd:
        yield etcd


class Broker:
    """One broker's coordinator; `first`: the member that it asks first."""

    def __init__(self, etcd: Etcd, folder: Path, *, first: int) -> None:
        urls = etcd.urls[first:] + etcd.urls[:first]
        self.net = etcd_net()
        store = EtcdStore(self.net, endpoints_of(",".join(urls)), "evenq/groups/b0")
        mark = EpochMark(folder / f"mark-{first}")
        self.coordinator = RemoteCoordinator(
            store, mark=mark, clock=SystemClock(), rng=random.Random(first), timing=TIMING
        )

    async def renewed(self, seen: Seen | None) -> Seen:
        """One more renewal, however often it has to be tried: members elect a leader of their own meanwhile."""
        end = time.monotonic() + SETTLED_SECONDS
        while True:
            try:
                record = FIRST if seen is None else seen.record.renewed()
                written = await self.coordinator.compare_and_set(seen, record)
                if written is not None:
                    return written
                seen = await self.coordinator.read()
            except CoordinatorUnknown:
                seen = await self._read(end)

    async def _read(self, end: float) -> Seen | None:
        while True:
            try:
                return await self.coordinator.read()
            except CoordinatorUnknown:
                if time.monotonic() >= end:
                    raise


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_with_one_of_three_members_gone_all_goes_on(three: Etcd, tmp_path: Path, how: str) -> None:
    """The broker asked that member until now, and its watch hangs there."""
    a, b = Broker(three, tmp_path, first=0), Broker(three, tmp_path, first=1)
    seen = await a.renewed(None)
    watch = a.coordinator.watch()
    assert (await anext(watch)).record == seen.record
    if how == "killed":
        three.members[0].kill()
    else:
        three.members[0].pause()
    try:
        seen = await a.renewed(seen)
        seen = await b.renewed(seen)
        while (response := await asyncio.wait_for(anext(watch), SETTLED_SECONDS)) != seen:
            assert response.record.version < seen.record.version
        await watch.aclose()
    finally:
        if how == "paused":
            three.members[0].resume()
        await a.net.close()
        await b.net.close()


async def test_with_two_of_three_members_gone_nothing_is_known_and_nothing_is_lost(three: Etcd, tmp_path: Path) -> None:
    a = Broker(three, tmp_path, first=0)
    seen = await a.renewed(None)
    watch = a.coordinator.watch()
    assert await anext(watch) == seen
    for n in (1, 2):
        three.members[n].kill()
    began = time.monotonic()
    for call in (a.coordinator.read(), a.coordinator.compare_and_set(seen, seen.record.elected(0)), anext(watch)):
        with pytest.raises(CoordinatorUnknown, match=r"evenq/groups/b0 of etcd at 127\.0\.0\.1:.* cannot be"):
            await call
    assert time.monotonic() - began < 60, "each call is bounded"
    for n in (1, 2):
        three.members[n].start()
    now = await a.renewed(seen)
    assert now.record.version in {seen.record.version + 1, seen.record.version + 2}
    assert now.record.epoch in {0, 1}, "the unknown write happened once at most"
    other = Broker(three, tmp_path, first=2)
    assert await other.coordinator.read() == now
    await other.net.close()
    await a.net.close()
