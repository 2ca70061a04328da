"""The transactions' loops where stores hold and fail, producers are busy or gone, and peers do not answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.state.records import HalfPut, HalvesEnded, decode
from evenq_broker.core.transactions.half_messages import unpack_half
from evenq_broker.core.transactions.table import TransactionOutcome
from evenq_broker.loops.transactions import transactions as module
from evenq_broker.loops.transactions.transactions import MISSED_WAIT_MAX_MS, RELAYS_MAX, SOON_MS
from evenq_broker.settings import StoreSettings

from evenq.errors import ConnectionFailed, InternalError, MessageNotFound, StoreCorrupted, StoreFull, TooManyRequests
from evenq.model import MessageType, StartFrom
from evenq.model.names import GIVEN_UP_TOPIC
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from tests.unit.evenq_broker.conftest import know

COMMITTED, ROLLED_BACK = TransactionOutcome.COMMITTED, TransactionOutcome.ROLLED_BACK


class Scene:
    """A broker with a topic for transactions, and what its journal was given."""

    def __init__(self, stage: Any, broker: Any) -> None:
        self.stage = stage
        self.broker = broker
        self.made = broker.transactions
        self.ids = broker.ledger.transaction_ids
        self.recorded: list[Any] = []
        record = broker.ledger.journal.record

        def spy(op: Any) -> Any:
            self.recorded.append(op)
            return record(op)

        broker.ledger.journal.record = spy

    @staticmethod
    async def of(stage: Any, **settings: Any) -> Scene:
        broker = await stage.broker(poll_default_ms=1, **settings)
        await stage.during(broker.catalog.create_topic("t", queues=2, message_type=MessageType.TRANSACTION))
        await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
        return Scene(stage, broker)

    async def send(self, number: int = 0) -> Any:
        message = v2.Message(body=b"body %d" % number)
        message.topic.name = "t"
        system = message.system_properties
        system.message_id, system.message_type = f"id{number}", v2.TRANSACTION
        request = service_pb2.SendMessageRequest(messages=[message])
        return await self.stage.ask("SendMessage", request, service_pb2.SendMessageResponse, client="sender")

    async def begin(self, number: int = 0) -> int:
        """Its number."""
        answer = await self.send(number)
        check(answer.status)
        found: int = self.ids.read(answer.entries[0].transaction_id).number
        return found

    async def begin_missed(self, count: int = 1) -> list[int]:
        """Half messages of whose producers none was connected at the first check."""
        numbers = [await self.begin(number) for number in range(count)]
        await self.stage.until(lambda: self.made.stats.missed == count)
        return numbers

    def half(self, number: int) -> Any:
        found = self.made.table.get(number)
        assert found is not None, "it is open"
        return found

    def producer(self, client: str = "sender") -> Any:
        """A connected producer of the topic; `pushed` is what was sent to it, `full` makes it refuse."""
        stream = self.broker.clients.streams.open(client)
        self.broker.clients.streams.publish(stream, ["t"])
        seen = SimpleNamespace(pushed=[], full=False, tries=[], stream=stream)

        def push(frame: bytes) -> bool:
            seen.tries.append(self.stage.clock.monotonic_ms())
            if not seen.full:
                seen.pushed.append(frame)
            return not seen.full

        class Connected(type(stream)):  # type: ignore[misc]  # a stream with an outbox that the test reads
            pass

        Connected.push = lambda _, frame: push(frame)  # type: ignore[method-assign]
        stream.__class__ = Connected
        return seen

    def peers(self, **answers: bool | Exception) -> list[str]:
        """Other brokers, and whether each sent a check on; the result: who was asked."""
        asked: list[str] = []

        async def ask(name: str, method: str, request: bytes) -> bytes:
            assert method == module.RELAY
            assert data_pb2.RelayCheckRequest.FromString(request).topic == "t"
            asked.append(name)
            answer = answers[name]
            if isinstance(answer, Exception):
                raise answer
            return data_pb2.RelayCheckResponse(sent=answer).SerializeToString()

        self.broker.cluster.peers.all = lambda: [SimpleNamespace(name=name) for name in answers]
        self.broker.cluster.peers.ask = ask
        return asked

    async def bodies(self, topic: str = "t") -> list[bytes]:
        """All messages of the topic that are consumable."""
        found: list[bytes] = []
        for queue_id in range(self.broker.catalog.topics.get(topic).read_queues):
            queue = common_pb2.Queue(topic=topic, broker_name="a", queue_id=queue_id)
            request = data_pb2.PullRequest(queue=queue, committed=-1, batch_max=100)
            with suppress(MessageNotFound):
                answer = await self.stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)
                found += [message.body for message in answer.messages]
        return sorted(found)


class HeldAppends:
    """The store's appends are answered when the test says so; one that fails was not stored."""

    def __init__(self, scene: Scene, *, stored: bool = True) -> None:
        self.store = scene.broker.ledger.store
        self.append = self.store.append
        self.answers: list[asyncio.Future[None]] = []
        self.states: list[bytes] = []
        self._stored = stored
        self.store.append = self._append

    def _append(self, entries: Any, *, state: bytes = b"", timers: Any = (), ended: Any = ()) -> asyncio.Future[None]:
        self.states.append(state)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        if self._stored:
            self.append(entries, state=state, timers=timers, ended=ended)
        else:
            for timer in timers:
                timer.log_offset = 1 << 40
        return answer

    def settle(self, error: Exception | None = None) -> None:
        """Answer all, and hold no more."""
        self.store.append = self.append
        for answer in self.answers:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)


@pytest.mark.parametrize("last", ["message", "record"])
async def test_a_half_message_is_answered_when_it_and_its_record_are_safe(stage: Any, last: str) -> None:
    scene = await Scene.of(stage)
    held, recorded = HeldAppends(scene), asyncio.get_running_loop().create_future()
    scene.broker.ledger.journal.record = lambda _: recorded
    work = asyncio.ensure_future(scene.send())
    await stage.clock.advance(50)
    steps = [held.settle, lambda: recorded.set_result(None)]
    for step in steps if last == "record" else reversed(steps):
        assert not work.done()
        step()
        for _ in range(10):  # turns enough for an answer that waits for nothing
            await stage.clock.advance(50)
    check((await work).status)


async def test_a_half_message_that_was_not_stored_is_forgotten_also_by_the_journal(stage: Any) -> None:
    scene = await Scene.of(stage)
    held = HeldAppends(scene, stored=False)
    work = asyncio.ensure_future(scene.send())
    await stage.clock.advance(50)
    assert len(scene.made.table) == 1
    held.settle(StoreFull("the disk is full"))
    with pytest.raises(TooManyRequests):
        check((await work).entries[0].status)
    assert len(scene.made.table) == 0
    assert scene.recorded[-1] == HalvesEnded((1 << 40,), (TransactionOutcome.FORGOTTEN,))


@pytest.mark.parametrize("outcome", [COMMITTED, ROLLED_BACK])
async def test_a_decision_is_answered_when_it_is_safe_and_its_record_says_it(
    stage: Any, outcome: TransactionOutcome
) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    held = HeldAppends(scene)
    work = asyncio.ensure_future(scene.made.end(number, outcome))
    await stage.clock.advance(50)
    assert not work.done()
    assert list(decode(held.states[-1])) == [HalvesEnded((number,), (outcome,))]
    held.settle()
    await stage.during(work)
    stats = scene.made.stats
    assert (stats.committed, stats.rolled_back) == (({1: 1}, {}) if outcome is COMMITTED else ({}, {1: 1}))
    assert await scene.bodies() == ([b"body 0"] if outcome is COMMITTED else [])


async def test_a_decision_whose_append_failed_leaves_it_open_in_table_and_journal(stage: Any) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    scene.recorded.clear()
    held = HeldAppends(scene, stored=False)
    work = asyncio.ensure_future(scene.made.end(number, COMMITTED))
    await stage.clock.advance(50)
    held.settle(StoreFull("the disk is full"))
    with pytest.raises(StoreFull):
        await work
    assert not scene.half(number).deciding
    assert isinstance(scene.recorded[-1], HalfPut)
    assert scene.recorded[-1].number == number
    assert (scene.made.stats.committed, await scene.bodies()) == ({}, [])
    await stage.during(scene.made.end(number, COMMITTED))
    assert await scene.bodies() == [b"body 0"]


async def test_a_caller_that_goes_away_does_not_take_its_decision_along(stage: Any) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    read, go_on = scene.broker.ledger.store.read_timers, asyncio.Event()

    async def slow(wanted: Any) -> Any:
        await go_on.wait()
        return await read(wanted)

    scene.broker.ledger.store.read_timers = slow
    work = asyncio.ensure_future(scene.made.end(number, COMMITTED))
    await stage.clock.advance(10)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    go_on.set()
    await stage.until(lambda: scene.made.stats.committed == {1: 1})
    assert await scene.bodies() == [b"body 0"]
    assert scene.made._deciding == {}


async def test_what_was_recorded_of_an_open_one_never_stands_behind_its_end(stage: Any, tmp_path: Path) -> None:
    scene = await Scene.of(stage, store=StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1))
    number = await scene.begin()
    order: list[str] = []
    flush, append = scene.broker.ledger.journal.flush, scene.broker.ledger.store.append
    scene.broker.ledger.journal.flush = lambda: (order.append("flush"), flush())[1]

    def noted(*given: Any, **more: Any) -> Any:
        order.append("end")
        return append(*given, **more)

    scene.broker.ledger.store.append = noted
    scene.made._record(number)
    await stage.during(scene.made.end(number, ROLLED_BACK))
    assert order[:2] == ["flush", "end"]


async def test_a_decision_that_is_not_remembered_any_more_is_no_conflict(stage: Any) -> None:
    scene = await Scene.of(stage, transaction_decisions_max=1)
    first, second = await scene.begin(0), await scene.begin(1)
    for number in (first, second):
        await stage.during(scene.made.end(number, COMMITTED))
    await stage.during(scene.made.end(first, ROLLED_BACK))
    assert scene.made.stats.conflicts == 0
    await stage.during(scene.made.end(second, ROLLED_BACK))
    assert scene.made.stats.conflicts == 1


async def test_a_commit_counts_as_a_message_that_came_also_if_its_timer_delivers_it(stage: Any) -> None:
    scene = await Scene.of(stage)
    came: list[int] = []
    stats, scene.broker.runtime.stats = (
        scene.broker.runtime.stats,
        SimpleNamespace(topic=lambda _: SimpleNamespace(came=came.extend)),
    )
    number, later, never = await scene.begin(0), await scene.begin(1), await scene.begin(2)
    await stage.during(scene.made.end(number, COMMITTED))
    await stage.during(scene.made.end(never, ROLLED_BACK))
    assert len(came) == 1
    read = scene.broker.ledger.store.read_timers

    async def corrupt(_: Any) -> Any:
        raise StoreCorrupted("a checksum does not fit")

    scene.broker.ledger.store.read_timers = corrupt
    await stage.during(scene.made.end(later, COMMITTED))
    assert scene.made.table.outcome(later) is TransactionOutcome.TO_COMMIT
    assert len(came) == 1
    scene.broker.ledger.store.read_timers = read
    await stage.until(lambda: len(came) == 2)
    assert came[0] == came[1] > 0
    scene.broker.runtime.stats = stats
    assert await scene.bodies() == [b"body 0", b"body 1"]


async def test_the_frame_is_its_newest_timer_that_the_log_has_and_never_anothers(stage: Any) -> None:
    scene = await Scene.of(stage)
    number, other = await scene.begin(0), await scene.begin(1)
    half = scene.half(number)
    half.timer_id, half.previous_id = 1 << 40, number  # the newest was never stored
    frame = await scene.made._frame(number, half)
    assert frame.log_offset == number
    half.timer_id = other
    assert (await scene.made._frame(number, half)).log_offset == number
    half.timer_id, half.previous_id = other, -1
    assert await scene.made._frame(number, half) is None


async def test_a_renewed_timer_carries_age_and_counts_and_is_recorded(stage: Any) -> None:
    scene = await Scene.of(stage, transaction_check_interval_ms=1_000)
    number = await scene.begin()
    born_ms = scene.half(number).first_ms
    scene.producer()
    await stage.until(lambda: scene.made.stats.checks == 2)
    await stage.clock.advance(100)
    half = scene.half(number)
    assert half.timer_id != number
    header = unpack_half((await scene.made._frame(number, half)).head)[0]
    assert (header.number, header.first_ms, header.checks, header.client_id) == (number, born_ms, 2, "sender")
    assert scene.recorded[-1] == scene.made.table.op(number)
    assert half.due_ms == scene.recorded[-1].due_ms > stage.clock.now_ms()
    scene.made._renewed(number, SimpleNamespace(log_offset=-1, due_ms=0))  # the store did not take it
    assert scene.made.table.op(number) == scene.recorded[-1]


async def test_a_timer_that_is_due_while_somebody_decides_looks_again_soon(stage: Any) -> None:
    scene = await Scene.of(stage)
    producer = scene.producer()
    number = await scene.begin()
    scene.half(number).deciding = True
    await stage.clock.advance(6_500)
    assert producer.pushed == []
    assert scene.broker.ledger.store.timers.stats.pending == 1
    scene.made.table.undo(number)
    await stage.until(lambda: len(producer.pushed) == 1, limit_ms=SOON_MS + 200)


async def test_a_check_goes_to_the_sender_first_and_to_another_if_it_has_no_room_and_to_one_only(stage: Any) -> None:
    scene = await Scene.of(stage)
    producers = [scene.producer(client) for client in ("x", "sender", "y")]
    assert scene.made.push_check("t", "sender", b"1") is True
    assert [len(one.pushed) for one in producers] == [0, 1, 0]
    producers[1].full = True
    assert scene.made.push_check("t", "sender", b"2") is True
    assert sum(len(one.pushed) for one in producers) == 2
    assert scene.made.stats.checks == 2
    for one in producers:
        one.full = True
    assert scene.made.push_check("t", "sender", b"3") is None
    assert scene.made.push_check("elsewhere", "sender", b"4") is None
    assert scene.made.push_check("elsewhere", "stranger", b"4") is False
    assert scene.made.stats.checks == 2


async def test_busy_producers_are_asked_again_soon_and_that_is_neither_a_check_nor_a_miss(stage: Any) -> None:
    scene = await Scene.of(stage)
    producer = scene.producer()
    producer.full = True
    number = await scene.begin()
    await stage.until(lambda: len(producer.tries) == 4)
    first, *_, last = producer.tries
    assert 3 * SOON_MS <= last - first <= 3 * (SOON_MS + 200)
    assert (scene.half(number).checks, scene.half(number).missed, scene.made.stats.missed) == (0, 0, 0)
    producer.full = False
    await stage.until(lambda: len(producer.pushed) == 1, limit_ms=SOON_MS + 200)
    assert scene.half(number).checks == 1


async def test_nobody_to_ask_is_looked_for_at_growing_distances_up_to_ten_minutes(stage: Any) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    half, topic = scene.half(number), scene.broker.catalog.topics.get("t")
    timer = await scene.made._frame(number, half)

    def wait_ms(missed: int) -> int:
        half.missed = missed
        return int(scene.made._ask(number, timer, "sender", topic))

    waits = [wait_ms(missed) for missed in (0, 5, 6, 7, 9, 10, 500)]
    assert waits == [30_000, 30_000, 60_000, 120_000, 480_000, MISSED_WAIT_MAX_MS, MISSED_WAIT_MAX_MS]
    assert scene.made.stats.missed == 7
    assert half.missed == 501
    assert list(scene.made._unasked[1]) == [number]


async def test_a_peer_that_fails_does_not_keep_the_next_from_being_asked_and_one_that_sent_it_is_the_last(
    stage: Any,
) -> None:
    scene = await Scene.of(stage)
    asked = scene.peers(b=ConnectionFailed("gone"), c=InternalError("broken"), d=False, e=True, f=True)
    number = await scene.begin()
    await stage.until(lambda: scene.made.stats.relayed == 1)
    assert asked == ["b", "c", "d", "e"]
    assert (scene.half(number).checks, scene.half(number).missed, scene.made.stats.missed) == (1, 0, 0)
    assert scene.recorded[-1] == scene.made.table.op(number)
    assert scene.made._unasked == {}
    assert scene.made._relays == set()


async def test_a_check_that_no_peer_sent_is_a_miss(stage: Any) -> None:
    scene = await Scene.of(stage)
    asked = scene.peers(b=False, c=ConnectionFailed("gone"))
    number = await scene.begin()
    await stage.until(lambda: scene.made.stats.missed == 1)
    assert asked == ["b", "c"] * 2, "the sender is looked for, then another producer"
    assert (scene.half(number).checks, scene.half(number).missed, scene.made.stats.relayed) == (0, 1, 0)
    assert list(scene.made._unasked[1]) == [number]


@pytest.mark.parametrize("at", ["a", "b"])
async def test_25_the_sender_is_asked_wherever_it_is_connected_and_whatever_it_declared(stage: Any, at: str) -> None:
    """Checklist 25: another producer of the topic, connected to the broker that asks, knows nothing of it."""
    scene = await Scene.of(stage)
    other = scene.producer("other")
    broker = scene.broker if at == "a" else await stage.broker("b")
    know(scene.broker, *([broker] if at == "b" else []))
    stream = broker.clients.streams.open("sender")
    stream.client_type = v2.PRODUCER
    broker.clients.streams.publish(stream, ["another"])
    number = await scene.begin()
    await stage.until(lambda: scene.half(number).checks == 1)
    assert other.pushed == []
    [frame] = await stage.during(stream.take())
    asked = service_pb2.TelemetryCommand.FromString(frame).recover_orphaned_transaction_command
    assert scene.ids.read(asked.transaction_id).number == number
    assert scene.made.stats.relayed == (1 if at == "b" else 0)
    broker.clients.streams.close(stream)
    await stage.until(lambda: scene.half(number).checks == 2)
    assert len(other.pushed) == 1, "the sender is gone now"


async def test_relays_are_bounded_and_end_with_the_broker(stage: Any) -> None:
    scene = await Scene.of(stage)

    async def silent(*_: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    scene.broker.cluster.peers.all = lambda: [SimpleNamespace(name="b")]
    scene.broker.cluster.peers.ask = silent
    number = await scene.begin()
    timer, topic = await scene.made._frame(number, scene.half(number)), scene.broker.catalog.topics.get("t")
    for _ in range(RELAYS_MAX):
        assert scene.made._ask(number, timer, "sender", topic) > SOON_MS
    assert scene.made._ask(number, timer, "sender", topic) == SOON_MS
    assert len(scene.made._relays) == RELAYS_MAX
    scene.made._unasked[1] = {number: None}
    scene.made.producer_came(["t"])
    assert len(scene.made._relays) == RELAYS_MAX
    relays = list(scene.made._relays)
    await scene.made.close()
    assert all(relay.cancelled() for relay in relays)


async def test_the_end_of_the_broker_waits_for_decisions_under_way(stage: Any) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    held = HeldAppends(scene)
    work = asyncio.ensure_future(scene.made.end(number, COMMITTED))
    await stage.clock.advance(10)
    closing = asyncio.ensure_future(scene.made.close())
    await stage.clock.advance(10)
    assert not closing.done()
    held.settle()
    await stage.during(closing)
    await work
    assert scene.made.stats.committed == {1: 1}


async def test_a_producer_that_came_is_asked_only_what_is_open_still(stage: Any) -> None:
    scene = await Scene.of(stage, transaction_checks_max=3)
    ended, deciding, checked, asked, last, meanwhile, fine = numbers = await scene.begin_missed(7)
    await stage.during(scene.made.end(ended, ROLLED_BACK))
    assert sorted(scene.made._unasked[1]) == sorted(set(numbers) - {ended}), "what is decided is not kept"
    scene.half(deciding).deciding = True
    scene.half(checked).checks = 3
    scene.half(asked).missed = 0
    read = scene.broker.ledger.store.read_timers

    async def slow(wanted: Any) -> Any:
        found = await read(wanted)
        if wanted[0] == scene.half(meanwhile).timer_id if scene.made.table.get(meanwhile) else False:
            scene.made.table.decide(meanwhile, COMMITTED)
            scene.made.table.settle(meanwhile, COMMITTED)
        return found

    scene.broker.ledger.store.read_timers = slow
    producer = scene.producer("late")
    scene.made.producer_came(["t", "elsewhere"])
    await stage.until(lambda: len(producer.pushed) >= 2)
    await stage.clock.advance(50)
    assert len(producer.pushed) == 2
    for number in (last, fine):
        assert (scene.half(number).checks, scene.half(number).missed) == (1, 0)
        assert scene.made.table.op(number) in scene.recorded
    assert scene.made._unasked == {}
    scene.half(deciding).deciding = False


async def test_a_producer_that_came_and_has_no_room_is_not_asked_about_the_rest(stage: Any) -> None:
    scene = await Scene.of(stage)
    numbers = await scene.begin_missed(3)
    producer = scene.producer("late")
    producer.full = True
    scene.made.producer_came(["t"])
    await stage.clock.advance(50)
    assert len(producer.tries) == 1
    assert [scene.half(number).checks for number in numbers] == [0, 0, 0]


async def test_what_is_given_up_is_recorded_and_waits_for_its_topic_as_often_as_that_fails(stage: Any) -> None:
    scene = await Scene.of(stage, transaction_check_interval_ms=1_000, transaction_age_max_ms=8_000)
    create, failures = scene.broker.catalog.create_topic, [ConnectionFailed("gone"), ConnectionFailed("gone")]

    async def failing(*given: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await create(*given, **more)

    scene.broker.catalog.create_topic = failing
    (number,) = await scene.begin_missed()
    await stage.until(lambda: scene.made.stats.given_up == 1)
    assert failures == []
    assert scene.made.table.outcome(number) is TransactionOutcome.GIVEN_UP
    assert HalvesEnded((number,), (TransactionOutcome.GIVEN_UP,)) in scene.recorded
    assert scene.made._unasked.get(1, {}) == {}
    await stage.until(lambda: scene.broker.ledger.store.timers.stats.pending == 0)
    queue = common_pb2.Queue(topic=GIVEN_UP_TOPIC, broker_name="a")
    request = data_pb2.PullRequest(queue=queue, committed=-1, batch_max=100)
    (message,) = (await stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)).messages
    assert message.body == b"body 0"
    assert message.system_properties.message_type == v2.NORMAL
    assert await scene.bodies() == []


async def test_a_deleted_topic_ends_its_half_messages_in_the_journal_too(stage: Any) -> None:
    scene = await Scene.of(stage)
    number = await scene.begin()
    timer = await scene.made._frame(number, scene.half(number))
    scene.made._unasked[1] = {number: None}
    topics, scene.broker.catalog.topics = scene.broker.catalog.topics, SimpleNamespace(by_id=lambda _: None)
    assert scene.made.due(timer) is None
    scene.broker.catalog.topics = topics
    assert scene.recorded[-1] == HalvesEnded((number,), (TransactionOutcome.FORGOTTEN,))
    assert (len(scene.made.table), scene.made._unasked) == (0, {})


async def test_a_message_keeps_its_queue_unless_the_topic_has_fewer_now(stage: Any) -> None:
    scene = await Scene.of(stage)
    numbers = [await scene.begin(number) for number in range(4)]
    topic = scene.broker.catalog.topics.get("t")
    timers = [await scene.made._frame(number, scene.half(number)) for number in numbers]
    assert {timer.queue_id for timer in timers} == {0, 1}
    assert [module._message(timer, topic).queue_id for timer in timers] == [timer.queue_id for timer in timers]
    assert {module._message(timer, replace(topic, write_queues=1)).queue_id for timer in timers} == {0}
