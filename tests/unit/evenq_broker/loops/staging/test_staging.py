"""Staged rows in one broker and in two: invisible, then published once or dropped, across restarts and silence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.staging.staged import StagedRows
from evenq_broker.core.state.records import decode
from evenq_broker.core.state.staging_records import StagedEnded
from evenq_broker.loops.staging.staging import _groups
from evenq_broker.settings import StagingSettings, StoreSettings

from evenq.errors import BadRequest, PreconditionFailed, StoreFull, TooManyRequests
from evenq.model import MessageType
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import staging_pb2
from tests.unit.evenq_broker.loops.state.test_retention import files_go, minutes_pass, publish
from tests.unit.evenq_broker.staged import ABANDON, BEGIN, DECIDE, STAGE, block, decide, named, stage_rows


async def begun(stage: Any, broker: str = "a", **request: Any) -> Any:
    asked = staging_pb2.BeginRequest(query_id="q", topics=["t"], **request)
    return await stage.call(BEGIN, asked, staging_pb2.BeginResponse, broker)


async def staged(stage: Any, rows: Any, *, at: str = "a", **more: Any) -> Any:
    return await stage.call(STAGE, stage_rows(rows, **more), staging_pb2.StageResponse, at)


async def decided(stage: Any, winners: Any, *, at: str = "a", **more: Any) -> Any:
    return await stage.call(DECIDE, decide(winners, **more), staging_pb2.DecideResponse, at)


async def bodies(stage: Any, broker: Any, topic: str = "t") -> list[str]:
    found = broker.catalog.topics.get(topic)
    read: list[Any] = []
    for queue_id in range(found.write_queues):
        low, high = broker.ledger.store.queue_range(found.topic_id, queue_id)
        read += await stage.during(broker.ledger.store.read_at(found.topic_id, queue_id, list(range(low, high))))
    return [definition_pb2.Message.FromString(message.head).body.decode() for message in read]


async def one(stage: Any, **settings: Any) -> Any:
    broker = await stage.broker(poll_default_ms=1, **settings)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    return broker


async def test_staged_rows_are_invisible_until_their_batch_is_decided_and_then_come_in_order(stage: Any) -> None:
    broker = await one(stage)
    await begun(stage, coordinator="a")
    await staged(stage, block(["three", "four"]), sequence=1)
    await staged(stage, block(["one", "two"]), sequence=0)
    await staged(stage, block(["five"]), token="b", partition=1)
    assert await bodies(stage, broker) == []
    assert broker.staging.table.rows == 5
    await decided(stage, {"a": ["a"], "b": ["a"]})
    assert await bodies(stage, broker) == ["one", "two", "three", "four", "five"]
    assert (broker.staging.table.rows, broker.staging.table.bytes) == (0, 0)
    broker.staging.table.check()


async def test_a_batch_is_decided_once_and_losers_are_dropped(stage: Any) -> None:
    broker = await one(stage)
    await staged(stage, block(["won"]), token="a")
    await staged(stage, block(["lost"]), token="b")
    assert not (await decided(stage, {"a": ["a"]})).already
    assert (await decided(stage, {"b": ["a"]})).already
    assert await bodies(stage, broker) == ["won"]
    assert broker.staging.stats.dropped_stagings == 1
    assert (await begun(stage, batch_id=0)).decided
    assert not (await begun(stage, batch_id=1)).decided


async def test_a_block_that_is_staged_twice_counts_once_also_when_it_comes_after_the_decision(stage: Any) -> None:
    broker = await one(stage)
    for _ in range(2):
        await staged(stage, block(["one"]))
    await decided(stage, {"a": ["a"]})
    await staged(stage, block(["one"]))
    await decided(stage, {"a": ["a"]})
    assert await bodies(stage, broker) == ["one"]
    assert broker.staging.table.rows == 0


async def test_staged_rows_and_decisions_survive_a_restart(stage: Any, tmp_path: Path) -> None:
    settings = {"store": StoreSettings(path=tmp_path)}
    broker = await one(stage, **settings)
    await begun(stage, coordinator="a")
    await staged(stage, block(["zero"]))
    await decided(stage, {"a": ["a"]})
    await staged(stage, block(["one"]), batch=1, token="b")
    await staged(stage, block(["lost"]), batch=1, token="c")
    for _ in range(2):  # once from the log, once from a snapshot
        await stage.end(broker)
        broker = await stage.broker(poll_default_ms=1, **settings)
        broker.staging.table.check()
        assert broker.staging.table.rows == 2
        assert (await begun(stage, batch_id=0)).decided
    await decided(stage, {"b": ["a"]}, batch=1)
    assert await bodies(stage, broker) == ["zero", "one"]


async def test_a_decision_that_a_crash_left_is_carried_out_by_the_next_start(stage: Any, tmp_path: Path) -> None:
    settings = {"store": StoreSettings(path=tmp_path)}
    broker = await one(stage, **settings)
    await staged(stage, block(["one"]))
    await stage.during(broker.staging.deciding.decide("q", 0, {named("a").hex(): ["a"]}))
    assert await bodies(stage, broker) == []
    await stage.end(broker)
    broker = await stage.broker(poll_default_ms=1, **settings)
    await stage.until(lambda: broker.staging.deciding.table.open_count == 0)
    assert await bodies(stage, broker) == ["one"]


async def test_rows_without_a_decision_are_dropped_after_their_time_and_can_never_win_then(stage: Any) -> None:
    broker = await one(stage, staging=StagingSettings(timeout_ms=20_000))
    await staged(stage, block(["late"]))
    await stage.until(lambda: broker.staging.table.rows == 0)
    assert stage.clock.monotonic_ms() >= 20_000
    with pytest.raises(PreconditionFailed, match="were dropped"):
        await decided(stage, {"a": ["a"]})
    await staged(stage, block(["again"]), token="b")
    await decided(stage, {"b": ["a"]})
    assert await bodies(stage, broker) == ["again"]


async def test_abandoned_rows_are_dropped_and_those_of_a_decided_batch_are_not(stage: Any) -> None:
    broker = await one(stage)
    await staged(stage, block(["no"]), token="a")
    await staged(stage, block(["yes"]), token="b")
    asked = staging_pb2.AbandonRequest(query_id="q", topics=["t"], tokens=[named("a")])
    assert not (await stage.call(ABANDON, asked, staging_pb2.AbandonResponse)).decided
    await stage.until(lambda: broker.staging.table.rows == 1)
    await decided(stage, {"b": ["a"]})
    asked = staging_pb2.AbandonRequest(query_id="q", topics=["t"], tokens=[named("b")])
    assert (await stage.call(ABANDON, asked, staging_pb2.AbandonResponse)).decided
    assert await bodies(stage, broker) == ["yes"]


async def test_a_query_and_all_queries_have_limits_that_say_what_to_do(stage: Any) -> None:
    await one(stage, staging=StagingSettings(query_bytes_max=3_000, bytes_max=4_000))
    await staged(stage, block(["x" * 2_500]))
    with pytest.raises(BadRequest, match=r"staging.query_bytes_max.*maxOffsetsPerTrigger"):
        await staged(stage, block(["x" * 2_500]), sequence=1)
    with pytest.raises(TooManyRequests, match=r"staging.bytes_max"):
        await staged(stage, block(["x" * 2_500]), query="other", token="o")


async def test_a_batch_larger_than_a_group_is_published_group_by_group_in_order(stage: Any) -> None:
    broker = await one(stage, staging=StagingSettings(group_bytes=1_000))
    wanted = [f"{number} {'x' * 300}" for number in range(20)]
    for sequence, body in enumerate(wanted):
        await staged(stage, block([body]), sequence=sequence)
    await decided(stage, {"a": ["a"]})
    assert await bodies(stage, broker) == wanted


async def test_delayed_rows_become_timers_and_priority_rows_find_their_queue(stage: Any) -> None:
    broker = await one(stage)
    await stage.during(broker.catalog.create_topic("late", queues=1, message_type=MessageType.DELAY))
    await stage.during(broker.catalog.create_topic("urgent", queues=3, message_type=MessageType.PRIORITY))
    due_ms = stage.clock.now_ms() + 5_000
    await staged(stage, block(["tick"], delivery_ms=[due_ms]), topic="late")
    await staged(stage, block(["low", "high"], priorities=[-1, 2]), topic="urgent", sequence=1)
    await decided(stage, {"a": ["a"]}, topics=["late", "urgent"])
    assert await bodies(stage, broker, "urgent") == ["low", "high"]
    assert broker.ledger.store.queue_range(broker.catalog.topics.get("urgent").topic_id, 2) == (0, 1)
    assert await bodies(stage, broker, "late") == []
    await stage.until(lambda: broker.ledger.store.queue_range(broker.catalog.topics.get("late").topic_id, 0) == (0, 1))
    assert stage.clock.now_ms() >= due_ms


async def test_rows_with_a_delivery_time_do_not_change_the_order_of_those_around_them(stage: Any) -> None:
    broker = await stage.broker(poll_default_ms=1)
    await stage.during(broker.catalog.create_topic("t", queues=1, message_type=MessageType.MIXED))
    later_ms = stage.clock.now_ms() + 5_000
    await staged(stage, block(["1", "2"]), sequence=0)
    await staged(stage, block(["3", "later", "4"], delivery_ms=[0, later_ms, 0]), sequence=1)
    await staged(stage, block(["5"]), sequence=2)
    await decided(stage, {"a": ["a"]})
    assert await bodies(stage, broker) == ["1", "2", "3", "4", "5"]
    assert broker.staging.stats.published_rows == 6
    await stage.until(lambda: broker.ledger.store.queue_range(broker.catalog.topics.get("t").topic_id, 0)[1] == 6)
    assert (await bodies(stage, broker))[-1] == "later"


async def test_rows_keep_what_they_say_of_themselves(stage: Any) -> None:
    broker = await one(stage)
    rows = block(
        ["b1", "b2", "b3"], tags=["x", "", "ü"], keys=[["k1", "k2"], [], ["k3"]],
        properties=[{"p": "v", "q": ""}, {}, {"ä": "ö"}], first_row=7,
    )  # fmt: skip
    await staged(stage, rows)
    await decided(stage, {"a": ["a"]})
    topic = broker.catalog.topics.get("t").topic_id
    found = await stage.during(broker.ledger.store.read_at(topic, 0, [0, 1, 2]))
    heads = [definition_pb2.Message.FromString(one.head) for one in found]
    systems = [definition_pb2.SystemProperties.FromString(one.system) for one in found]
    assert [dict(one.user_properties) for one in heads] == [{"p": "v", "q": ""}, {}, {"ä": "ö"}]
    assert [one.topic.name for one in heads] == ["t"] * 3
    assert [one.tag for one in systems] == ["x", "", "ü"]
    assert [list(one.keys) for one in systems] == [["k1", "k2"], [], ["k3"]]
    assert len({one.message_id for one in systems}) == 3
    assert all(len(one.message_id) == 34 and one.message_id.endswith(f"{7 + at:X}") for at, one in enumerate(systems))
    by_key = await stage.during(broker.ledger.store.find(topic, b"k3"))
    assert [one.queue_offset for one in by_key] == [2]


async def test_a_row_that_cannot_be_a_message_fails_its_block_and_is_named(stage: Any) -> None:
    broker = await one(stage)
    with pytest.raises(BadRequest, match="row 11: the message body is empty"):
        await staged(stage, block(["fine", ""], first_row=10))
    with pytest.raises(BadRequest, match=r"row 0: .*tag 'a.b'"):
        await staged(stage, block(["fine"], tags=["a|b"]))
    with pytest.raises(BadRequest, match="row 0: topic t takes NORMAL messages, this one is FIFO"):
        await staged(stage, block(["fine"], groups=["g"]))
    assert broker.staging.table.rows == 0


async def test_two_brokers_publish_one_decision_and_one_that_was_away_follows(stage: Any) -> None:
    first = await one(stage)
    second = await stage.broker("b", poll_default_ms=1)
    await stage.during(second.catalog.create_topic("t", queues=1))
    near(first, second)
    await staged(stage, block(["at a"]))
    await staged(stage, block(["at b"]), at="b")
    away = first.catalog.routes.broker
    first.catalog.routes.broker = lambda name: None if name == "b" else away(name)
    assert list((await decided(stage, {"a": ["a", "b"]})).behind) == ["b"]
    assert await bodies(stage, first) == ["at a"]
    assert await bodies(stage, second) == []
    await staged(stage, block(["next at b"]), at="b", batch=1, token="n")
    first.catalog.routes.broker = away
    await decided(stage, {"n": ["b"]}, batch=1)
    assert await bodies(stage, second) == ["at b", "next at b"]
    assert first.staging.deciding.table.open_count == 0


async def test_a_broker_that_hears_of_a_later_batch_first_asks_about_the_earlier_one(stage: Any) -> None:
    first = await one(stage)
    second = await stage.broker("b", poll_default_ms=1)
    await stage.during(second.catalog.create_topic("t", queues=1))
    near(first, second)
    await staged(stage, block(["earlier"]), at="b")
    await staged(stage, block(["later"]), at="b", batch=1, token="n")
    for batch, token in ((0, "a"), (1, "n")):
        await stage.during(first.staging.deciding.decide("q", batch, {named(token).hex(): ["b"]}))
    await stage.during(second.staging.roll_forward(("q", 1), "a", [named("n").hex()]))
    assert await bodies(stage, second) == ["earlier", "later"]


async def test_a_broker_that_missed_a_decision_asks_for_it_itself(stage: Any) -> None:
    first = await one(stage)
    second = await stage.broker("b", poll_default_ms=1)
    await stage.during(second.catalog.create_topic("t", queues=1))
    near(first, second)
    await staged(stage, block(["at b"]), at="b")
    await staged(stage, block(["lost"]), at="b", token="l")
    first.catalog.routes.broker = lambda _: None  # it cannot tell
    await decided(stage, {"a": ["b"]})
    await stage.until(lambda: second.staging.table.rows == 0)
    assert await bodies(stage, second) == ["at b"]
    assert second.staging.stats.dropped_rows == 1


async def test_retention_moves_staged_rows_and_takes_neither_them_nor_what_was_published(
    stage: Any, tmp_path: Path
) -> None:
    settings = {"store": retaining(tmp_path)}
    broker = await one(stage, **settings)
    await begun(stage, coordinator="a")
    await staged(stage, block([f"row {number}" for number in range(50)]))
    before = [block.timer_id for block in broker.staging.table.of(("q", 0))[0].in_order()]
    await publish(stage, "t", 30)
    await files_go(stage, broker)
    await minutes_pass(stage, lambda: broker.ledger.store.timers.pinned_before() != before[0])
    assert [block.timer_id for block in broker.staging.table.of(("q", 0))[0].in_order()] != before
    for restarting in (True, False):
        if restarting:
            await stage.end(broker)
            broker = await stage.broker(poll_default_ms=1, **settings)
    deleted = broker.ledger.store.stats.deleted_files
    await decided(stage, {"a": ["a"]})
    found = [body for body in await bodies(stage, broker) if body.startswith("row")]
    assert found == [f"row {number}" for number in range(50)]
    assert broker.ledger.store.timers.pinned_before() is None
    assert broker.ledger.store.stats.deleted_files == deleted


async def test_a_block_that_no_record_tells_of_goes_by_itself(stage: Any) -> None:
    """A kill between the timer and its record: the task was never answered."""
    broker = await one(stage, staging=StagingSettings(timeout_ms=5_000))
    await staged(stage, block(["unknown"]))
    broker.staging.table.end([broker.staging.table.of(("q", 0))[0].in_order()[0].put.number])
    assert broker.ledger.store.timers.stats.pending == 1
    await stage.until(lambda: broker.ledger.store.timers.stats.pending == 0)
    assert await bodies(stage, broker) == []


async def test_staged_rows_whose_coordinator_is_silent_are_kept_beyond_their_time(stage: Any) -> None:
    """Their timer fires meanwhile, and is written again."""
    first = await one(stage)
    second = await stage.broker("b", poll_default_ms=1, staging=StagingSettings(timeout_ms=5_000))
    await stage.during(second.catalog.create_topic("t", queues=1))
    near(first, second)
    there = second.catalog.routes.broker
    second.catalog.routes.broker = lambda _: None
    await staged(stage, block(["kept"]), at="b")
    await stage.during(stage.clock.sleep_ms(30_000))
    assert second.staging.table.rows == 1
    [known] = second.staging.table.of(("q", 0))[0].in_order()
    assert known.timer_id != known.put.number
    first.catalog.routes.broker = lambda _: None
    await decided(stage, {"a": ["b"]})
    second.catalog.routes.broker = there
    await stage.until(lambda: second.staging.table.rows == 0)
    assert await bodies(stage, second) == ["kept"]


async def test_a_broker_that_is_not_the_coordinator_refuses_to_decide(stage: Any) -> None:
    await one(stage)
    await begun(stage, coordinator="other")
    assert (await begun(stage, coordinator="mine")).coordinator == "other"
    with pytest.raises(PreconditionFailed, match="broker other decides for query q"):
        await decided(stage, {"a": ["a"]})


async def test_queries_that_write_nothing_are_forgotten_jobs_first(stage: Any) -> None:
    broker = await one(stage, staging=StagingSettings(timeout_ms=2_000, memory_ms=20_000, ask_interval_ms=100))
    table = broker.staging.deciding.table
    await decided(stage, {}, query="q")
    await decided(stage, {}, query="job-1")
    await stage.until(lambda: list(table.queries) == ["q"])
    await stage.until(lambda: not table.queries)
    assert stage.clock.monotonic_ms() >= 20_000


async def test_a_forgotten_coordinator_lets_its_queries_begin_anew_and_its_rows_go(stage: Any) -> None:
    broker = await one(stage)
    await begun(stage, coordinator="gone")
    await staged(stage, block(["lost"]), coordinator="gone")
    await staged(stage, block(["mine"]), query="other", token="b")
    await decided(stage, {"b": ["a", "gone"]}, query="other")
    assert broker.staging.deciding.table.open_count == 1
    broker.staging.broker_forgotten("gone")
    await stage.until(lambda: broker.staging.table.rows == 0)
    assert broker.staging.deciding.table.open_count == 0
    assert (await begun(stage, coordinator="a")).coordinator == "a"
    assert await bodies(stage, broker) == ["mine"]


async def test_rows_of_a_topic_that_was_deleted_meanwhile_go_with_it(stage: Any) -> None:
    broker = await one(stage)
    await stage.during(broker.catalog.create_topic("short", queues=1))
    await staged(stage, block(["gone"]), topic="short")
    await staged(stage, block(["stays"]), sequence=1)
    await stage.during(broker.catalog.delete_topic("short"))
    await decided(stage, {"a": ["a"]})
    assert await bodies(stage, broker) == ["stays"]
    assert broker.staging.table.rows == 0


async def test_staged_rows_are_acknowledged_only_when_their_record_is_durable(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """42: the block alone is not enough, for a start that finds no record of it drops it."""
    broker = await one(stage)
    await begun(stage, coordinator="a")
    written = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patch:
        patch.setattr(broker.ledger.journal, "record", lambda *_: written)
        [rpc] = [one for one in broker.rpcs() if one.method == STAGE]
        request = stage_rows(block(["one"])).SerializeToString()
        answer = asyncio.ensure_future(rpc.handler(request, RpcContext(STAGE, [], "127.0.0.1:1", None)))
        await stage.clock.advance(1_000)
    assert broker.staging.table.rows == 1
    assert not answer.done()
    written.set_result(None)
    assert staging_pb2.StageResponse.FromString(await stage.during(answer)).status.code == definition_pb2.OK


async def test_the_end_of_the_broker_waits_for_blocks_under_way(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await one(stage)
    await begun(stage, coordinator="a")
    written = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patch:
        patch.setattr(broker.ledger.journal, "record", lambda *_: written)
        answer = asyncio.ensure_future(staged(stage, block(["one"])))
        await stage.clock.advance(50)
    closing = asyncio.ensure_future(broker.staging.close())
    await stage.clock.advance(50)
    assert not closing.done()
    written.set_result(None)
    await stage.during(closing)
    await stage.during(answer)
    assert broker.staging.stats.staged_rows == 1


async def test_a_block_that_was_not_stored_is_forgotten_also_by_the_journal(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that found its record alone could not publish the batch."""
    broker = await one(stage)
    await begun(stage, coordinator="a")
    recorded: list[Any] = []
    record = broker.ledger.journal.record

    def refused(*_: Any, timers: Any, **__: Any) -> asyncio.Future[None]:
        timers[0].log_offset = 1 << 40
        stored = asyncio.get_running_loop().create_future()
        stored.set_exception(StoreFull("the disk is full"))
        return stored

    def noted(*ops: Any) -> asyncio.Future[None]:
        recorded.extend(ops)
        made: asyncio.Future[None] = record(*ops)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(broker.ledger.store, "append", refused)
        patch.setattr(broker.ledger.journal, "record", noted)
        with pytest.raises(TooManyRequests, match="the disk is full"):
            await staged(stage, block(["one"]))
    assert recorded[-1] == StagedEnded((1 << 40,))
    assert broker.staging.table.rows == 0


@pytest.mark.parametrize("full_again", [False, True])
async def test_a_retry_of_a_block_whose_record_was_refused_is_answered_when_the_record_is_safe(
    stage: Any, full_again: bool
) -> None:
    """A start that found the timer without the record would drop the rows."""
    broker = await one(stage)
    await begun(stage, coordinator="a")
    store, replayed, refusals = broker.ledger.store, StagedRows(), 2 if full_again else 1
    append_state = store.append_state

    def recorded(state: bytes) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise StoreFull("no space")
        for op in decode(state):
            replayed.apply(op)
        return append_state(state)

    store.append_state = recorded
    for _ in range(refusals):
        with pytest.raises(TooManyRequests, match="no space"):
            await staged(stage, block(["one"]))
    assert (broker.staging.table.rows, replayed.rows) == (1, 0)
    await staged(stage, block(["one"]))
    assert (broker.staging.table.rows, replayed.rows) == (1, 1)


async def test_what_was_recorded_of_a_block_stands_before_its_end_in_the_log(stage: Any) -> None:
    """42: in the other order a start would find the block there again."""
    broker = await one(stage)
    store, replayed, full = broker.ledger.store, StagedRows(), False
    append, append_state = store.append, store.append_state

    def appended(*entries: Any, state: bytes = b"", **more: Any) -> Any:
        if full:
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(StoreFull("no space"))
            return refused
        for op in decode(state) if state else ():
            replayed.apply(op)
        return append(*entries, state=state, **more)

    def recorded(state: bytes) -> Any:
        if full:
            raise StoreFull("no space")
        for op in decode(state):
            replayed.apply(op)
        return append_state(state)

    store.append, store.append_state = appended, recorded
    await staged(stage, block(["one"]))
    assert replayed.rows == 1
    await stage.during(broker.staging.deciding.decide("q", 0, {named("a").hex(): ["a"]}))
    full = True
    assert await stage.during(broker.staging.deciding.roll_forward("q")) == ["a"]
    assert broker.staging.table.rows == 1, "the block is there again, and its record waits for space"
    full = False
    assert await stage.during(broker.staging.deciding.roll_forward("q")) == []
    await stage.clock.advance(1_000)
    assert (broker.staging.table.rows, replayed.rows) == (0, 0)


async def test_what_a_full_disk_refuses_stays_staged_and_undecided(stage: Any) -> None:
    broker = await one(stage)
    await staged(stage, block(["one"]))
    append, append_state = broker.ledger.store.append, broker.ledger.store.append_state

    def refuse(*_: Any, **__: Any) -> Any:
        raise StoreFull("no space")

    await begun(stage, coordinator="a")
    broker.ledger.store.append_state = refuse
    with pytest.raises(TooManyRequests, match="no space"):
        await decided(stage, {"a": ["a"]})
    broker.ledger.store.append_state = append_state
    assert not (await begun(stage, batch_id=0)).decided

    def failing(*_: Any, **__: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StoreFull("no space"))
        return future

    broker.ledger.store.append = failing
    assert list((await decided(stage, {"a": ["a"]})).behind) == ["a"]
    assert broker.staging.table.rows == 1
    broker.staging.table.check()
    broker.ledger.store.append = append
    await staged(stage, block(["two"]), sequence=1)
    assert broker.staging.table.rows == 2, "its attempt is not over"
    await stage.until(lambda: broker.staging.deciding.table.open_count == 0)
    assert await bodies(stage, broker) == ["one", "two"]


async def test_what_a_broker_remembers_is_bounded(stage: Any) -> None:
    await one(stage, staging=StagingSettings(queries_max=4, decisions_max=1))
    await begun(stage, coordinator="a")
    await staged(stage, block(["at b"]))
    await decided(stage, {"x": ["b"]})  # broker b is not known
    with pytest.raises(TooManyRequests, match=r"1 decided batches wait .*staging.decisions_max.*: b"):
        await decided(stage, {"y": ["a"]}, batch=1)
    asked = staging_pb2.BeginRequest(topics=["t"], coordinator="a")
    for asked.query_id in ("second", "third"):
        await stage.call(BEGIN, asked, staging_pb2.BeginResponse)
    asked.query_id = "fourth"
    with pytest.raises(TooManyRequests, match=r"staging.queries_max"):
        await stage.call(BEGIN, asked, staging_pb2.BeginResponse)


def retaining(folder: Path) -> StoreSettings:
    return StoreSettings(
        path=folder, disk_free_min_bytes=0, disk_used_max_ratio=1, disk_clean_ratio=1, segment_bytes=1 << 16,
        cache_bytes=0, retention_ms=1_000, retention_hour=-1,
    )  # fmt: skip


def near(*brokers: Any) -> None:
    """Let brokers find each other without a nameserver."""

    for broker in brokers:
        broker.catalog.routes.broker = lambda name: SimpleNamespace(name=name)
        broker.cluster.peers.address_of = lambda view: f"{view.name}:8081"


def test_rows_are_published_in_groups_of_bounded_size_and_in_order() -> None:
    blocks: Any = [SimpleNamespace(put=SimpleNamespace(size=size)) for size in (4, 4, 4, 20, 1, 9, 1)]
    groups = [[one.put.size for one in group] for group in _groups(blocks, 10)]
    assert groups == [[4, 4], [4], [20], [1, 9], [1]], "one that is larger stands alone"
    assert list(_groups([], 10)) == []
