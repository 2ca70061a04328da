"""Schedules fire once for each time, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.sending.schedules import (
    MESSAGE_BYTES_MAX,
    NAME_PROPERTY,
    TIME_PROPERTY,
    TOPIC_MAX,
    message_id_of,
)
from evenq_broker.core.state.schedule_records import Missed, Schedule
from evenq_broker.loops.resizing.resizing import drain, permit
from evenq_broker.loops.sending import schedules
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import BadRequest, Error, MessageTypeConflict, NotFound, StoreFull, TooManyRequests
from evenq.model import MessageType, Permission
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def schedule(name: str = "s", **fields: Any) -> Schedule:
    rule = {} if fields.get("cron") else {"every_ms": 10_000}
    return Schedule(**{"topic_id": 0, "uid": "", "body": b"x", "name": name, **rule, **fields})


async def put(stage: Any, broker: Broker, wanted: Schedule | None = None, topic: str = "t") -> Any:
    known = broker.catalog.topics.get(topic)
    assert known is not None
    made = replace(wanted or schedule(), topic_id=known.topic_id)
    return await stage.during(broker.schedules.put(known, made))


async def started(stage: Any, wanted: Schedule | None = None, **settings: Any) -> tuple[Broker, Any]:
    """A broker with topic `t` and one schedule, which fires every 10 s."""
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    return broker, await put(stage, broker, wanted)


async def messages(broker: Broker, topic: str = "t") -> list[Any]:
    """All messages of the topic's queue 0, in order."""
    known = broker.catalog.topics.get(topic)
    assert known is not None
    low, high = broker.ledger.store.queue_range(known.topic_id, 0)
    found = await broker.ledger.store.read_at(known.topic_id, 0, list(range(low, high)))
    result = []
    for one in found:
        message = definition_pb2.Message.FromString(one.head)
        message.system_properties.ParseFromString(one.system)
        result.append(message)
    return result


async def times(broker: Broker, begin_ms: int = 0, topic: str = "t") -> list[int]:
    """The times of the stored firings, in s from `begin_ms`."""
    return [(int(one.user_properties[TIME_PROPERTY]) - begin_ms) // 1_000 for one in await messages(broker, topic)]


async def test_each_time_has_one_message_with_the_content_of_the_schedule(stage: Any) -> None:
    wanted = schedule(body=b"report", tag="a", keys=("k1", "k2"), properties=(("p", "v"),))
    broker, kept = await started(stage, wanted)
    begin_ms = kept.schedule.made_ms
    await stage.clock.advance(35_000)
    assert await times(broker, begin_ms) == [10, 20, 30]
    [first, *others] = await messages(broker)
    system = first.system_properties
    assert (first.body, system.tag, list(system.keys), first.user_properties["p"]) == (
        b"report",
        "a",
        ["k1", "k2"],
        "v",
    )
    assert first.user_properties[NAME_PROPERTY] == "s"
    assert system.message_id == message_id_of(kept.schedule, begin_ms + 10_000)
    assert len({one.system_properties.message_id for one in [first, *others]}) == 3
    assert (kept.schedule.fired, kept.schedule.passed, kept.next_ms) == (3, 0, begin_ms + 40_000)
    assert (broker.schedules.firings, broker.runtime.stats.messages_in) == (3, 3)


async def test_a_cron_rule_fires_at_its_local_times(stage: Any) -> None:
    broker, kept = await started(stage, schedule(cron="0 6 * * * Europe/Berlin"))
    for _ in range(2):
        stage.clock._wall += kept.next_ms - stage.clock.now_ms() - 1_500
        await stage.clock.advance(1_000)
        fired = kept.schedule.fired
        await stage.clock.advance(1_000)
        assert kept.schedule.fired == fired + 1
    found = [int(one.user_properties[TIME_PROPERTY]) for one in await messages(broker)]
    assert [(at % DAY_MS // HOUR_MS, at - found[0]) for at in found] == [(5, 0), (5, DAY_MS)]


async def test_ordered_topics_get_the_message_group(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", message_type=MessageType.FIFO, queues=4))
    with pytest.raises(MessageTypeConflict, match="takes FIFO messages, this one is NORMAL"):
        await put(stage, broker)
    await put(stage, broker, schedule(message_group="g"))
    await stage.clock.advance(25_000)
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    counts = [broker.ledger.store.queue_range(topic.topic_id, queue)[1] for queue in range(4)]
    assert sorted(counts) == [0, 0, 0, 2], "one queue has all of them"


# ---------------------------------------------------------------------------------------------------- missed times


@pytest.mark.parametrize(
    ("fields", "down_ms", "fired", "passed"),
    [
        ({}, 35_000, [10, 50], 3),
        ({"missed": Missed.SKIP}, 35_000, [10, 50], 3),
        ({"missed": Missed.ALL, "missed_max": 100}, 35_000, [10, 20, 30, 40, 50], 0),
        ({"missed": Missed.ALL, "missed_max": 2}, 35_000, [10, 40, 50], 2),
        ({"every_ms": 300_000}, 400_000, [300], 0),
        ({"every_ms": 300_000, "missed": Missed.SKIP}, 400_000, [], 1),
        ({"every_ms": 300_000, "missed": Missed.SKIP}, 340_000, [300], 0),
    ],
)
async def test_times_that_pass_while_the_broker_is_down_are_missed_by_the_policy(
    stage: Any, tmp_path: Path, fields: dict[str, Any], down_ms: int, fired: list[int], passed: int
) -> None:
    store = StoreSettings(path=str(tmp_path))
    broker, kept = await started(stage, schedule(**fields), store=store)
    begin_ms = kept.schedule.made_ms
    await stage.clock.advance(15_000)
    await stage.end(broker)
    await stage.clock.advance(down_ms)
    broker = await stage.broker(store=store)
    await stage.clock.advance(2_000)
    assert await times(broker, begin_ms) == fired
    [kept] = broker.schedules.table
    assert (kept.schedule.fired, kept.schedule.passed) == (len(fired), passed)


async def test_a_long_outage_is_looked_at_in_parts_and_a_longer_one_is_not_counted(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "PASSED_MAX_MS", 3 * DAY_MS)
    store = StoreSettings(path=str(tmp_path))
    broker, _ = await started(stage, schedule(cron="* * * * *", missed=Missed.ALL, missed_max=3), store=store)
    await stage.end(broker)
    stage.clock._wall += 2 * DAY_MS
    broker = await stage.broker(store=store)
    await stage.clock.advance(5_000)
    [kept] = broker.schedules.table
    assert (kept.schedule.fired, kept.schedule.passed) == (3, 2 * 1_440 - 3)
    assert stage.clock.now_ms() - kept.schedule.last_ms < 60_000
    stage.clock._wall += 10 * DAY_MS
    await stage.clock.advance(5_000)
    assert (kept.schedule.fired, kept.schedule.passed) == (6, 5 * 1_440 - 6), "three of the ten days"


async def test_a_clock_that_is_set_back_fires_nothing_twice_and_one_that_is_set_forward_is_an_outage(
    stage: Any,
) -> None:
    broker, kept = await started(stage)
    begin_ms = kept.schedule.made_ms
    await stage.clock.advance(25_000)
    stage.clock._wall -= 18_000
    await stage.clock.advance(20_000)
    assert await times(broker, begin_ms) == [10, 20], "at 27 s of the clock"
    await stage.clock.advance(5_000)
    assert await times(broker, begin_ms) == [10, 20, 30]
    stage.clock._wall += 50_000
    await stage.clock.advance(1_100)
    assert await times(broker, begin_ms) == [10, 20, 30, 80]
    stage.clock._wall -= DAY_MS
    await stage.clock.advance(60_000)
    assert kept.schedule.fired == 4, "it waits for the clock"
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    await stage.during(broker.schedules.pause(topic, "s", paused=False))
    await stage.clock.advance(10_500)
    assert kept.schedule.fired == 5, "resumed, it counts from now"


async def test_a_paused_schedule_misses_nothing(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=str(tmp_path))
    broker, kept = await started(stage, store=store)
    begin_ms = kept.schedule.made_ms
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    await stage.during(broker.schedules.pause(topic, "s", paused=True))
    await stage.clock.advance(25_000)
    await stage.end(broker)
    broker = await stage.broker(store=store)
    await stage.clock.advance(20_000)
    assert await times(broker, begin_ms) == []
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    await stage.during(broker.schedules.pause(topic, "s", paused=False))
    await stage.clock.advance(10_500)
    [kept] = broker.schedules.table
    assert (kept.schedule.fired, kept.schedule.passed) == (1, 0)


# ---------------------------------------------------------------------------------------------------- changes


async def test_the_same_definition_changes_nothing_and_another_one_counts_from_now(stage: Any) -> None:
    broker, kept = await started(stage)
    first = kept.schedule
    await stage.clock.advance(15_000)
    records = broker.ledger.journal.records
    assert (await put(stage, broker)).schedule == replace(
        first, done_ms=first.done_ms + 10_000, fired=1, last_ms=first.done_ms + 10_000
    )
    assert broker.ledger.journal.records == records
    changed = (await put(stage, broker, schedule(every_ms=60_000, body=b"y"))).schedule
    assert (changed.uid, changed.made_ms, changed.fired, changed.body) == (first.uid, first.made_ms, 1, b"y")
    assert kept.next_ms == changed.done_ms + 60_000 > stage.clock.now_ms() + 59_900


async def test_a_deleted_schedule_and_those_of_a_deleted_topic_are_gone_also_after_a_restart(
    stage: Any, tmp_path: Path
) -> None:
    store = StoreSettings(path=str(tmp_path))
    broker, _ = await started(stage, store=store)
    await stage.during(broker.catalog.create_topic("u", queues=1))
    await put(stage, broker, schedule("other"))
    await put(stage, broker, topic="u")
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    await stage.during(broker.schedules.delete(topic, "s"))
    with pytest.raises(NotFound, match="topic t has no schedule 's'"):
        await stage.during(broker.schedules.delete(topic, "s"))
    await stage.during(broker.catalog.delete_topic("u"))
    await stage.clock.advance(11_000)
    assert await times(broker) != []
    assert [kept.schedule.name for kept in broker.schedules.table] == ["other"]
    stage.brokers.remove(broker)
    broker.ledger.journal._unsaved = False  # no last snapshot: the next start replays the log
    await stage.during(broker.close())
    broker = await stage.broker(store=store)
    assert [kept.schedule.name for kept in broker.schedules.table] == ["other"]
    await stage.during(broker.catalog.create_topic("u", queues=1))
    await stage.clock.advance(11_000)
    assert await messages(broker, "u") == []


async def test_limits_and_what_is_not_valid_are_refused(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, _ = await started(stage, schedules_max=TOPIC_MAX + 1)
    for wanted, message in [
        (schedule("a b"), "the schedule's name is 'a b'"),
        (schedule(""), "the schedule's name is ''"),
        (schedule(".."), "and not only dots"),
        (schedule(every_ms=999), "the interval is 999 ms, the range is 1000 ms"),
        (schedule(cron="0 6 * * * Europe/berlin"), "the time zone 'Europe/berlin' is unknown"),
        (schedule(cron="0 6 * * * ../../etc/passwd"), "is unknown"),
        (schedule(cron="0 6 * * * Europe"), "is unknown"),
        (schedule(cron="0 0 30 2 *"), "'0 0 30 2 \\*' never fires"),
        (schedule(cron="* * * * *", every_ms=1_000), "one rule"),
        (schedule(every_ms=0), "one rule"),
        (schedule(missed=Missed.ALL), "0 missed firings are to be sent, the range is 1 to 100"),
        (schedule(missed_max=5), "needs the policy all"),
        (schedule(body=bytes(MESSAGE_BYTES_MAX + 1)), f"have {MESSAGE_BYTES_MAX + 1} bytes, the limit"),
        (schedule(properties=((NAME_PROPERTY, "x"),)), "is set by the schedule"),
    ]:
        with pytest.raises(BadRequest, match=message):
            await put(stage, broker, wanted)
    with pytest.raises(Error, match="body is empty"):
        await put(stage, broker, schedule(body=b""))
    with pytest.raises(Error, match="the tag '\\|' is blank"):
        await put(stage, broker, schedule(tag="|"))
    monkeypatch.setattr(schedules, "available_timezones", set)
    with pytest.raises(BadRequest, match="no time zone database, so only UTC is known"):
        await put(stage, broker, schedule(cron="0 6 * * * Europe/Nowhere"))
    assert len(broker.schedules.table) == 1
    for number in range(TOPIC_MAX - 1):
        await put(stage, broker, schedule(f"n{number}"))
    with pytest.raises(TooManyRequests, match="topic t has 100 schedules, the limit is 100"):
        await put(stage, broker, schedule("more"))
    await stage.during(broker.catalog.create_topic("u", queues=1))
    await put(stage, broker, topic="u")
    with pytest.raises(TooManyRequests, match=r"101 schedules, the limit is 101 \(schedules_max\)"):
        await put(stage, broker, schedule("more"), topic="u")


async def test_a_zone_that_this_machine_does_not_know_any_more_is_kept_and_reported(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoreSettings(path=str(tmp_path))
    broker, _ = await started(stage, schedule(cron="* * * * * Europe/Berlin"), store=store)
    await stage.end(broker)

    def unknown(name: str) -> Any:
        raise ValueError(f"the time zone {name!r} is unknown")

    with monkeypatch.context() as patched:
        patched.setattr(schedules, "zone_of", unknown)
        broker = await stage.broker(store=store)
        await stage.clock.advance(120_000)
        [kept] = broker.schedules.table
        assert (kept.problem, kept.schedule.fired) == ("the time zone 'Europe/Berlin' is unknown", 0)
        await stage.end(broker)
    broker = await stage.broker(store=store)
    await stage.clock.advance(2_000)
    [kept] = broker.schedules.table
    assert (kept.problem, kept.schedule.fired) == ("", 1)


# ---------------------------------------------------------------------------------------------------- what fails


async def test_a_drained_broker_and_a_closed_topic_fire_later(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    broker, kept = await started(stage)
    await stage.during(drain(broker.kernel, on=True))
    await stage.clock.advance(25_000)
    assert await times(broker) == []
    assert "broker a is being drained; it is tried again" in kept.problem
    assert sum("does not fire" in record.message for record in caplog.records) == 1
    await stage.during(permit(broker.kernel, "t", Permission.READ))
    await stage.during(drain(broker.kernel, on=False))
    await stage.clock.advance(2_000)
    assert (await times(broker), "closed for writing" in kept.problem) == ([], True)
    await stage.during(permit(broker.kernel, "t", Permission.READ_WRITE))
    await stage.clock.advance(1_500)
    assert (len(await times(broker)), kept.problem, kept.schedule.passed) == (1, "", 1)


class Machine:
    """A broker on a disk whose machine may stop, and the next broker on what that left."""

    def __init__(self, stage: Any, disk: FaultDisk) -> None:
        self.stage, self.disk = stage, disk

    async def opened(self) -> Broker:
        settings = BrokerSettings(broker_name="a", duplicates_window_ms=0, store=StoreSettings(flush="sync"))
        self.running = Broker(
            settings, clock=self.stage.clock, rng=random.Random("a"), net=self.stage.net, disk=self.disk
        )
        await self.running.open()
        return self.running

    async def broker(self) -> Broker:
        broker = await self.opened()
        await self.stage.begin(broker)
        return broker

    async def stops(self, keep: Keep, rng: random.Random) -> None:
        after = self.disk.crash(keep, rng)
        self.stage.brokers.remove(self.running)
        await self.stage.during(self.running.close())
        self.disk = after


@pytest.mark.parametrize("found_by", ["the writer", "the gate"])
async def test_a_full_disk_fires_later_by_the_policy(stage: Any, found_by: str) -> None:
    machine = Machine(stage, FaultDisk())
    broker = await machine.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    kept = await put(stage, broker, schedule(body=bytes(9_000)))
    begin_ms = kept.schedule.made_ms
    outcomes: list[str] = []
    original = broker.schedules._stored

    def stored(one: Any, before: Schedule, entries: Any, future: Any) -> None:
        outcomes.append(type(future.exception()).__name__)
        original(one, before, entries, future)

    broker.schedules._stored = stored  # type: ignore[method-assign]  # counts
    if found_by == "the writer":
        await stage.clock.advance(begin_ms + 9_999 - stage.clock.now_ms())
    machine.disk.bytes_max = machine.disk.bytes_used + 100
    await stage.clock.advance(35_000)
    assert outcomes == (["StoreFull"] if found_by == "the writer" else [])
    assert (await times(broker), kept.schedule.fired, kept.schedule.done_ms) == ([], 0, begin_ms)
    assert "messages are refused" in kept.problem
    machine.disk.bytes_max = 1 << 40
    await stage.until(lambda: kept.schedule.fired, step_ms=200)
    await stage.clock.advance(10)
    [fired] = await times(broker, begin_ms)
    assert fired >= 30
    assert kept.schedule.passed == fired // 10 - 1
    assert kept.problem == ""


async def test_a_snapshot_after_a_refusal_has_no_firing_and_before_it_has_one(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, kept = await started(stage)
    before, stored = kept.schedule, asyncio.get_running_loop().create_future()
    monkeypatch.setattr(broker.ledger.journal, "append", lambda *_: stored)
    await stage.clock.advance(10_500)
    assert [op.schedule.fired for op in broker.schedules._dump()] == [1]
    stored.set_exception(StoreFull("full"))  # its callback has not run
    assert [op.schedule for op in broker.schedules._dump()] == [before]
    monkeypatch.undo()
    await stage.clock.advance(1_500)
    assert (kept.schedule.fired, await times(broker, before.made_ms)) == (1, [10])


async def test_calls_wait_for_the_outcome_of_a_firing(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, kept = await started(stage)
    stored = asyncio.get_running_loop().create_future()
    topic = broker.catalog.topics.get("t")
    assert topic is not None
    monkeypatch.setattr(broker.ledger.journal, "append", lambda *_: stored)
    await stage.clock.advance(10_500)
    pausing = asyncio.ensure_future(broker.schedules.pause(topic, "s", paused=True))
    await stage.clock.advance(30_000)
    assert (kept.schedule.fired, kept.schedule.paused, pausing.done()) == (1, False, False), "it fires no second time"
    monkeypatch.undo()
    stored.set_exception(StoreFull("full"))
    await stage.during(pausing)
    await stage.clock.advance(30_000)
    assert (kept.schedule.fired, kept.schedule.paused) == (0, True)


async def story(stage: Any, cut: tuple[int, int], keep: Keep, *, snapshot: bool) -> tuple[bool, ...]:
    """One firing during which the machine stops at a change of the disk: (number from its beginning, bytes of a write).
    Returns whether the firing is stored when the machine is back, before it fires again.
    """
    machine = Machine(stage, FaultDisk())
    broker = await machine.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    kept = await put(stage, broker)
    begin_ms = kept.schedule.made_ms
    await stage.clock.advance(begin_ms + 9_990 - stage.clock.now_ms())
    machine.disk.cut = machine.disk.operations + cut[0], cut[1]
    tick = broker.schedules.tick

    def ticked() -> int:
        wait_ms = tick()
        if snapshot and broker.schedules._storing:
            broker.runtime.spawn(snapshots(broker), name="snapshot")
        return wait_ms

    broker.schedules.tick = ticked  # type: ignore[method-assign]  # a snapshot in the step of the append
    await stage.clock.advance(100)
    await machine.stops(keep, random.Random(str((cut, keep))))
    broker = await machine.opened()
    [kept] = broker.schedules.table
    found, state = len(await messages(broker)), kept.schedule
    assert (state.fired, state.done_ms - begin_ms) == ((1, 10_000) if found else (0, 0)), "half of it is there"
    await stage.begin(broker)
    await stage.clock.advance(10_000)
    assert await times(broker, begin_ms) == [10, 20], "one message for each time"
    await stage.end(broker)
    return (bool(found),)


async def snapshots(broker: Broker) -> None:
    with contextlib.suppress(Error):  # the machine stopped
        await broker.ledger.store.save_snapshot(broker.ledger._state())


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("keep", list(Keep))
async def test_wherever_the_machine_stops_each_time_has_one_message(stage: Any, keep: Keep, snapshot: bool) -> None:
    numbers, sizes = (range(24), (0, 200)) if snapshot else (range(4), (0, 1, 60, 200, 350, 500, 1 << 20))
    seen = {await story(stage, (number, size), keep, snapshot=snapshot) for number in numbers for size in sizes}
    assert seen == {(False,), (True,)}, "it stopped before the write, and after it"
