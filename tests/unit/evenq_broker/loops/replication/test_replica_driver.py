"""Three drivers with logs of bytes in memory and a shared record: elections, copies, commits, hand-over, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from evenq_broker.core.replication.actions import (
    AppendEpochStart,
    AppendRecords,
    PersistEpoch,
    Reset,
    Truncate,
)
from evenq_broker.core.replication.config import ReplicationConfig, Timing
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.membership import AddCopy, RemoveCopy
from evenq_broker.core.replication.messages import Envelope, LastRecord, Records
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import InvariantBroken, Role
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_proofs.memory_coordinator import MemoryCoordinator, SharedRecord

from evenq.errors import StoreError, WithinRecord
from evenq.runtime.clock import FakeClock

TIMING = Timing(renew_ms=200, suspect_ms=1_000, backoff_ms=100, lag_ms=500, retry_ms=100, drain_ms=2_000)


class Coordinator(MemoryCoordinator):
    """May be away."""

    away = False
    reads = 0

    async def read(self) -> Seen | None:
        self.reads += 1
        self._check()
        return await super().read()

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        self._check()
        return await super().compare_and_set(expected, proposed)

    async def watch(self) -> AsyncIterator[Seen]:
        self._check()
        async for seen in super().watch():
            self._check()
            yield seen

    def _check(self) -> None:
        if self.away:
            raise CoordinatorUnknown("the coordinator is away")


class Member:
    """One broker: its log, which every write reaches at once, and its driver."""

    def __init__(self, world: World, broker_id: int, *, data: bytes = b"", epoch_seen: int = 0) -> None:
        self.world, self.id = world, broker_id
        config = ReplicationConfig(
            cluster="c", broker_id=broker_id, members=(0, 1, 2), founds=broker_id == 0, timing=TIMING
        )
        replica = Replica(config, store_id=str(broker_id) * 32, epoch_seen=epoch_seen, session=broker_id + 1)
        self.coordinator = Coordinator(world.shared)
        self.driver = ReplicaDriver(replica, self.coordinator, clock=world.clock, group="broker-a")
        self.driver.log, self.driver.peers = self, self
        self.data = data
        self.noted: list[GroupRecord] = []
        """What the record was when copies or addresses had changed."""
        self.compared: list[int] = []
        self.refused = False
        """Its last record in common with the leader is another one."""
        self.end_committed = 0
        self.serves = 0
        self.stopped: list[str] = []
        self.closed_peers: list[int] = []
        self.close_reasons: list[str] = []
        self.reads = 0
        self.remembers = False
        """Records are in memory yet."""
        self.settling: list[int] = []
        """Limits of waits for the outcome of what was taken."""
        self.taken = asyncio.Event()
        self.taken.set()
        self.takes_nothing = False
        self.hold_reads = asyncio.Event()
        self.hold_reads.set()

    @property
    def replica(self) -> Replica:
        return self.driver.replica

    def start(self) -> None:
        table = EpochTable() if not self.data else EpochTable(0, (EpochStart(1, 0),))
        self.driver.tell(self.replica.recovered(table, len(self.data), self.world.clock.monotonic_ms()))
        self.driver.start()

    def append(self, data: bytes) -> None:
        self.data += data
        self.driver.tell(self.replica.appended(self.replica.max_epoch, len(self.data)))
        self.driver.tell(self.replica.synced(len(self.data)))

    # LogActions.

    def do(self, action: PersistEpoch | AppendEpochStart | AppendRecords | Truncate | Reset) -> None:
        replica, tell = self.replica, self.driver.tell
        match action:
            case PersistEpoch(epoch):
                tell(replica.epoch_persisted(epoch))
            case AppendEpochStart(epoch):
                self.data += b"E"
                tell(replica.appended(epoch, len(self.data)))
                tell(replica.synced(len(self.data)))
            case AppendRecords(records):
                assert isinstance(records.payload, bytes)
                self.data += records.payload
                tell(replica.copied(len(self.data)))
                tell(replica.synced(len(self.data)))
            case Truncate(end, _, _, last):
                self.refused |= last is not None and last.crc32c != self.data[end - 1]
                self.data = self.data[:end]
                tell(replica.truncated(end))
            case Reset(start):
                assert start == 0, "no log begins later"
                self.data = b""
                tell(replica.emptied(0))

    def remember(self) -> None:
        if self.replica.record is not None:
            self.noted.append(self.replica.record)

    def serve(self, epoch: int) -> None:
        self.serves = epoch

    def stop_serving(self, reason: str) -> None:
        self.stopped.append(reason)

    def committed(self, end: int) -> None:
        self.end_committed = end

    async def settle(self, within_ms: int) -> None:
        self.settling.append(within_ms)
        self.takes_nothing = True
        await self.taken.wait()

    def settled(self) -> None:
        self.takes_nothing = False

    def at_hand(self, start: int, end: int) -> bytes | None:
        return self.data[start:end] if self.remembers else None

    async def last_record(self, end: int) -> LastRecord | None:
        self.compared.append(end)
        return LastRecord(end - 1, end, self.data[end - 1])

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        self.reads += 1
        await self.hold_reads.wait()
        return self.data[start : min(end, start + bytes_max)]

    # PeerSender.

    def send(self, to: int, envelope: Envelope) -> None:
        self.world.sent += 1
        if (self.id, to) not in self.world.cut:
            asyncio.get_running_loop().call_soon(self.world.members[to].driver.receive, envelope)

    @property
    def connected(self) -> set[int]:
        return {other for other in range(3) if other != self.id and other not in self.world.gone}

    @property
    def unreached(self) -> set[int]:
        return self.world.gone - {self.id}

    def close_peer(self, broker_id: int, reason: str) -> None:
        self.closed_peers.append(broker_id)
        self.close_reasons.append(reason)


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.shared = SharedRecord()
        self.cut: set[tuple[int, int]] = set()
        self.gone: set[int] = set()
        self.sent = 0
        """Messages of all."""
        self.members = [Member(self, number) for number in range(3)]

    def isolate(self, broker_id: int) -> None:
        """No message of its own arrives, nor any for it."""
        for other in range(3):
            self.cut |= {(broker_id, other), (other, broker_id)}

    @property
    def leader(self) -> Member | None:
        leaders = [member for member in self.members if member.replica.role is Role.READY]
        return max(leaders, key=lambda member: member.replica.max_epoch) if leaders else None

    async def led(self) -> Member:
        await self.clock.until(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    for member in world.members:
        member.start()
    try:
        yield world
        for member in world.members:
            assert not member.driver.failed.done(), member.driver.failed
    finally:
        for member in world.members:
            await member.driver.close()


async def test_a_new_group_founds_itself_and_commits_what_all_in_sync_have(world: World) -> None:
    leader = await world.led()
    assert leader.id == 0
    assert leader.serves == leader.replica.max_epoch == 1
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    leader.append(b"one")
    await world.clock.until(lambda: leader.end_committed == len(leader.data))
    await world.clock.until(lambda: all(member.end_committed == leader.end_committed for member in world.members))
    assert {member.data for member in world.members} == {b"Eone"}


async def test_records_that_are_in_memory_yet_are_sent_at_once_and_nothing_is_read(world: World) -> None:
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))
    reads, leader.remembers = leader.reads, True
    sent_before = world.sent
    leader.append(b"one")
    assert world.sent == sent_before + 2, "both followers waited, and are sent to before the turn ends"
    await world.clock.until(lambda: leader.end_committed == len(leader.data))
    assert leader.reads == reads
    assert {member.data for member in world.members} == {b"Eone"}


async def test_a_silent_leader_is_replaced_and_stops_when_it_hears_of_it(world: World) -> None:
    old = await world.led()
    old.append(b"both")
    await world.clock.until(lambda: all(member.end_committed == len(old.data) for member in world.members))
    world.isolate(old.id)
    old.coordinator.away = True
    old.append(b"lost")
    await world.clock.until(lambda: world.leader not in (None, old))
    new = world.leader
    assert new is not None
    assert new.replica.max_epoch == 2
    assert not old.stopped
    old.coordinator.away = False
    world.cut.clear()
    await world.clock.until(lambda: old.data == new.data and old.replica.role is Role.FETCHING)
    assert old.stopped
    assert old.data == b"EbothE", "what no other had is cut"


@pytest.mark.parametrize("ended", [True, False])
async def test_who_starts_and_finds_no_process_of_its_leader_waits_as_if_it_had_lost_it(
    world: World, ended: bool
) -> None:
    """All processes of a group ended; the leader's does not come back. One that is only silent has all of its time."""
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    for member in world.members:
        await member.driver.close()
    world.isolate(old.id)
    if ended:
        world.gone.add(old.id)
    for number in {0, 1, 2} - {old.id}:
        world.members[number] = Member(world, number, data=old.data, epoch_seen=1)
        world.members[number].start()
    began_ms = world.clock.monotonic_ms()
    await world.clock.until(lambda: world.leader is not old)
    waited_ms = world.clock.monotonic_ms() - began_ms
    assert (waited_ms < TIMING.suspect_ms) is ended
    assert waited_ms >= TIMING.renew_ms


async def test_a_drain_lets_another_broker_lead_within_a_moment(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    begun_ms = world.clock.monotonic_ms()
    handing = asyncio.ensure_future(old.driver.drain())
    await world.clock.until(handing.done)
    assert handing.result().leader not in (old.id, NO_LEADER)
    assert world.clock.monotonic_ms() - begun_ms < TIMING.suspect_ms
    assert (await old.driver.drain()) is handing.result(), "asking again gives the same answer"


@pytest.mark.parametrize("ends", [True, False])
async def test_a_successor_is_asked_once_what_was_taken_has_its_outcome(world: World, ends: bool) -> None:
    """It may begin its epoch at once, and who waits at the old leader then would not know whether the record is kept."""
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    to = (old.id + 1) % 3
    old.taken.clear()
    handing = asyncio.ensure_future(old.driver.drain() if ends else old.driver.hand_over(to, within_ms=1_000))
    await world.clock.advance(300)
    assert (len(old.settling), old.takes_nothing) == (1, True)
    assert old.replica.role is Role.READY
    old.taken.set()
    await world.clock.until(handing.done)
    assert handing.result().leader in ({0, 1, 2} - {old.id} if ends else {to})
    assert not old.takes_nothing


async def test_a_drain_that_nobody_takes_ends_in_time(world: World) -> None:
    old = await world.led()
    world.isolate(old.id)
    for member in world.members:
        member.coordinator.away = member is not old
    begun_ms = world.clock.monotonic_ms()
    handing = asyncio.ensure_future(old.driver.drain())
    await world.clock.until(handing.done)
    assert handing.result().leader == NO_LEADER
    assert world.clock.monotonic_ms() - begun_ms <= TIMING.drain_ms + 500


async def test_a_drain_does_not_wait_for_peers_that_are_all_gone(world: World) -> None:
    """As when a whole group is stopped."""
    old = await world.led()
    world.isolate(old.id)
    world.gone |= {member.id for member in world.members if member is not old}
    for member in world.members:
        member.coordinator.away = member is not old
    begun_ms = world.clock.monotonic_ms()
    handing = asyncio.ensure_future(old.driver.drain())
    await world.clock.until(handing.done)
    assert handing.result().leader == NO_LEADER
    assert world.clock.monotonic_ms() - begun_ms < 1_500 < TIMING.drain_ms


async def test_a_drain_ends_with_a_replica_that_fails_meanwhile() -> None:
    """Nothing would end the wait for a successor any more."""
    world = World()
    for member in world.members:
        member.start()
    old = await world.led()
    world.isolate(old.id)
    for member in world.members:
        member.coordinator.away = member is not old
    handing = asyncio.ensure_future(old.driver.drain())
    await world.clock.until(lambda: old.replica.role is Role.DRAINING)
    old.driver.tell(old.replica.synced(1 << 60))
    done, _ = await asyncio.wait({handing}, timeout=20)
    assert done, "it waits for a successor for ever"
    assert handing.result().leader == NO_LEADER
    for member in world.members:
        await member.driver.close()


async def test_a_hand_over_makes_the_named_broker_lead(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    for to in (2, 1):
        leader = await world.led()
        begun_ms = world.clock.monotonic_ms()
        handing = asyncio.ensure_future(leader.driver.hand_over(to, within_ms=1_000))
        await world.clock.until(handing.done)
        assert handing.result().leader == to
        assert world.clock.monotonic_ms() - begun_ms <= 1_000
        await world.clock.until(lambda to=to: world.leader is world.members[to])  # type: ignore[misc]
    assert old.stopped
    assert not old.driver.replica.leads


async def test_a_leader_whose_nominee_does_not_take_over_goes_on_and_may_try_again(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    world.members[2].coordinator.away = True
    for _ in range(2):
        handing = asyncio.ensure_future(old.driver.hand_over(2, within_ms=300))
        await world.clock.until(handing.done)
        assert handing.result().leader == NO_LEADER
        assert old.replica.leader.may_append()
    assert not old.stopped
    old.append(b"on")
    await world.clock.until(lambda: old.end_committed == len(old.data))


async def test_a_caller_that_leaves_does_not_leave_the_leader_draining(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    world.members[2].coordinator.away = True
    handing = asyncio.ensure_future(old.driver.hand_over(2, within_ms=300))
    await world.clock.until(lambda: old.replica.role is Role.DRAINING)
    handing.cancel()
    await world.clock.until(lambda: old.replica.role is Role.READY)


async def test_a_broker_that_ends_during_a_hand_over_does_not_go_on_leading(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    world.members[2].coordinator.away = True
    moving = asyncio.ensure_future(old.driver.hand_over(2, within_ms=300))
    await world.clock.until(lambda: old.replica.role is Role.DRAINING)
    ending = asyncio.ensure_future(old.driver.drain())
    await world.clock.until(lambda: moving.done() and ending.done())
    assert ending.result().leader == NO_LEADER
    assert old.replica.role is Role.DRAINING
    assert not old.replica.leader.may_append()


async def test_the_driver_tells_who_answers_and_what_store_each_named(world: World) -> None:
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    world.gone.add(2)
    await world.clock.until(lambda: 2 in leader.driver.watch.seen().away_since_ms)
    seen = leader.driver.watch.seen()
    assert seen.connected == {1}
    assert seen.stores == {1: "1" * 32, 2: "2" * 32}
    assert seen.away_since_ms[2] <= world.clock.now_ms()


async def test_a_copy_whose_link_broke_holds_nobody_up(world: World) -> None:
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    world.isolate(2)
    world.gone.add(2)
    begun_ms = world.clock.monotonic_ms()
    leader.append(b"on")
    await world.clock.until(lambda: leader.end_committed == len(leader.data))
    assert world.clock.monotonic_ms() - begun_ms < TIMING.lag_ms / 2
    world.gone.clear()
    world.cut.clear()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]


async def test_a_leader_that_lives_is_not_replaced_when_the_coordinator_is_back_however_late_it_renews(
    world: World,
) -> None:
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    for member in world.members:
        member.coordinator.away = True
    await world.clock.advance(3 * TIMING.suspect_ms)
    for member in world.members:
        member.coordinator.away = member is leader
    await world.clock.advance(TIMING.suspect_ms - TIMING.renew_ms)
    leader.coordinator.away = False
    await world.clock.advance(3 * TIMING.suspect_ms)
    assert world.leader is leader
    assert (leader.replica.max_epoch, leader.stopped) == (1, [])
    assert world.shared.seen is not None
    assert world.shared.seen.record.epoch == 1
    assert len(world.shared.seen.record.isr) == 3


async def test_a_copy_that_starts_while_the_coordinator_is_away_follows_whom_it_remembers_and_commits_go_on(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R23: every commit waits for it, and the in-sync set cannot shrink before the coordinator is back."""
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))
    old = world.members[2]
    remembered = old.replica.record
    for member in world.members:
        member.coordinator.away = True
    await old.driver.close()
    new = world.members[2] = Member(world, 2, data=old.data, epoch_seen=old.replica.max_epoch)
    new.coordinator.away, new.driver.remembered = True, remembered
    leader.append(b"on")
    await world.clock.advance(TIMING.suspect_ms)
    assert leader.end_committed < len(leader.data), "without it nothing is committed"
    copies: list[GroupRecord] = []
    new.driver.on_copies = copies.append
    new.start()
    await world.clock.until(lambda: leader.end_committed == len(leader.data) == len(new.data))
    assert leader.compared[-1:] == [len(old.data)], "the last record of what both have"
    assert not new.refused
    assert copies == [remembered]
    assert "follows copy 0, which led epoch 1 when it was read last" in caplog.text
    assert not new.driver.in_sync
    assert not new.noted, "it was not read"
    for member in world.members:
        member.coordinator.away = False
    await world.clock.until(lambda: new.driver.in_sync)
    assert (leader.replica.max_epoch, leader.stopped) == (1, [])
    assert new.noted == [], "a start notes nothing anew"


async def test_a_copy_whose_log_has_other_bytes_and_the_same_epochs_and_length_is_told_by_its_leaders_last_record(
    world: World,
) -> None:
    leader = await world.led()
    leader.append(b"true")
    await world.clock.until(lambda: all(member.end_committed == len(leader.data) for member in world.members))
    old = world.members[2]
    await old.driver.close()
    new = world.members[2] = Member(world, 2, data=b"Efals", epoch_seen=old.replica.max_epoch)
    assert len(new.data) == len(leader.data)
    new.start()
    await world.clock.until(lambda: new.refused)


async def test_a_copy_that_reads_that_there_is_no_record_goes_by_nothing_that_it_remembers(world: World) -> None:
    leader = await world.led()
    remembered = leader.replica.record
    one = Member(World(), 2, epoch_seen=1)
    one.driver.remembered = remembered
    one.start()
    await one.world.clock.until(lambda: one.coordinator.reads > 0)
    one.coordinator.away = True
    await one.world.clock.advance(TIMING.suspect_ms)
    assert one.replica.group.followed is None
    await one.driver.close()


async def test_a_leader_that_does_not_reach_the_coordinator_is_replaced_although_it_is_heard_of(world: World) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    for member in world.members:
        member.coordinator.away = True
    await world.clock.advance(3 * TIMING.suspect_ms)
    for member in world.members:
        member.coordinator.away = member is old
    begun_ms = world.clock.monotonic_ms()
    await world.clock.until(lambda: world.leader not in (None, old))
    assert world.clock.monotonic_ms() - begun_ms < 2 * TIMING.suspect_ms


async def test_a_leader_that_dies_while_the_coordinator_is_away_is_replaced_as_soon_as_that_is_back(
    world: World,
) -> None:
    old = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    for member in world.members:
        member.coordinator.away = True
    await world.clock.advance(3 * TIMING.suspect_ms)
    world.isolate(old.id)
    world.gone.add(old.id)
    await world.clock.advance(TIMING.suspect_ms)
    for member in world.members:
        member.coordinator.away = member is old
    begun_ms = world.clock.monotonic_ms()
    await world.clock.until(lambda: world.leader not in (None, old))
    assert world.clock.monotonic_ms() - begun_ms < TIMING.suspect_ms


async def test_a_coordinator_that_is_away_changes_nothing_and_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await world.led()
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    caplog.clear()
    for member in world.members:
        member.coordinator.away = True
    leader.append(b"meanwhile")
    await world.clock.until(lambda: leader.end_committed == len(leader.data))
    await world.clock.advance(10_000)
    assert world.leader is leader
    watched = [record for record in caplog.records if "cannot be watched" in record.message]
    assert len(watched) <= len(world.members)
    written = [record for record in caplog.records if "not written" in record.message]
    assert [record.levelname for record in written] == ["WARNING"], "the leader's; no other writes"
    assert not leader.driver.reaches_record
    for member in world.members:
        member.coordinator.away = False
    version = world.shared.seen.record.version  # type: ignore[union-attr]
    await world.clock.until(lambda: world.shared.seen.record.version > version)  # type: ignore[union-attr]
    await world.clock.until(lambda: all(member.driver.reaches_record for member in world.members))


async def test_an_outage_that_the_place_of_the_record_has_logged_is_not_logged_again(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = await world.led()
    error = CoordinatorUnknown("the coordinator is away")
    error.is_logged = True
    refused = []

    async def refuse(*_: object) -> None:
        refused.append(error)
        raise error

    leader.coordinator.compare_and_set = refuse  # type: ignore[method-assign,assignment]
    caplog.clear()
    await world.clock.until(lambda: len(refused) > 1)
    assert not [record for record in caplog.records if "not written" in record.message]


async def test_one_read_for_each_peer_is_under_way_and_what_was_appended_meanwhile_is_the_next(world: World) -> None:
    leader = await world.led()
    leader.append(b"x" * 99)
    await world.clock.advance(1_000)
    leader.hold_reads.clear()
    before = leader.reads
    sent: list[tuple[int, int, int]] = []
    leader.send = lambda to, envelope: sent.append((to, envelope.body.start, envelope.body.end))  # type: ignore[method-assign]
    for size in (10, 20, 30):
        leader.append(b"x" * size)
        await asyncio.sleep(0)
    assert leader.reads == before + 2, "one for each of the two"
    leader.hold_reads.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert leader.reads == before + 4
    assert sorted(sent) == [(1, 100, 110), (1, 110, 160), (2, 100, 110), (2, 110, 160)]


async def test_a_message_that_the_links_lose_is_sent_again_when_the_follower_says_where_it_is(world: World) -> None:
    leader = await world.led()
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))
    leader.send = lambda *_: False  # type: ignore[method-assign]
    leader.append(b"one")
    await asyncio.sleep(0)
    assert leader.replica.leader.windows == {}, "nothing more is sent before that"
    del leader.send  # type: ignore[method-assign]
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))


async def test_a_follower_whose_log_ends_within_a_record_is_closed_with_a_sentence(world: World) -> None:
    leader = await world.led()
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))
    good, place = leader.read, len(leader.data)

    async def read(start: int, end: int, bytes_max: int) -> bytes:
        if start == place and len(leader.closed_peers) < 3:
            raise WithinRecord("it lies within a group of records")
        return await good(start, end, bytes_max)

    leader.read = read  # type: ignore[method-assign]
    leader.append(b"more")
    await world.clock.until(lambda: len(leader.closed_peers) >= 3)
    assert all("where no record of its leader's ends" in reason for reason in leader.close_reasons)
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))


async def test_records_that_cannot_be_read_are_asked_for_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    leader = await world.led()
    good = leader.read
    failures = 0

    async def bad(start: int, end: int, bytes_max: int) -> bytes:
        nonlocal failures
        failures += 1
        if failures < 4:
            raise StoreError("the file is damaged")
        return await good(start, end, bytes_max)

    leader.read = bad  # type: ignore[method-assign]
    leader.append(b"after damage")
    await world.clock.until(lambda: all(member.data == leader.data for member in world.members))
    assert "cannot read records" in caplog.text


async def test_what_was_read_in_an_earlier_term_is_not_sent_in_a_later_one(world: World) -> None:
    old, new, behind = world.members
    assert await world.led() is old
    await world.clock.until(lambda: len(world.shared.seen.record.isr) == 3)  # type: ignore[union-attr]
    await world.clock.until(lambda: all(member.data == old.data == b"E" for member in world.members))
    good, late = old.read, asyncio.Event()

    async def read(start: int, end: int, bytes_max: int) -> bytes:
        data, is_first = await good(start, end, bytes_max), old.reads == reads + 1
        if not is_first:  # of the two followers, the second one's
            await late.wait()
        return data

    reads = old.reads
    old.read = read  # type: ignore[method-assign]
    world.isolate(old.id)
    world.isolate(behind.id)
    behind.coordinator.away = old.coordinator.away = True
    old.append(b"lost")
    await asyncio.sleep(0)
    del old.read  # type: ignore[method-assign]
    await world.clock.until(lambda: new.replica.max_epoch == 2)
    old.coordinator.away = False
    world.cut -= {(old.id, new.id), (new.id, old.id)}
    await world.clock.until(lambda: world.leader is new and old.data == new.data)
    await world.clock.until(lambda: {pair.broker_id for pair in world.shared.seen.record.isr} == {0, 1})  # type: ignore[union-attr]
    handing = asyncio.ensure_future(new.driver.hand_over(old.id, within_ms=5_000))
    await world.clock.until(lambda: handing.done() and world.leader is old)
    world.cut.clear()
    behind.coordinator.away = False
    old.append(b"more")
    await world.clock.until(lambda: 2 in old.replica.leader.windows and old.replica.leader.windows[2].start == 1)
    late.set()
    await world.clock.until(lambda: all(member.data == old.data == b"EEEmore" for member in world.members))


async def test_a_broken_invariant_ends_the_process() -> None:
    world = World()
    leader = world.members[0]
    leader.start()
    leader.driver.tell(leader.replica.synced(10**9))
    assert leader.driver.failed.done()
    assert isinstance(leader.driver.failed.result(), InvariantBroken)
    assert leader.replica.role is Role.CRASHED
    await leader.driver.close()
    leader.driver.receive(Envelope("c", 1, "1" * 32, 2, 1, Records(0, 0, 0, (), 0, 0, b"")))


async def test_who_the_copies_are_is_told_once_for_each_change_and_a_removed_one_says_what_to_do(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader = await world.led()
    events: list[tuple[int, tuple[int, ...]]] = []
    for member in world.members:
        member.driver.on_copies = lambda record, id_=member.id: events.append((id_, record.members))
    gone = next(member for member in world.members if member is not leader)
    await world.clock.until(lambda: leader.replica.record is not None and len(leader.replica.record.isr) == 3)
    await world.clock.until(lambda: leader.replica.group.cas is None)
    leader.driver.change_copies(RemoveCopy(gone.id))
    await world.clock.until(lambda: len(events) == 3)
    left = tuple(sorted({0, 1, 2} - {gone.id}))
    assert sorted(events) == [(number, left) for number in range(3)]
    assert [member.driver.is_member for member in world.members] == [member is not gone for member in world.members]
    await world.clock.advance(1_000)
    assert len(events) == 3, "signs of life are no changes"
    lines = [record.message for record in caplog.records if "this is copy" in record.message]
    assert len(lines) == 1
    assert f"this is copy {gone.id}, and the copies of the group are {left[0]}, {left[1]}" in lines[0]
    assert f"waits until `evenq broker add-replica broker-a --copy {gone.id} --at HOST:PORT`" in lines[0]
    await world.clock.until(lambda: leader.replica.group.cas is None)
    leader.driver.change_copies(AddCopy(gone.id, "db:1"))
    await world.clock.until(lambda: len(events) == 6 and gone.driver.in_sync)
