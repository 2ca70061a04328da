"""The producer's transactions over calls that answer as the test sets."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.routes.route import Route
from evenq.client.core.transactions.half_messages import Check, HalfMessage
from evenq.client.loops.clients.broker_connection import TELL_MS
from evenq.client.loops.transactions.transacting import CLOSE_MS, TransactionLoop
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, Forbidden, InvalidTransactionId, TopicNotFound
from evenq.model import MessageQueue, ReceivedMessage, TransactionResolution
from evenq.runtime.clock import FakeClock

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution


def check_of(number: int, address: str) -> Check:
    message = received_message(body=b"b", message_id=f"id{number}", queue=MessageQueue("t", "a", 0))
    return Check(HalfMessage("t", message.message_id, f"t1.{number}", address), message)


class Calls:
    """Brokers a and b, without a wire."""

    def __init__(self) -> None:
        self.addresses = {"a": "a:1", "b": "b:1"}
        self.failures: list[Error] = []
        self.halves: list[str] = []
        self.ended: list[tuple[str, str, TransactionResolution, bool]] = []
        self.announced: dict[str, list[list[str]]] = {}
        self.lines: dict[str, asyncio.Queue[Check | Error]] = {}
        self.renewals: list[Callable[[], None]] = []

    def route_changed(self, topic: str, then: Callable[[], None]) -> None:
        """Answered when the test says so."""
        self.renewals.append(then)

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        if topic == "missing":
            raise TopicNotFound("no such topic")
        queues = tuple(MessageQueue(topic, name, 0) for name in self.addresses)
        writable = () if topic == "closed" else queues
        return Route(topic=topic, writable=writable, readable=queues, addresses=self.addresses)

    async def send_half(self, address: str, queue: MessageQueue, message_id: str, encoded: bytes) -> HalfMessage:
        assert self.addresses[queue.broker_name] == address
        self.halves.append(address)
        if self.failures:
            raise self.failures.pop(0)
        return HalfMessage(queue.topic, message_id, "t1.x", address)

    async def end_transaction(self, half: HalfMessage, resolution: TransactionResolution, *, checked: bool) -> None:
        self.ended.append((half.address, half.transaction_id, resolution, checked))
        if self.failures:
            raise self.failures.pop(0)

    async def end_transaction_anywhere(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        await self.end_transaction(HalfMessage("t", "id", half.transaction_id, "anywhere"), resolution, checked=False)

    async def checks(self, address: str, tellings: AsyncIterator[Iterable[str]]) -> AsyncGenerator[Check, None]:
        line = self.lines[address] = asyncio.Queue()

        async def tell() -> None:
            async for topics in tellings:
                self.announced.setdefault(address, []).append(list(topics))

        telling = asyncio.ensure_future(tell())
        try:
            while True:
                item = await line.get()
                if isinstance(item, Error):
                    raise item
                yield item
        finally:
            telling.cancel()


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.calls = Calls()
        self.resolution: TransactionResolution | BaseException = COMMIT
        self.asked: list[str] = []
        self.transacting = TransactionLoop(
            self.calls, clock=self.clock, rng=random.Random(3), options=ProducerOptions(),
            route=self.calls.query_route, route_changed=self.calls.route_changed, run_checker=self.checker,
        )  # fmt: skip

    async def checker(self, message: ReceivedMessage) -> TransactionResolution:
        self.asked.append(message.message_id)
        if isinstance(self.resolution, BaseException):
            raise self.resolution
        return self.resolution


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        await stage.transacting.close()


async def test_half_messages_go_round_the_brokers_and_one_that_failed_is_not_sent_again(stage: Stage) -> None:
    for _ in range(2):
        await stage.transacting.begin("t", "id", b"m")
    assert sorted(stage.calls.halves) == ["a:1", "b:1"]
    stage.calls.failures = [ConnectionFailed("gone")]
    with pytest.raises(ConnectionFailed):
        await stage.transacting.begin("t", "id", b"m")
    assert len(stage.calls.halves) == 3
    with pytest.raises(Forbidden):
        await stage.transacting.begin("closed", "id", b"m")


async def test_after_a_failure_the_route_is_asked_for_and_half_messages_and_checks_go_to_the_next_leader(
    stage: Stage,
) -> None:
    calls = stage.calls
    calls.addresses = {"a": "a:1"}
    await stage.transacting.begin("t", "id", b"m")
    await stage.clock.advance(0)
    assert set(calls.lines) == {"a:1"}
    calls.failures = [ConnectionFailed("gone"), ConnectionFailed("gone")]
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await stage.transacting.begin("t", "id", b"m")
    assert len(calls.renewals) == 1  # one question for all that fail meanwhile
    calls.addresses = {"a": "a:2"}
    calls.renewals.pop()()
    await stage.clock.advance(0)
    assert "a:2" in calls.lines  # not after `route_refresh_ms`
    await stage.transacting.begin("t", "id", b"m")
    assert calls.halves[-1] == "a:2"
    calls.failures = [InvalidTransactionId("refused")]
    with pytest.raises(InvalidTransactionId):
        await stage.transacting.begin("t", "id", b"m")
    assert calls.renewals == []  # the broker answered: it is where it is


async def test_a_route_that_comes_after_the_end_opens_no_connection(stage: Stage) -> None:
    stage.calls.failures = [ConnectionFailed("gone")]
    with pytest.raises(ConnectionFailed):
        await stage.transacting.begin("t", "id", b"m")
    await stage.transacting.close()
    stage.calls.lines.clear()
    stage.calls.renewals.pop()()
    await stage.clock.advance(0)
    assert stage.calls.lines == {}


async def test_a_decision_is_told_at_the_broker_then_anywhere_until_it_is_heard(stage: Stage) -> None:
    half = HalfMessage("t", "id", "t1.x", "a:1")
    stage.calls.failures = [ConnectionFailed("gone")]
    await stage.transacting.end(half, COMMIT)
    assert [address for address, *_ in stage.calls.ended] == ["a:1", "anywhere"]
    stage.calls.failures = [InvalidTransactionId("given up")]
    with pytest.raises(InvalidTransactionId):
        await stage.transacting.end(half, COMMIT)
    assert len(stage.calls.ended) == 3


async def test_a_line_to_each_broker_tells_the_topics_at_once_when_they_change_and_every_half_minute(
    stage: Stage,
) -> None:
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    assert stage.calls.announced == {"a:1": [["t"]], "b:1": [["t"]]}
    stage.transacting.watch(["t", "u"])
    await stage.clock.advance(10)
    assert stage.calls.announced["a:1"] == [["t"], ["t", "u"]]
    await stage.clock.advance(TELL_MS)
    assert len(stage.calls.announced["a:1"]) == 3
    stage.calls.addresses = {"b": "b:1", "c": "c:1"}
    await stage.clock.advance(TELL_MS + 1_000)
    assert "c:1" in stage.calls.announced


async def test_a_topic_that_does_not_exist_yet_does_not_keep_the_others_waiting(stage: Stage) -> None:
    stage.transacting.watch(["missing", "t"])
    await stage.clock.advance(10)
    assert stage.calls.announced["a:1"] == [["missing", "t"]]


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
async def test_a_check_is_answered_to_the_broker_that_asked(stage: Stage, resolution: TransactionResolution) -> None:
    stage.resolution = resolution
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.lines["b:1"].put_nowait(check_of(1, "b:1"))
    await stage.clock.advance(10)
    assert stage.calls.ended == [("b:1", "t1.1", resolution, True)]


@pytest.mark.parametrize("resolution", [UNKNOWN, KeyError("a mistake"), ConnectionFailed("no database")])
async def test_what_the_checker_cannot_say_is_not_answered_and_the_next_check_is(
    stage: Stage,
    resolution: TransactionResolution | Exception,
) -> None:
    stage.resolution = resolution
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.lines["a:1"].put_nowait(check_of(1, "a:1"))
    await stage.clock.advance(10)
    assert (stage.asked, stage.calls.ended) == (["id1"], [])
    stage.resolution = COMMIT
    stage.calls.lines["a:1"].put_nowait(check_of(2, "a:1"))
    await stage.clock.advance(10)
    assert len(stage.calls.ended) == 1


async def test_a_broken_line_is_opened_again(stage: Stage) -> None:
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.lines["a:1"].put_nowait(ConnectionFailed("gone"))
    await stage.clock.advance(300)
    assert len(stage.calls.announced["a:1"]) == 2
    stage.calls.lines["a:1"].put_nowait(check_of(1, "a:1"))
    await stage.clock.advance(10)
    assert stage.asked == ["id1"]


async def test_a_decision_goes_round_twice_for_each_attempt_with_pauses_between_and_then_fails(stage: Stage) -> None:
    half = HalfMessage("t", "id", "t1.x", "a:1")
    stage.calls.failures = [ConnectionFailed(f"gone {number}") for number in range(6)]
    work = asyncio.ensure_future(stage.transacting.end(half, ROLLBACK))
    await stage.clock.advance(0)
    assert [address for address, *_ in stage.calls.ended] == ["a:1", "anywhere"], "the next round is after a pause"
    await stage.clock.advance(10_000)
    with pytest.raises(ConnectionFailed, match="gone 5"):
        await work
    assert [address for address, *_ in stage.calls.ended] == ["a:1", "anywhere"] * 3
    assert {(resolution, checked) for _, _, resolution, checked in stage.calls.ended} == {(ROLLBACK, False)}


async def test_a_producer_answers_for_a_topic_from_its_first_half_message_on(stage: Stage) -> None:
    await stage.transacting.begin("t", "id", b"m")
    await stage.clock.advance(10)
    assert stage.calls.announced == {"a:1": [["t"]], "b:1": [["t"]]}


async def test_watching_the_same_topics_again_changes_nothing(stage: Stage) -> None:
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    looking = stage.transacting._looking
    for _ in range(3):
        stage.transacting.watch(["t"])
        await stage.transacting.begin("t", "id", b"m")
    await stage.clock.advance(10)
    assert stage.transacting._looking is looking
    assert stage.calls.announced["a:1"] == [["t"]]


async def test_the_brokers_of_a_new_topic_are_connected_at_once_and_looked_for_by_one(stage: Stage) -> None:
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.addresses = {**stage.calls.addresses, "c": "c:1"}
    first = stage.transacting._looking
    stage.transacting.watch(["u"])
    await stage.clock.advance(10)
    assert stage.calls.announced["c:1"] == [["t", "u"]]
    assert first is not None
    assert first.cancelled(), "else two tasks look for routes"


async def test_a_broker_that_left_the_routes_loses_its_line_but_not_while_a_route_is_missing(stage: Stage) -> None:
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.addresses = {"b": "b:1"}
    await stage.clock.advance(ProducerOptions().route_refresh_ms + 10)
    assert sorted(stage.transacting._connections) == ["b:1"]
    stage.calls.addresses = {"c": "c:1"}
    stage.transacting.watch(["missing"])
    await stage.clock.advance(10)
    assert sorted(stage.transacting._connections) == ["b:1", "c:1"], "b may be a broker of the missing route"


async def test_a_route_that_is_missing_is_looked_for_again_soon(stage: Stage) -> None:
    query = stage.calls.query_route
    missing = ["t"]

    async def route(topic: str) -> Route:
        return await query("missing" if topic in missing else topic)

    stage.transacting._route = route
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    assert stage.calls.announced == {}
    missing.clear()
    await stage.clock.advance(ProducerOptions().retry_max_ms)
    assert stage.calls.announced == {"a:1": [["t"]], "b:1": [["t"]]}


class Slow:
    """A checker that answers when it may; how many run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.asked = 0
        self.go_on = asyncio.Event()

    async def __call__(self, _: ReceivedMessage) -> TransactionResolution:
        self.asked += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        return COMMIT


async def test_sixteen_checks_are_answered_at_a_time_and_the_others_after_them(stage: Stage) -> None:
    checker = stage.transacting._run_checker = Slow()
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    for number in range(40):
        stage.calls.lines["a:1"].put_nowait(check_of(number, "a:1"))
    await stage.clock.advance(50)
    assert checker.running == 16
    assert len(stage.transacting._answering) == 16
    checker.go_on.set()
    await stage.clock.advance(50)
    assert (checker.asked, checker.most, checker.running) == (40, 16, 0)
    assert len(stage.calls.ended) == 40
    assert stage.transacting._answering == set(), "nothing is kept of what is over"


@pytest.mark.parametrize("failure", [KeyError("a mistake"), ConnectionFailed("no database"), asyncio.CancelledError()])
async def test_checkers_that_fail_leave_their_room_to_others(
    stage: Stage, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    stage.resolution = failure
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    for number in range(40):
        stage.calls.lines["a:1"].put_nowait(check_of(number, "a:1"))
    await stage.clock.advance(50)
    assert len(stage.asked) == 40
    gc.collect()
    assert problems == [], "a failure is logged, it does not escape the task"
    assert len([line for line in caplog.messages if "the broker will repeat" in line]) == 40


async def test_closing_waits_for_answers_and_ends_lines(stage: Stage) -> None:
    checker = stage.transacting._run_checker = Slow()
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.lines["a:1"].put_nowait(check_of(1, "a:1"))
    await stage.clock.advance(10)
    lines = [line.task for line in stage.transacting._connections.values()]
    assert stage.transacting._looking is not None
    closing = asyncio.ensure_future(stage.transacting.close())
    await stage.clock.advance(CLOSE_MS - 1)
    assert not closing.done()
    assert all(task.cancelled() for task in [*lines, stage.transacting._looking])
    assert stage.transacting._connections == {}
    checker.go_on.set()
    await stage.clock.advance(0)
    assert closing.done(), "it waits no longer than for the answer"
    assert stage.calls.ended == [("a:1", "t1.1", COMMIT, True)]
    await closing


async def test_closing_gives_up_an_answer_that_does_not_come(stage: Stage) -> None:
    checker = stage.transacting._run_checker = Slow()
    stage.transacting.watch(["t"])
    await stage.clock.advance(10)
    stage.calls.lines["a:1"].put_nowait(check_of(1, "a:1"))
    await stage.clock.advance(10)
    closing = asyncio.ensure_future(stage.transacting.close())
    await stage.clock.advance(CLOSE_MS)
    assert closing.done()
    await closing
    assert checker.running == 0, "the checker was cancelled"
    assert stage.calls.ended == []
