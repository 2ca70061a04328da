"""Calls about schedules: at any broker, once in the cluster, by users who may publish."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_broker.core.sending.schedules import TIME_PROPERTY
from evenq_broker.loops.resizing.resizing import drain
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import (
    BadRequest,
    Forbidden,
    HaNotAvailable,
    NotFound,
    StoreFull,
    TooManyRequests,
    TopicNotFound,
)
from evenq.model import MessageType
from evenq.model.lanes import home_of
from evenq.serving.auth.calls import CALLS
from evenq.wire.stubs.evenq.v1 import admin_pb2

ADMIN = "/evenq.v1.Admin/"


async def put(stage: Any, name: str = "s", *, topic: str = "t", broker: str = "a", **fields: Any) -> Any:
    rule = {} if "cron" in fields else {"every_ms": 10_000}
    made = admin_pb2.Schedule(**{"topic": topic, "name": name, "body": b"x", **rule, **fields})
    request = admin_pb2.PutScheduleRequest(schedule=made)
    answer = await stage.call(ADMIN + "PutSchedule", request, admin_pb2.PutScheduleResponse, broker=broker)
    return answer.state


async def listed(stage: Any, topic: str = "t", name: str = "", *, broker: str = "a") -> Any:
    request = admin_pb2.ListSchedulesRequest(topic=topic, name=name)
    return await stage.call(ADMIN + "ListSchedules", request, admin_pb2.ListSchedulesResponse, broker=broker)


async def do(stage: Any, what: str, name: str = "s", *, topic: str = "t", broker: str = "a", **fields: Any) -> Any:
    request = getattr(admin_pb2, f"{what}ScheduleRequest")(topic=topic, name=name, **fields)
    return await stage.call(
        f"{ADMIN}{what}Schedule", request, getattr(admin_pb2, f"{what}ScheduleResponse"), broker=broker
    )


def stored(*brokers: Any, topic: str = "t") -> list[int]:
    """The number of messages of the topic at each broker."""
    known = [(one, one.catalog.topics.get(topic)) for one in brokers]
    return [
        sum(one.ledger.store.queue_range(at.topic_id, queue)[1] for queue in range(at.write_queues))
        for one, at in known
    ]


async def two_brokers(stage: Any, **topic: Any) -> list[Any]:
    brokers = [await stage.broker(name) for name in "ab"]
    for broker in brokers:
        await stage.during(broker.catalog.create_topic("t", queues=1, **topic))
    views = [broker.cluster.own.now() for broker in brokers]
    for broker in brokers:
        broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
        broker.cluster.routes_changed()
    return brokers


async def test_a_schedule_is_made_listed_paused_resumed_run_and_deleted(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    state = await put(stage, body=b"body", tag="a", keys=["k"], properties={"p": "v"}, missed="all", missed_max=5)
    assert (state.schedule.body, state.schedule.missed, state.next_ms) == (b"body", "all", state.made_ms + 10_000)
    assert (
        await put(stage, body=b"body", tag="a", keys=["k"], properties={"p": "v"}, missed="all", missed_max=5)
    ) == state
    await put(stage, "another", cron=" 0  6 * * MON-FRI   Europe/Berlin ")
    both = (await listed(stage)).schedules
    assert [(one.schedule.name, one.schedule.body, one.body_bytes, one.broker_name) for one in both] == [
        ("another", b"", 1, "a"),
        ("s", b"", 4, "a"),
    ]
    assert both[0].schedule.cron == "0 6 * * MON-FRI Europe/Berlin"
    [whole] = (await listed(stage, name="s")).schedules
    assert (whole.schedule.body, dict(whole.schedule.properties)) == (b"body", {"p": "v"})
    assert len((await listed(stage, "")).schedules) == 2
    assert (await do(stage, "Pause", paused=True)).state.paused
    await stage.clock.advance(30_000)
    assert stored(broker) == [0]
    state = (await do(stage, "Pause", paused=False)).state
    assert (state.paused, state.fired, state.passed) == (False, 0, 0)
    await stage.clock.advance(10_500)
    assert stored(broker) == [1]
    assert len((await do(stage, "Run")).message_id) == 34
    assert stored(broker) == [2]
    await do(stage, "Delete")
    assert [one.schedule.name for one in (await listed(stage)).schedules] == ["another"]
    for what in ("Delete", "Run", "Pause"):
        with pytest.raises(NotFound, match="topic t has no schedule 's'; see `evenq schedule list t`"):
            await do(stage, what)


async def test_a_repeated_run_with_its_message_id_stores_one_message(stage: Any) -> None:
    broker = await stage.broker(duplicates_window_ms=60_000)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await put(stage)
    for _ in range(3):
        assert (await do(stage, "Run", message_id="once")).message_id == "once"
    assert stored(broker) == [1]
    [found] = await stage.during(broker.ledger.store.read_at(broker.catalog.topics.get("t").topic_id, 0, [0]))
    assert TIME_PROPERTY.encode() in found.head


async def test_any_broker_answers_and_a_name_is_once_in_the_cluster(stage: Any) -> None:
    a, b = await two_brokers(stage)
    for number in range(6):
        await put(stage, f"s{number}", broker="ab"[number % 2])
    counts = [len(one.schedules.table) for one in (a, b)]
    assert sum(counts) == 6
    assert 0 < counts[0] < 6, "both brokers keep some"
    for number in range(6):
        await put(stage, f"s{number}", broker="ba"[number % 2], body=b"y")
        assert (await do(stage, "Pause", f"s{number}", broker="ab"[number % 2], paused=True)).state.paused
        await do(stage, "Run", f"s{number}", broker="ab"[number % 2])
    for broker in "ab":
        assert [one.schedule.name for one in (await listed(stage, broker=broker)).schedules] == [
            f"s{number}" for number in range(6)
        ]
        assert [one.schedule.body for one in (await listed(stage, name="s3", broker=broker)).schedules] == [b"y"]
    assert stored(a, b) == counts, "each message is at the broker of its schedule"
    for number in range(6):
        await do(stage, "Delete", f"s{number}", broker="ab"[number % 2])
    assert [len(one.schedules.table) for one in (a, b)] == [0, 0]


async def test_puts_of_one_name_at_the_same_time_make_one_schedule(stage: Any) -> None:
    a, b = await two_brokers(stage)
    await asyncio.gather(*(put(stage, broker=one) for one in "abab"))
    assert len(a.schedules.table) + len(b.schedules.table) == 1


async def test_the_messages_of_a_group_are_at_the_home_of_the_group(stage: Any) -> None:
    a, b = await two_brokers(stage, message_type=MessageType.FIFO)
    for number in range(4):
        await put(stage, f"s{number}", message_group="g", broker="ab"[number % 2])
    assert sorted([len(a.schedules.table), len(b.schedules.table)]) == [0, 4]


async def test_a_schedule_keeps_its_message_group_whose_home_is_its_broker(stage: Any) -> None:
    a, b = await two_brokers(stage, message_type=MessageType.FIFO)
    groups = {home_of(f"g{number}", "ab"): f"g{number}" for number in range(8)}
    await put(stage, message_group=groups["a"])
    for group in (groups["b"], groups["a"] + "x"):
        with pytest.raises(
            BadRequest, match=rf"message group '{groups['a']}'.*'{group}'; delete it and create it again"
        ):
            await put(stage, message_group=group, broker="b")
    assert (await put(stage, message_group=groups["a"], body=b"y")).schedule.body == b"y"
    await do(stage, "Delete")
    await put(stage, message_group=groups["b"])
    assert [len(one.schedules.table) for one in (a, b)] == [0, 1]


async def test_a_drained_broker_that_left_with_schedules_is_missed(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = [await stage.broker(name, nameservers="ns:1") for name in "ab"]
    await stage.until(lambda: all(len(one.catalog.routes.brokers()) == 2 for one in (a, b)))
    for one in (a, b):
        await stage.during(one.catalog.create_topic("t", queues=1))
    await put(stage)
    at, other = (a, b) if len(a.schedules.table) else (b, a)
    await stage.during(drain(at.kernel, on=True))
    await stage.during(at.leave())
    await stage.end(at)
    await stage.until(lambda: len(other.catalog.routes.brokers()) == 1)
    name = other.runtime.settings.broker_name
    with pytest.raises(HaNotAvailable, match="may be at a broker that does not answer"):
        await put(stage, body=b"y", broker=name)
    assert len(other.schedules.table) == 0


async def test_a_new_name_is_refused_while_a_broker_does_not_answer(stage: Any) -> None:
    a, b = await two_brokers(stage)
    await put(stage, "known")
    [at] = [one for one in (a, b) if len(one.schedules.table)]
    other = b if at is a else a
    name = at.runtime.settings.broker_name
    stage.net.stop(f"{other.runtime.settings.broker_name}:8081")
    with pytest.raises(HaNotAvailable, match="may be at a broker that does not answer"):
        await put(stage, "new", broker=name)
    await put(stage, "known", body=b"y", broker=name)
    assert (await listed(stage, broker=name)).silent


async def test_what_is_not_valid_is_refused(stage: Any) -> None:
    broker = await stage.broker(auto_create_topics=True)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    with pytest.raises(TopicNotFound, match="create it with `evenq topic create absent`"):
        await put(stage, topic="absent")
    with pytest.raises(TopicNotFound):
        await listed(stage, "absent")
    with pytest.raises(Forbidden, match="only the broker writes to %DLQ%g"):
        await put(stage, topic="%DLQ%g")
    with pytest.raises(BadRequest, match="'two', it is one of one, skip, all"):
        await put(stage, missed="two")
    with pytest.raises(BadRequest, match="without its topic"):
        await listed(stage, "", "s")
    with pytest.raises(BadRequest, match="the minute is '61'"):
        await put(stage, cron="61 * * * *")


def test_changes_are_in_the_audit_log() -> None:
    audited = {name for name, row in CALLS.items() if row.access.audited}
    assert audited == {f"{ADMIN}{what}Schedule" for what in ("Put", "Pause", "Run", "Delete", "Move")}


@pytest.mark.parametrize("what", ["Move", "Delete", "Pause"])
async def test_an_answer_that_rests_on_a_refused_record_waits_for_it(
    stage: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A start would not know the change: a deleted schedule would fire again."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    fields = {"paused": True} if what == "Pause" else {}

    def full(_: bytes) -> Any:
        raise StoreFull("no space")

    with monkeypatch.context() as patch:
        if what == "Move":
            patch.setattr(broker.ledger.store, "append_state", full)
            with pytest.raises(TooManyRequests, match="no space"):
                await put(stage)
        else:
            await put(stage)
            patch.setattr(broker.ledger.store, "append_state", full)
        for _ in range(2):
            with pytest.raises(TooManyRequests, match="no space"):
                await do(stage, what, **fields)
    if what == "Delete":
        with pytest.raises(NotFound):
            await do(stage, what)
    else:
        await do(stage, what, **fields)
    assert broker.ledger.journal.safe() is None
