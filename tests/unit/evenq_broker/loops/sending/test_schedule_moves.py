"""Schedules move from broker to broker, and each time has one message, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.sending.schedules import TIME_PROPERTY
from evenq_broker.loops.resizing.resizing import drain
from evenq_broker.loops.sending import schedule_moves
from evenq_broker.settings import StoreSettings

from evenq.errors import (
    BadRequest,
    ConnectionFailed,
    Error,
    HaNotAvailable,
    InternalError,
    NotFound,
    PreconditionFailed,
)
from evenq.model.lanes import home_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

ADMIN = "/evenq.v1.Admin/"
POINTS = ("schedule.given", "schedule.fetched", "schedule.taken", "schedule.confirmed")


class World:
    """Brokers on their files, with topic `t` and schedule `s`, which fires every 10 s and makes up for each time."""

    stage: Any

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.brokers: dict[str, Broker] = {}
        self.fails_at = ""
        monkeypatch.setattr(schedule_moves, "passing", self._passing)

    def _passing(self, point: str) -> None:
        if point == self.fails_at:
            raise InternalError(f"it ends at {point}")

    async def start(self, stage: Any, names: str = "ab", **fields: Any) -> None:
        self.stage = stage
        for name in names:
            await self._begin(name)
            await self.stage.during(self.brokers[name].catalog.create_topic("t", queues=1))
        self.know()
        made = {"topic": "t", "name": "s", "every_ms": 10_000, "body": b"x", "missed": "all", **fields}
        await self.call("Put", schedule=admin_pb2.Schedule(**made))
        self.begin_ms = (await self.states())[0].made_ms

    async def _begin(self, name: str) -> None:
        store = StoreSettings(path=str(self.folder / name))
        self.brokers[name] = await self.stage.broker(name, store=store)

    async def restart(self, *names: str) -> None:
        for name in names:
            await self.stage.end(self.brokers[name])
            await self._begin(name)
        self.know()

    def know(self) -> None:
        views = [broker.cluster.own.now() for broker in self.brokers.values()]
        for broker in self.brokers.values():
            broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
            broker.cluster.routes_changed()

    async def lose(self, name: str) -> None:
        """Ends a broker, and the others forget it."""
        await self.stage.end(self.brokers[name])
        del self.brokers[name]
        self.know()
        for broker in self.brokers.values():
            await self.stage.during(broker.cluster.known.forget(name))

    async def come_back(self, name: str) -> None:
        await self._begin(name)
        self.know()

    async def call(self, what: str, broker: str = "a", **fields: Any) -> Any:
        named = {} if what == "Put" else {"topic": "t", "name": "s"}
        request = getattr(admin_pb2, f"{what}ScheduleRequest")(**named, **fields)
        response = getattr(admin_pb2, f"{what}ScheduleResponse")
        return await self.stage.call(f"{ADMIN}{what}Schedule", request, response, broker=broker)

    async def move(self, to: str, broker: str = "a") -> Any:
        return (await self.call("Move", broker, to=to)).state

    async def states(self, broker: str = "a") -> list[Any]:
        request = admin_pb2.ListSchedulesRequest(topic="t", name="s")
        answer = await self.stage.call(ADMIN + "ListSchedules", request, admin_pb2.ListSchedulesResponse, broker=broker)
        return list(answer.schedules)

    def places(self) -> dict[str, str]:
        """Where the schedule is, and whether it fires there."""
        return {
            name: "moving" if kept.schedule.moving_to else "fires"
            for name, broker in self.brokers.items()
            for kept in broker.schedules.table
        }

    async def times(self) -> list[int]:
        """The times of all firings at all brokers, in s from the creation, ascending."""
        found = []
        for broker in self.brokers.values():
            topic = broker.catalog.topics.get("t")
            assert topic is not None
            low, high = broker.ledger.store.queue_range(topic.topic_id, 0)
            for one in await broker.ledger.store.read_at(topic.topic_id, 0, list(range(low, high))):
                message = definition_pb2.Message.FromString(one.head)
                found.append((int(message.user_properties[TIME_PROPERTY]) - self.begin_ms) // 1_000)
        return sorted(found)

    async def other(self) -> tuple[str, str]:
        """The broker that keeps it, and the other one of two."""
        [name] = self.places()
        return name, "b" if name == "a" else "a"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


async def test_a_moved_schedule_continues_with_all_that_it_has(stage: Any, world: World) -> None:
    await world.start(stage, tag="a", keys=["k"], properties={"p": "v"})
    source, target = await world.other()
    await world.stage.clock.advance(25_000)
    [before] = await world.states()
    moved = await world.move(target, source)
    assert (moved.broker_name, moved.fired, moved.made_ms, moved.schedule) == (
        target,
        2,
        before.made_ms,
        before.schedule,
    )
    assert world.places() == {target: "fires"}
    await world.stage.clock.advance(20_000)
    assert await world.times() == [10, 20, 30, 40]
    assert (await world.move(target, target)).broker_name == target, "it is there"
    await world.restart("a", "b")
    assert world.places() == {target: "fires"}
    assert (await world.move("", source)).broker_name == source, "the only other one"
    await world.call("Pause", paused=True)
    assert (await world.move(target)).paused
    await world.call("Delete")
    assert world.places() == {}


@pytest.mark.parametrize("restarted", ["", "a", "b", "ab"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("back", [False, True])
async def test_a_move_that_ends_anywhere_is_repeated_or_taken_back(
    stage: Any, world: World, point: str, restarted: str, back: bool
) -> None:
    await world.start(stage)
    source, target = await world.other()
    await world.stage.clock.advance(25_000)
    world.fails_at = point
    with pytest.raises(Error):
        await world.move(target)
    world.fails_at = ""
    await world.restart(*restarted)
    assert "moving" not in world.places().values() or world.places()[source] == "moving"
    await world.stage.clock.advance(10_000)
    taken = POINTS.index(point) >= 2
    found = await world.times()
    assert found == [10, 20] + [30] * taken, "it fires where it is stored, and nowhere before"
    await world.move(source if back else target)
    assert world.places() == {source if back else target: "fires"}
    await world.stage.clock.advance(20_000)
    found = await world.times()
    until = 50
    gap = [30] if back and not taken else []  # a move that is undone counts from then
    assert [one for one in range(10, until + 1, 10) if one not in gap] == found or (
        gap and len(set(found)) == len(found)
    )
    assert len(await world.states()) == 1


@pytest.mark.parametrize("point", ["", *POINTS[2:]])
@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_move_whose_answer_is_lost_is_repeated_without_naming_the_broker(
    stage: Any, world: World, names: str, drained: bool, point: str
) -> None:
    await world.start(stage, names)
    [source] = world.places()
    if drained:
        await world.stage.during(drain(world.brokers[source].kernel, on=True))
        world.know()
        target = home_of("s", [name for name in names if name != source])
    else:  # to the home of its name, which is another broker now
        target, source = source, next(name for name in names if name != source)
        await world.move(source)
    world.fails_at = point
    with contextlib.suppress(InternalError):
        await world.move("", "b")
    world.fails_at = ""
    assert world.places()[target] == "fires"
    for broker in names:
        assert (await world.move("", broker)).broker_name == target
        assert world.places() == {target: "fires"}
    [kept] = world.brokers[target].schedules.table
    assert (kept.schedule.came_from, kept.schedule.hop) == ("", 1 if drained else 2)


@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_a_move_to_a_named_broker_is_finished_by_one_that_names_none(
    stage: Any, world: World, names: str
) -> None:
    await world.start(stage, names)
    [source] = world.places()
    target = next(name for name in names if name != source)
    world.fails_at = "schedule.taken"
    with pytest.raises(InternalError):
        await world.move(target)
    world.fails_at = ""
    assert world.places() == {source: "moving", target: "fires"}
    assert (await world.move("")).broker_name == target
    assert world.places() == {target: "fires"}


async def test_a_drained_broker_gives_its_schedule_away_before_others_know_that_it_is_drained(
    stage: Any, world: World
) -> None:
    await world.start(stage, "abc")
    [source] = world.places()
    await world.stage.during(drain(world.brokers[source].kernel, on=True))
    others = [name for name in "abc" if name != source]
    assert (await world.move("", others[0])).broker_name == home_of("s", others)
    assert world.places() == {home_of("s", others): "fires"}


async def test_a_forgotten_broker_that_returns_loses_what_it_had_given_away(stage: Any, world: World) -> None:
    await world.start(stage)
    source, target = await world.other()
    world.fails_at = "schedule.taken"
    with pytest.raises(InternalError):
        await world.move(target)
    world.fails_at = ""
    await world.lose(source)
    await world.move("", target)
    [kept] = world.brokers[target].schedules.table
    assert kept.schedule.came_from == ""
    await world.come_back(source)
    assert world.places() == {source: "moving", target: "fires"}
    assert (await world.move("", target)).broker_name == target
    assert world.places() == {target: "fires"}


async def forgotten_giver(world: World) -> tuple[str, str, str]:
    """A broker that gave the schedule away and was forgotten before it learned that the move ended, the one that took
    it, and a third one.
    """
    [source] = world.places()
    target, third = [name for name in "abc" if name != source]
    world.fails_at = "schedule.taken"
    with pytest.raises(InternalError):
        await world.move(target)
    world.fails_at = ""
    await world.lose(source)
    await world.move(target, target)
    return source, target, third


async def test_a_forgotten_giver_takes_the_schedule_from_where_it_fires_now(stage: Any, world: World) -> None:
    await world.start(stage, "abc")
    source, target, third = await forgotten_giver(world)
    await world.move(third, target)
    await world.come_back(source)
    assert world.places() == {source: "moving", third: "fires"}
    await world.stage.clock.advance(25_000)
    assert (await world.move(source, target)).broker_name == source
    assert world.places() == {source: "fires"}
    await world.stage.clock.advance(10_000)
    assert await world.times() == [10, 20, 30]


async def test_what_a_forgotten_giver_still_offers_does_not_replace_a_later_state(stage: Any, world: World) -> None:
    await world.start(stage, "abc")
    source, target, third = await forgotten_giver(world)
    await world.stage.clock.advance(25_000)
    world.fails_at = "schedule.fetched"
    with pytest.raises(InternalError):
        await world.move(third, target)
    world.fails_at = ""
    await world.come_back(source)
    assert world.places() == {source: "moving", target: "moving"}
    await world.move(target, third)
    assert world.places() == {target: "fires"}
    await world.stage.clock.advance(10_000)
    assert await world.times() == [10, 20, 35], "the move to a broker that has not stored it is undone"


@pytest.mark.parametrize("seed", range(12))
async def test_random_moves_and_faults_repeat_no_time(stage: Any, world: World, seed: int) -> None:
    rng = random.Random(seed)
    await world.start(stage, "abc")
    for _ in range(12):
        world.fails_at = rng.choice((*POINTS, "", ""))
        with contextlib.suppress(Error):
            await world.move(rng.choice("abc"), rng.choice("abc"))
        world.fails_at = ""
        if rng.random() < 0.4:
            await world.restart(*rng.sample("abc", rng.randint(1, 3)))
        await world.stage.clock.advance(rng.randrange(15_000))
        firing = [name for name, state in world.places().items() if state == "fires"]
        assert len(firing) <= 1
    to = next((one.moving_to for one in await world.states() if one.moving_to), "") or "a"
    await world.move(to)
    assert world.places() == {to: "fires"}
    await world.stage.clock.advance(11_000)
    found = await world.times()
    assert len(set(found)) == len(found)


async def test_while_it_moves_it_is_not_changed_and_its_name_stays_taken(stage: Any, world: World) -> None:
    await world.start(stage)
    _, target = await world.other()
    world.fails_at = "schedule.fetched"
    with pytest.raises(InternalError):
        await world.move(target)
    [state] = await world.states()
    assert (state.moving_to, state.next_ms) == (target, 0)
    assert f"being moved to broker {target}" in state.problem
    assert "`evenq schedule move TOPIC s` continues" in state.problem
    again = admin_pb2.Schedule(topic="t", name="s", every_ms=20_000, body=b"y")
    for broker in "ab":
        for what, fields in (("Pause", {"paused": True}), ("Delete", {}), ("Run", {}), ("Put", {"schedule": again})):
            with pytest.raises(PreconditionFailed, match="being moved"):
                await world.call(what, broker, **fields)
    world.fails_at = ""
    assert (await world.move("")).broker_name == target, "it continues there"
    [kept] = world.brokers[target].schedules.table
    assert kept.schedule.came_from == ""


async def test_one_that_just_came_is_not_deleted_while_the_giver_still_offers_it(stage: Any, world: World) -> None:
    await world.start(stage)
    source, target = await world.other()
    world.fails_at = "schedule.taken"
    with pytest.raises(InternalError):
        await world.move(target)
    world.fails_at = ""
    world.stage.net.stop(f"{source}:8081")
    with pytest.raises((ConnectionFailed, HaNotAvailable)):
        await world.call("Delete", target)
    assert world.places()[target] == "fires"
    world.stage.net.serve(f"{source}:8081", world.brokers[source].rpcs())
    await world.call("Delete", target)
    assert world.places() == {}


async def test_one_that_is_moving_is_given_to_no_third_broker(stage: Any, world: World) -> None:
    await world.start(stage, "abc")
    [source] = world.places()
    target, third = [name for name in "abc" if name != source]
    world.fails_at = "schedule.fetched"
    with pytest.raises(InternalError):
        await world.move(target)
    world.fails_at = ""
    with pytest.raises(PreconditionFailed, match=f"to broker {third}"):
        await world.move(third)
    assert (await world.move(target)).broker_name == target
    assert (await world.move(third)).broker_name == third
    assert world.places() == {third: "fires"}


async def test_it_leaves_a_drained_broker_and_goes_to_no_other_that_takes_no_messages(stage: Any, world: World) -> None:
    await world.start(stage)
    source, target = await world.other()
    await world.stage.during(drain(world.brokers[target].kernel, on=True))
    world.know()
    with pytest.raises(BadRequest, match="does not accept messages of topic t"):
        await world.move(target)
    assert (await world.move("")).broker_name == source, "it would keep a new one"
    with pytest.raises(BadRequest, match="'nowhere' does not accept"):
        await world.move("nowhere")
    await world.stage.during(drain(world.brokers[source].kernel, on=True))
    world.know()
    with pytest.raises(PreconditionFailed, match=f"no broker accepts messages of topic t, so broker {source} keeps"):
        await world.move("")
    await world.stage.during(drain(world.brokers[target].kernel, on=False))
    world.know()
    await world.stage.clock.advance(25_000)
    assert (await world.move("")).broker_name == target
    await world.stage.clock.advance(6_000)
    assert await world.times() == [10, 20, 30], "also those of the time without a broker"
    with pytest.raises(NotFound):
        await world.stage.call(
            f"{ADMIN}MoveSchedule",
            admin_pb2.MoveScheduleRequest(topic="t", name="absent"),
            admin_pb2.MoveScheduleResponse,
        )


async def test_a_full_disk_of_the_taker_leaves_the_schedule_with_the_giver(
    stage: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(stage)
    source, target = await world.other()
    future = asyncio.get_running_loop().create_future()
    future.set_exception(HaNotAvailable("copies are missing"))
    with monkeypatch.context() as patched:
        patched.setattr(world.brokers[target].ledger.journal, "record_once", lambda *_: future)
        with pytest.raises(HaNotAvailable, match="copies are missing"):
            await world.move(target)
    assert world.places() == {source: "moving"}
    await world.move(target)
    assert world.places() == {target: "fires"}
