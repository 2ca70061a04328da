"""The sync pull consumer in its users' threads: started once, polled by one, closed, interrupted, refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.store_settings import StoreSettings
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.sync_broker import SyncBroker

import evenq
from evenq.client.options import PullOptions
from evenq.client.topic_source import TopicSource
from evenq.errors import (
    BadRequest,
    IllegalTopic,
    NotFound,
    PreconditionFailed,
    RequestTimeout,
    SettingsError,
    Unsupported,
)
from evenq.model import MessageQueue
from evenq.runtime.clock import SystemClock
from evenq.tables.exporting import ExportPlan, TopicExport
from evenq.tables.folder import table_target
from evenq.tables.layout import TableSettings

QUEUE = MessageQueue("t", "a", 0)


def consumer(world: Any, **options: Any) -> evenq.PullConsumer:
    made: evenq.PullConsumer = world.make(
        evenq.PullConsumer, **{"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", **options}
    )
    return made


def bodies(messages: list[evenq.ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_block_that_ends_well_has_consumed_its_last_poll_and_one_that_raises_has_not(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2", b"3")
    with consumer(world) as one:
        assert bodies(one.poll(1)) == [b"1"]
    with pytest.raises(KeyError), consumer(world) as two:  # noqa: PT012 - the block is what is tested
        assert bodies(two.poll(1)) == [b"2"]
        raise KeyError("the user's mistake")
    with consumer(world) as three:
        assert bodies(three.poll(1)) == [b"2"]


def test_control_c_in_the_block_leaves_the_group_and_the_last_poll_comes_again(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    with pytest.raises(KeyboardInterrupt), consumer(world) as one:  # noqa: PT012 - the block is what is tested
        assert bodies(one.poll(1)) == [b"1"]
        raise KeyboardInterrupt
    assert one.queues == []
    with consumer(world) as two:
        assert bodies(two.poll(1)) == [b"1"]


def test_control_c_ends_a_poll_that_waits_and_the_next_one_works(world: Any) -> None:
    world.create("t")
    world.net.hold("Pull")
    one = consumer(world).start()
    with world.interrupted():
        one.poll(wait_ms=60_000)
    world.run(world.net.let_go())
    world.publish("t", b"1")
    assert bodies(one.poll(wait_ms=20_000)) == [b"1"]


def test_one_poll_at_a_time_and_the_other_thread_hears_why(world: Any) -> None:
    world.create("t")
    one = consumer(world).start()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(bodies(one.poll(wait_ms=20_000))))
    thread.start()
    world.until(lambda: one._polling._task is not None)
    with pytest.raises(Unsupported, match="one poll at a time"):
        one.poll(wait_ms=0)
    assert one.queues_of("t") == [QUEUE], "other calls work beside it"
    world.publish("t", b"1")
    thread.join(60)
    assert got == [b"1"]


def test_before_its_start_and_after_its_end_each_call_is_refused(world: Any) -> None:
    world.create("t")
    one = consumer(world)
    calls = [
        lambda: one.poll(wait_ms=0),
        one.commit,
        lambda: one.committed(QUEUE),
        lambda: one.position(QUEUE),
        lambda: one.assign([QUEUE]),
        lambda: one.subscribe("u"),
        lambda: one.unsubscribe("t"),
        lambda: one.seek(QUEUE, 0),
        lambda: one.seek_to_begin(QUEUE),
        lambda: one.seek_to_end(QUEUE),
        lambda: one.offset_at(QUEUE, 0),
        lambda: one.pause([QUEUE]),
        lambda: one.resume([QUEUE]),
        lambda: one.queues_of("t"),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(Unsupported, match="consumer of g is not running"):
            call()
        assert one.queues == [], number
    one.start()
    with pytest.raises(Unsupported, match="was started before; make a new one"):
        one.start()
    world.until(lambda: one.queues == [QUEUE])
    one.close()
    one.close()
    for call in calls:
        with pytest.raises(Unsupported, match="consumer of g is not running"):
            call()
    with pytest.raises(Unsupported, match="was started before"):
        one.start()
    assert one.queues == []


def test_one_that_never_started_is_closed_without_a_call(world: Any) -> None:
    one = consumer(world)
    one.close()
    assert world.net.calls == []
    with pytest.raises(Unsupported, match="was started before"), one:
        pass


def test_arguments_that_make_no_sense_are_refused(world: Any) -> None:
    world.create("t")
    with consumer(world) as one:
        for wrong in (0, 10_001):
            with pytest.raises(BadRequest, match="the range is 1 to 10000"):
                one.poll(wrong)
        with pytest.raises(BadRequest, match="give 0 or more"):
            one.poll(wait_ms=-1)
        with pytest.raises(IllegalTopic):
            one.subscribe("no such/name")
        with pytest.raises(PreconditionFailed, match="is not owned by this consumer"):
            one.seek(MessageQueue("t", "a", 7), 0)
        with pytest.raises(Unsupported, match="subscribes"):
            one.assign([QUEUE])
        world.until(lambda: one.queues == [QUEUE])
        with pytest.raises(BadRequest, match="negative"):
            one.seek(QUEUE, -1)


def test_queues_that_are_assigned_are_read_from_where_their_user_says(world: Any) -> None:
    world.create("t", queues=2)
    world.publish("t", b"1")
    with consumer(world, subscriptions=None, options=PullOptions(auto_commit=False)) as one:
        queues = one.queues_of("t")
        one.assign(queues)
        assert one.queues == queues
        (message,) = one.poll(wait_ms=20_000)
        assert one.position(message.queue) == 1
        one.seek(message.queue, 0)
        assert bodies(one.poll(wait_ms=20_000)) == [b"1"]
        one.pause([message.queue])
        one.seek_to_begin(message.queue)
        assert one.poll(wait_ms=50) == []
        one.resume([message.queue])
        assert bodies(one.poll(wait_ms=20_000)) == [b"1"]
        one.commit()
        assert one.committed(message.queue) == 1
        one.seek_to_end(message.queue)
        assert one.poll(wait_ms=50) == []
        with pytest.raises(RequestTimeout, match="were not ready within 30 ms"):
            one.assign([MessageQueue("t", "elsewhere", 0)], timeout_ms=30)


def manual(world: Any, *, drain_ms: int = 60_000) -> evenq.PullConsumer:
    return consumer(world, options=PullOptions(auto_commit=False, drain_ms=drain_ms)).start()


def polled(one: evenq.PullConsumer, count: int) -> list[evenq.ReceivedMessage]:
    found: list[evenq.ReceivedMessage] = []
    while len(found) < count:
        found += one.poll(1, wait_ms=20_000)
    return found


def test_a_queue_moves_away_when_what_was_polled_of_it_is_committed(world: Any) -> None:
    world.create("t", queues=2)
    one = manual(world)
    world.until(lambda: len(one.queues) == 2)
    for number in range(6):
        world.publish("t", b"%d" % number)
    polled(one, 6)
    two = manual(world)
    world.until(lambda: len(one.queues) == 1)
    assert two.poll(10, wait_ms=500) == []
    assert two.queues == [], "it waits for the commit"
    one.commit()
    world.until(lambda: len(two.queues) == 1)
    assert two.poll(10, wait_ms=500) == [], "what was committed while the queue moved counts"


def test_a_queue_that_moves_away_takes_an_offset_that_its_user_gives(world: Any) -> None:
    world.create("t", queues=2)
    one = manual(world)
    world.until(lambda: len(one.queues) == 2)
    for number in range(6):
        world.publish("t", b"%d" % number)
    last = {message.queue: message.queue_offset for message in polled(one, 6)}
    two = manual(world)
    world.until(lambda: len(one.queues) == 1)
    (moving,) = set(last) - set(one.queues)
    one.commit({moving: last[moving]})
    assert two.poll(10, wait_ms=500) == [], "one message is left to be worked on"
    one.commit({moving: last[moving] + 1})
    world.until(lambda: two.queues == [moving])
    assert two.poll(10, wait_ms=500) == []


def test_who_never_commits_keeps_a_queue_for_drain_ms_and_the_next_owner_has_it_all(world: Any, caplog: Any) -> None:
    world.create("t", queues=2)
    one = manual(world, drain_ms=200)
    world.until(lambda: len(one.queues) == 2)
    for number in range(6):
        world.publish("t", b"%d" % number)
    sent = polled(one, 6)
    two = manual(world)
    world.until(lambda: len(two.queues) == 1)
    again = polled(two, 1)
    assert again[0].message_id in {message.message_id for message in sent}
    assert "were not committed within 200 ms (drain_ms)" in caplog.text


def test_progress_made_while_a_commit_runs_is_no_failure_of_the_commit(world: Any, monkeypatch: Any) -> None:
    """Messages that a filter leaves out advance the progress at any moment."""
    world.create("t")
    for number in range(9):
        world.publish("t", b"%d" % number)
    with consumer(world) as one:
        world.until(lambda: one.queues == [QUEUE])
        progress = one._running()._member.progress
        save = progress.store.save

        async def overtaken(*arguments: Any, **more: Any) -> Any:
            done = await save(*arguments, **more)
            progress.table.advance(QUEUE, progress.table.memory(QUEUE) + 1)
            return done

        monkeypatch.setattr(progress.store, "save", overtaken)
        one.commit({QUEUE: 4})
        assert one.committed(QUEUE) == 4


def test_a_consumer_that_is_closed_waits_for_no_commit(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    one = manual(world)
    polled(one, 1)
    one.close()
    with consumer(world) as two:
        assert bodies(two.poll(1, wait_ms=20_000)) == [b"1"]


def test_a_consumer_that_is_closed_while_a_queue_moves_away_waits_for_no_commit(world: Any) -> None:
    world.create("t", queues=2)
    one = manual(world, drain_ms=60_000)
    world.until(lambda: len(one.queues) == 2)
    for number in range(6):
        world.publish("t", b"%d" % number)
    polled(one, 6)
    two = manual(world)
    world.until(lambda: len(one.queues) == 1)
    began = time.monotonic()
    one.close()
    assert time.monotonic() - began < 30
    world.until(lambda: len(two.queues) == 2)


def test_a_poll_that_waits_gets_what_is_in_hand_when_its_queue_goes_on(world: Any, in_threads: Any) -> None:
    world.create("t")
    world.publish("t", b"1", b"2")
    one = consumer(world, options=PullOptions(pull_wait_ms=60_000)).start()
    assert bodies(one.poll(1, wait_ms=20_000)) == [b"1"]
    one.pause(one.queues)

    def work(number: int) -> None:
        if number:
            world.until(lambda: one._polling._task is not None)
            one.resume(one.queues)
        else:
            began = time.monotonic()
            assert bodies(one.poll(1, wait_ms=60_000)) == [b"2"]
            assert time.monotonic() - began < 30

    assert in_threads(2, work) == []


def test_what_another_thread_closes_ends_a_poll_within_its_time(world: Any, in_threads: Any) -> None:
    world.create("t")
    one = consumer(world).start()

    def work(number: int) -> None:
        if number:
            world.until(lambda: one._polling._task is not None)
            one.close()
        else:
            assert one.poll(wait_ms=300) == []

    assert in_threads(2, work) == []
    with pytest.raises(Unsupported):
        one.poll()


def test_on_rebalance_runs_in_a_thread_of_its_own_and_what_it_raises_harms_nobody(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    events: list[tuple[str, int, int]] = []

    def callback(gained: object, lost: object) -> None:
        events.append((threading.current_thread().name.rpartition("_")[0], len(gained), len(lost)))  # type: ignore[arg-type]
        raise SystemExit("the user's mistake")

    with consumer(world, on_rebalance=callback) as one:
        assert bodies(one.poll(wait_ms=20_000)) == [b"1"]
    assert events == [("evenq-on-rebalance", 1, 0), ("evenq-on-rebalance", 0, 1)]


class ShortLog(SyncBroker):
    """A broker that deletes what is in the table of topic `t`, by small files of its log."""

    def __init__(self) -> None:
        store = StoreSettings(segment_bytes=1 << 16, retention_ms=1, retention_hour=-1)
        super().__init__(LoopNet(SystemClock()), store=store)
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        new = [b"%05d" % number + b"." * 1_000 for number in range(len(self.sent), len(self.sent) + count)]
        producer = self.make(evenq.Producer)
        producer.send_batch([evenq.Message(topic="t", body=body, tag="x", keys=(body[:5].decode(),)) for body in new])
        self.sent += new

    def export(self, folder: Path) -> None:
        async def turns() -> None:
            plan = ExportPlan(topic="t", settings=TableSettings(rows_per_file=100), settle_ms=1, tail=True)
            async with TopicSource(endpoint="a:8081", context=self.context()) as source:
                export = TopicExport(source, table_target(str(folder)), plan, clock_ms=SystemClock().now_ms)
                while (turn := await export.turn()).left:
                    assert not turn.failures
                    await SystemClock().sleep_ms(5)
                assert turn.unreported is None
            await self.broker.ledger.store.clean()

        self.run(turns())

    def low(self) -> int:
        [queue] = self.make(evenq.Admin).describe_topic("t").queues
        return queue.min_offset


@pytest.fixture
def short_log() -> Iterator[ShortLog]:
    made = ShortLog()
    try:
        yield made
    finally:
        made.close()


def taken(one: evenq.PullConsumer, count: int) -> list[evenq.ReceivedMessage]:
    found: list[evenq.ReceivedMessage] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += one.poll(20, wait_ms=2_000)
    return found


def test_a_table_and_the_log_are_one_queue_also_while_retention_moves_the_border_and_after_a_restart(
    short_log: ShortLog, tmp_path: Path
) -> None:
    short_log.create("t")
    short_log.send(150)
    short_log.export(tmp_path)
    short_log.send(60)
    low = short_log.low()
    assert low > 60, "retention has deleted what is in the table"
    options = PullOptions(tables=tmp_path, pull_batch=20, pull_threshold_queue=20)
    with consumer(short_log, options=options) as one:
        found = taken(one, 20)
    with consumer(short_log, options=options) as one:
        assert one.committed(QUEUE) == len(found) < low, "the broker stores an offset before its log"
        found += taken(one, 20)
        short_log.export(tmp_path)
        short_log.send(60)
        assert short_log.low() > low
        found += taken(one, 270 - len(found))
        assert one.poll(wait_ms=0) == []
        one.seek_to_begin(QUEUE)
        assert one.position(QUEUE) == 0
        one.commit({QUEUE: 7})
        assert one.committed(QUEUE) == 7
    assert [message.queue_offset for message in found] == list(range(270))
    assert bodies(found) == short_log.sent
    assert {(message.tag, message.queue) for message in found} == {("x", QUEUE)}
    assert all(message.keys == (message.body[:5].decode(),) and message.message_id for message in found)


def test_a_table_that_is_not_there_is_raised_and_nothing_is_skipped(short_log: ShortLog, tmp_path: Path) -> None:
    short_log.create("t")
    short_log.send(150)
    short_log.export(tmp_path)
    with consumer(short_log, group="without") as one:
        assert taken(one, 1)[0].queue_offset == short_log.low() > 60
    with consumer(short_log, options=PullOptions(tables=tmp_path / "other")) as one:
        with pytest.raises(NotFound, match="evenq table export t --to"):
            taken(one, 1)
        assert one.queues == []


def test_tables_need_their_extra_and_the_error_names_it(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenq.client.wiring.is_installed", lambda _package: False)
    with pytest.raises(SettingsError, match=r"pyarrow.*evenq\[tables\]"):
        consumer(world, options=PullOptions(tables=tmp_path)).start()
