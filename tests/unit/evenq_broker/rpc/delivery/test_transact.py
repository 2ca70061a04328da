"""Messages and acks as one group of the log: all or none, once, whatever fails."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.state.records import decode
from evenq_broker.loops.resizing.resizing import drain, left_here, permit
from evenq_broker.rpc.delivery.transact import ACKS_MAX, MESSAGES_MAX
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_proofs.blocks import place
from evenq_proofs.fault_disk import FaultDisk, Keep
from evenq_proofs.v2_requests import ack_request, messages_of, nack_request, receive_request, send_request, v2_message

from evenq.errors import (
    BadRequest,
    Error,
    Forbidden,
    GroupNotFound,
    IllegalMessageId,
    InvalidReceiptHandle,
    NotImplementedYet,
    PreconditionFailed,
    StoreFull,
    TooManyRequests,
    TopicNotFound,
)
from evenq.model import MessageType, Permission, StartFrom
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

TRANSACT = "/evenq.v1.Data/Transact"


async def received(stage: Any, *, count: int = 16, invisible_ms: int = 30_000, **fields: Any) -> list[str]:
    """Handles of the messages that group `g` gets from topic `in`."""
    request = receive_request("g", "in", invisible_ms=invisible_ms, batch_size=count, poll_ms=0, **fields)
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
    return [message.system_properties.receipt_handle for message in messages_of(frames)]


async def held(stage: Any, count: int = 2, *, window_ms: int = 60_000, **settings: Any) -> tuple[Broker, list[str]]:
    """A broker with the topics `in` and `out`, and the handles of messages that group `g` holds."""
    settings = {"duplicates_window_ms": window_ms, "default_start_from": "FIRST", **settings}
    broker = await stage.broker(**settings)
    for topic in ("in", "out"):
        await stage.during(broker.catalog.create_topic(topic, queues=1))
    for number in range(count):
        await stage.ask("SendMessage", send_request("in", f"in{number}"), service_pb2.SendMessageResponse)
    return broker, await received(stage)


def request_of(handles: list[str], *messages: Any, group: str = "g", topic: str = "in") -> Any:
    acks = [data_pb2.TransactAck(topic=topic, receipt_handle=handle) for handle in handles]
    return data_pb2.TransactRequest(group=group, acks=acks, messages=messages)


def result(number: int = 0, **system: Any) -> Any:
    return v2_message("out", f"out{number}", b"%d" % number, **system)


async def transact(stage: Any, handles: list[str], *messages: Any, **fields: Any) -> Any:
    return await stage.call(TRANSACT, request_of(handles, *messages, **fields), data_pb2.TransactResponse)


def outputs(broker: Broker) -> int:
    """The number of consumable messages of `out`."""
    topic = broker.catalog.topics.get("out")
    assert topic is not None
    return broker.ledger.store.queue_range(topic.topic_id, 0)[1]


def unfinished(broker: Broker) -> list[int]:
    return [offset for queue in broker.ledger.progress.queues() for offset in queue.pending]


async def test_messages_and_acks_happen_together(stage: Any) -> None:
    broker, handles = await held(stage, 3)
    answer = await transact(stage, handles[:2], result(0), result(1))
    assert [(one.message_id, one.queue.topic, one.queue.broker_name, one.queue_offset) for one in answer.messages] == [
        ("out0", "out", "a", 0),
        ("out1", "out", "a", 1),
    ]
    assert (outputs(broker), unfinished(broker)) == (2, [2])
    broker.ledger.progress.check()
    await stage.clock.advance(31_000)
    assert len(await received(stage)) == 1, "only the message that was not acknowledged is redelivered"


async def test_a_retry_gets_the_first_result_and_stores_nothing_also_after_a_restart(
    stage: Any, tmp_path: Path
) -> None:
    store = StoreSettings(path=str(tmp_path))
    broker, handles = await held(stage, 2, store=store)
    first = await transact(stage, handles, result(0), result(1))
    assert await transact(stage, handles, result(0), result(1)) == first
    await stage.end(broker)
    broker = await stage.broker(duplicates_window_ms=60_000, store=store)
    assert await transact(stage, handles, result(0), result(1)) == first
    assert (outputs(broker), unfinished(broker)) == (2, [])


async def test_retries_at_the_same_time_get_one_result(stage: Any) -> None:
    broker, handles = await held(stage)
    request = request_of(handles, result(0))
    calls = [stage.call(TRANSACT, request, data_pb2.TransactResponse) for _ in range(3)]
    answers = await asyncio.gather(*calls)
    assert all(answer == answers[0] for answer in answers)
    assert outputs(broker) == 1


async def test_without_known_ids_a_retry_is_refused_and_not_stored(stage: Any) -> None:
    broker, handles = await held(stage, window_ms=0)
    await transact(stage, handles, result(0))
    with pytest.raises(InvalidReceiptHandle, match="2 of its 2 deliveries have ended"):
        await transact(stage, handles, result(0))
    assert outputs(broker) == 1


async def test_acks_alone_are_a_transaction_and_may_be_repeated(stage: Any) -> None:
    broker, handles = await held(stage)
    await transact(stage, handles)
    await transact(stage, handles)
    assert unfinished(broker) == []


async def test_a_member_whose_delivery_ended_cannot_commit(stage: Any) -> None:
    broker, (first,) = await held(stage, 1)
    await stage.clock.advance(31_000)
    (second,) = await received(stage)
    with pytest.raises(InvalidReceiptHandle, match="this call stores nothing"):
        await transact(stage, [first], result(0))
    assert (outputs(broker), unfinished(broker)) == (0, [0])
    await transact(stage, [second], result(1))
    for late in (first, second):
        with pytest.raises(InvalidReceiptHandle, match="messages of 1 of them are finished"):
            await transact(stage, [late], result(2))
    assert outputs(broker) == 1


async def test_one_bad_part_refuses_the_whole(stage: Any) -> None:
    broker, (first, second) = await held(stage)
    await stage.during(broker.catalog.create_topic("other", queues=1))
    await stage.during(broker.catalog.create_topic("lanes", queues=1, message_type=MessageType.FIFO))
    await stage.during(broker.catalog.create_topic("later", queues=1, message_type=MessageType.DELAY))
    await stage.during(broker.catalog.create_group("rival"))
    later = v2_message("later", "later")
    set_ms(later.system_properties.delivery_timestamp, broker.runtime.clock.now_ms() + 10_000)
    before = broker.ledger.journal.records
    good = result(0)
    other_broker = first.replace("e1.a.", "e1.b.")
    for handles, messages, fields, error, words in (
        ([], [good], {}, BadRequest, "0 acknowledgements, the range is 1 to 1000"),
        ([first] * (ACKS_MAX + 1), [good], {}, BadRequest, "1001 acknowledgements"),
        ([first], [good] * (MESSAGES_MAX + 1), {}, BadRequest, "1001 messages"),
        ([first], [good], {"group": "nobody"}, GroupNotFound, "nobody"),
        ([first], [good], {"group": "rival"}, InvalidReceiptHandle, "not of group rival"),
        ([first], [good], {"topic": "other"}, InvalidReceiptHandle, "topic 'other'"),
        ([first], [good], {"topic": "missing"}, InvalidReceiptHandle, "topic 'missing'"),
        ([first, "rubbish"], [good], {}, InvalidReceiptHandle, "rubbish"),
        ([first, other_broker], [good], {}, InvalidReceiptHandle, "is of broker b, this is broker a"),
        ([first, second], [good, v2_message("nowhere", "x")], {}, TopicNotFound, "evenq topic create nowhere"),
        ([first], [good, v2_message("%RETRY%g", "x")], {}, Forbidden, "only the broker writes"),
        ([first], [good, v2_message("out")], {}, IllegalMessageId, "blank"),
        ([first], [good, good], {}, IllegalMessageId, "the same id"),
        ([first], [good, v2_message("out", "x", b"x" * (5 << 20))], {}, Error, "the limit is 4194304"),
        ([first], [good, v2_message("lanes", "x", message_group="l")], {}, NotImplementedYet, "is FIFO"),
        ([first], [good, later], {}, NotImplementedYet, "is DELAY"),
    ):
        with pytest.raises(error, match=words):
            await transact(stage, handles, *messages, **fields)
    assert (outputs(broker), unfinished(broker), broker.ledger.journal.records) == (0, [0, 1], before)
    await transact(stage, [first, second], good)  # nothing of the refused ones was left behind


async def test_a_drained_broker_stores_the_results_of_what_it_delivered(stage: Any) -> None:
    broker, handles = await held(stage)
    await stage.during(drain(broker.kernel, on=True))
    sent = service_pb2.SendMessageRequest(messages=[v2_message("out", "plain")])
    refused = await stage.ask("SendMessage", sent, service_pb2.SendMessageResponse)
    assert refused.status.code == definition_pb2.FORBIDDEN
    await transact(stage, handles, result(0))
    assert (outputs(broker), unfinished(broker)) == (1, [])


async def test_a_drained_broker_is_not_empty_while_a_transaction_is_stored(stage: Any) -> None:
    broker, handles = await held(stage)
    await stage.during(drain(broker.kernel, on=True))
    slow, call = await under_way(stage, broker, handles)
    parts = {"membership": broker.membership, "lite": broker.lite, "schedules": broker.schedules.table}
    assert [one.lag for one in left_here(broker.kernel, **parts).unfinished] == [2]
    assert slow.answer is not None
    slow.answer.set_result(None)
    await call
    assert left_here(broker.kernel, **parts).empty


async def test_an_output_topic_that_is_closed_for_writing_is_refused(stage: Any) -> None:
    broker, handles = await held(stage)
    await stage.during(permit(broker.kernel, "out", Permission.READ))
    with pytest.raises(Forbidden, match="topic out has no writable queue"):
        await transact(stage, handles, result(0))
    assert (outputs(broker), unfinished(broker)) == (0, [0, 1])


async def test_a_topic_of_other_brokers_alone_is_refused_with_the_command_that_adds_it(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, handles = await held(stage)
    monkeypatch.setattr(type(broker.catalog.routes), "route", lambda _, name: [name])
    with pytest.raises(PreconditionFailed, match=r"no queue at broker a.*evenq topic create elsewhere --broker a:8"):
        await transact(stage, handles, v2_message("elsewhere", "x"))
    assert unfinished(broker) == [0, 1]


async def test_ids_of_other_sends_are_refused(stage: Any) -> None:
    broker, handles = await held(stage)
    sent = service_pb2.SendMessageRequest(messages=[result(0)])
    await stage.ask("SendMessage", sent, service_pb2.SendMessageResponse)
    for messages in ([result(0)], [result(0), result(1)]):
        with pytest.raises(IllegalMessageId, match="another send stored message 'out0'"):
            await transact(stage, handles, *messages)
    assert (outputs(broker), unfinished(broker)) == (1, [0, 1])


async def test_ordered_groups_and_deliveries_to_push_consumers_are_refused(stage: Any) -> None:
    broker, _ = await held(stage, 0)
    await stage.ask("SendMessage", send_request("in", "in0"), service_pb2.SendMessageResponse)
    (handle,) = await received(stage, auto_renew=True)
    with pytest.raises(NotImplementedYet, match="push consumer"):
        await transact(stage, [handle], result(0))
    await stage.during(broker.catalog.create_group("ordered", ordered=True))
    with pytest.raises(NotImplementedYet, match="group ordered is ordered"):
        await transact(stage, [handle], result(0), group="ordered")
    assert outputs(broker) == 0


class SlowStore:
    """Holds the answers of appends with messages."""

    def __init__(self, broker: Broker) -> None:
        store: Any = broker.ledger.store
        self._append = store.append
        self.answer: asyncio.Future[None] | None = None
        store.append = self.append

    def append(self, entries: Any, **options: Any) -> asyncio.Future[None]:
        if self.answer is not None or not options.get("state"):
            return self._append(entries, **options)  # type: ignore[no-any-return]
        self.answer = asyncio.get_running_loop().create_future()
        return self.answer


async def under_way(stage: Any, broker: Broker, handles: list[str]) -> tuple[SlowStore, asyncio.Task[Any]]:
    slow = SlowStore(broker)
    call = asyncio.ensure_future(transact(stage, handles, result(0)))
    await stage.until(lambda: slow.answer is not None)
    return slow, call


def snapshot(broker: Broker) -> list[int]:
    """Unfinished messages in a snapshot of the broker's state now."""
    restored = Progress()
    for op in decode(broker.ledger._state()):
        if type(op).__name__ in ("Committed", "Delivered", "Acked", "Invisible"):
            restored.apply(op)  # type: ignore[arg-type]
    return [offset for queue in restored.queues() for offset in queue.pending]


async def test_while_it_is_stored_nobody_else_settles_or_gets_its_messages(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    await stage.clock.advance(31_000)
    assert await received(stage) == []
    nack = nack_request("g", "in", handles[0], 0)
    answer = await stage.ask("ChangeInvisibleDuration", nack, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    with pytest.raises(InvalidReceiptHandle):
        await transact(stage, handles, result(7))
    broker.ledger.progress.check()
    assert snapshot(broker) == [], "a snapshot includes what is being stored"
    assert slow.answer is not None
    slow.answer.set_result(None)
    assert snapshot(broker) == [], "in the step of the answer, too"
    await call
    assert (unfinished(broker), snapshot(broker)) == ([], [])


async def test_a_refused_group_changes_nothing_and_a_retry_stores_it(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    assert slow.answer is not None
    slow.answer.set_exception(StoreFull("no space"))
    assert snapshot(broker) == [0, 1], "no snapshot may lack what the log lacks, not even for one step"
    with pytest.raises(Error, match="no space"):
        await call
    broker.ledger.progress.check()
    await transact(stage, handles, result(0))
    assert (outputs(broker), unfinished(broker)) == (1, [])


async def test_after_a_refused_group_its_deliveries_end_in_time(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    await stage.clock.advance(31_000)
    assert slow.answer is not None
    slow.answer.set_exception(StoreFull("no space"))
    with pytest.raises(Error, match="no space"):
        await call
    await stage.clock.advance(100)
    assert len(await received(stage)) == 2


async def test_an_ack_of_its_consumer_meanwhile_counts_and_a_reset_wins(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    ack = ack_request("g", "in", handles[0])
    answer = await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    assert answer.status.code == definition_pb2.OK
    [queue] = broker.ledger.progress.queues()
    broker.ledger.progress.commit(queue.group_id, queue.topic_id, queue.queue_id, 0, allow_backward=True)
    assert slow.answer is not None
    slow.answer.set_exception(StoreFull("no space"))
    with pytest.raises(Error, match="no space"):
        await call
    broker.ledger.progress.check()
    assert len(await received(stage)) == 2


FORWARD = "ForwardMessageToDeadLetterQueue"


async def forward(stage: Any, handle: str, message_id: str = "in0") -> int:
    request = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id=message_id)
    request.group.name, request.topic.name = "g", "in"
    return int((await stage.ask(FORWARD, request, service_pb2.ForwardMessageToDeadLetterQueueResponse)).status.code)


async def forward_by_handle(stage: Any, handle: str) -> None:
    assert await forward(stage, handle) == definition_pb2.OK


async def forward_by_id(stage: Any, handle: str) -> None:
    """As C++ does it: without a handle."""
    assert await forward(stage, "") == definition_pb2.OK


async def nack(stage: Any, handle: str) -> None:
    request = nack_request("g", "in", handle, 0)
    answer = await stage.ask("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


async def prolong(stage: Any, handle: str) -> None:
    request = nack_request("g", "in", handle, 60_000)
    answer = await stage.ask("ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == definition_pb2.INVALID_RECEIPT_HANDLE


async def commit_again(stage: Any, handle: str) -> None:
    with pytest.raises(InvalidReceiptHandle):
        await transact(stage, [handle], result(7))


async def wait_for_the_end(stage: Any, handle: str) -> None:
    await stage.clock.advance(31_000)


async def receive_again(stage: Any, handle: str) -> None:
    assert await received(stage) == []


async def send_back(stage: Any, attempts: int = 1) -> None:
    request = data_pb2.SendBackRequest(group="g", queue=place(0, topic="in"), attempts=attempts)
    await stage.call("/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)


async def send_back_while_fenced(stage: Any, handle: str) -> None:
    with pytest.raises(TooManyRequests, match="another call is finishing this message"):
        await send_back(stage)


WAYS = [forward_by_handle, forward_by_id, nack, prolong, commit_again, wait_for_the_end, receive_again]


def copies(broker: Broker) -> int:
    """Dead letters and delayed copies of group `g`."""
    store = broker.ledger.store
    dead = broker.catalog.topics.get("%DLQ%g")
    return store.timers.stats.pending + (0 if dead is None else store.queue_range(dead.topic_id, 0)[1])


@pytest.mark.parametrize("way", [*WAYS, send_back_while_fenced], ids=lambda way: way.__name__)
@pytest.mark.parametrize("stored", [True, False])
async def test_while_it_is_stored_no_other_way_ends_a_delivery_of_it(stage: Any, way: Any, stored: bool) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    await way(stage, handles[0])
    broker.ledger.progress.check()
    assert (unfinished(broker), copies(broker)) == ([0, 1], 0)
    assert slow.answer is not None
    if stored:
        slow.answer.set_result(None)
        await call
        assert (unfinished(broker), copies(broker)) == ([], 0)
        return
    slow.answer.set_exception(StoreFull("no space"))
    with pytest.raises(Error, match="no space"):
        await call
    broker.ledger.progress.check()
    await stage.clock.advance(31_000)
    assert len(await received(stage)) == 2, "what no call ended is redelivered"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_after_it_no_other_way_moves_its_messages(stage: Any, way: Any) -> None:
    broker, handles = await held(stage)
    await transact(stage, handles, result(0))
    await way(stage, handles[0])
    broker.ledger.progress.check()
    assert (unfinished(broker), copies(broker), outputs(broker)) == ([], 0, 1)


async def test_a_commit_of_a_member_past_its_messages_finishes_them_also_if_it_is_refused(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    offsets = [data_pb2.CommitOffset(queue=place(0, topic="in"), offset=2)]
    request = data_pb2.CommitOffsetsRequest(group="g", offsets=offsets)
    await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert slow.answer is not None
    slow.answer.set_exception(StoreFull("no space"))
    with pytest.raises(Error, match="no space"):
        await call
    broker.ledger.progress.check()
    assert unfinished(broker) == []
    with pytest.raises(InvalidReceiptHandle):
        await transact(stage, handles, result(0))


async def test_a_transaction_after_a_reset_is_refused(stage: Any) -> None:
    broker, handles = await held(stage)
    [queue] = broker.ledger.progress.queues()
    broker.ledger.progress.commit(queue.group_id, queue.topic_id, queue.queue_id, 0, allow_backward=True)
    with pytest.raises(InvalidReceiptHandle):
        await transact(stage, handles, result(0))
    assert (len(await received(stage)), outputs(broker)) == (2, 0)


class SlowCopy:
    """Holds the answers of appends without acks: copies of messages."""

    def __init__(self, broker: Broker) -> None:
        store: Any = broker.ledger.store
        self._append = store.append
        self.waits, self.full, self.count = asyncio.Event(), False, 0
        store.append = self.append

    async def append(self, entries: Any, **options: Any) -> Any:
        if not (entries or options.get("timers")) or options.get("state"):
            return await self._append(entries, **options)
        self.count += 1
        await self.waits.wait()
        if self.full:
            raise StoreFull("no space")
        return await self._append(entries, **options)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("by", ["handle", "id", "SendBack"])
async def test_a_message_that_is_being_copied_is_in_no_transaction(stage: Any, by: str, full: bool) -> None:
    """And a repetition of the call makes no second copy."""
    broker, handles = await held(stage, count=1)
    for topic in ("%DLQ%g", "%RETRY%g"):
        await stage.during(broker.catalog.create_topic(topic, queues=1, system=True))
    slow = SlowCopy(broker)

    def move() -> asyncio.Future[Any]:
        one = send_back(stage) if by == "SendBack" else forward(stage, handles[0] if by == "handle" else "")
        return asyncio.ensure_future(one)

    first = move()
    await stage.until(lambda: slow.count == 1)
    second = move()
    await commit_again(stage, handles[0])
    broker.ledger.progress.check()
    assert snapshot(broker) == [0], "the copy may not be stored"
    await stage.clock.advance(50)
    assert not second.done()
    slow.full = full
    slow.waits.set()
    await asyncio.gather(first, second, return_exceptions=True)
    broker.ledger.progress.check()
    assert slow.count == 1
    assert (unfinished(broker), copies(broker)) == (([0], 0) if full else ([], 1))
    if full:
        slow.full = False
        await transact(stage, handles, result(0))
    else:
        await commit_again(stage, handles[0])
    assert outputs(broker) == int(full)


async def test_a_copy_whose_caller_is_gone_finishes_the_message(stage: Any) -> None:
    broker, handles = await held(stage, count=1)
    slow = SlowCopy(broker)
    call = asyncio.ensure_future(forward(stage, handles[0]))
    await stage.until(lambda: slow.count == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    slow.waits.set()
    await stage.clock.advance(10)
    assert (unfinished(broker), copies(broker)) == ([], 1)


async def test_a_reset_while_a_message_is_copied_delivers_it_again(stage: Any) -> None:
    broker, handles = await held(stage, count=1)
    slow = SlowCopy(broker)
    call = asyncio.ensure_future(forward(stage, handles[0]))
    await stage.until(lambda: slow.count == 1)
    [queue] = broker.ledger.progress.queues()
    broker.ledger.progress.commit(queue.group_id, queue.topic_id, queue.queue_id, 0, allow_backward=True)
    [again] = await received(stage)
    slow.waits.set()
    await call
    broker.ledger.progress.check()
    await transact(stage, [again], result(0))
    assert (unfinished(broker), copies(broker), outputs(broker)) == ([], 1, 1)


async def test_a_message_whose_time_has_passed_may_be_forwarded_until_it_is_redelivered(stage: Any) -> None:
    broker, handles = await held(stage, count=1)
    await stage.clock.advance(31_000)
    await forward_by_handle(stage, handles[0])
    broker.ledger.progress.check()
    assert (unfinished(broker), copies(broker)) == ([], 1)


async def test_a_client_that_is_gone_while_its_message_is_copied_holds_it_no_longer_if_that_fails(stage: Any) -> None:
    broker, _ = await held(stage, count=0)
    await stage.ask("SendMessage", send_request("in", "in0"), service_pb2.SendMessageResponse)
    [handle] = await received(stage, auto_renew=True)
    slow = SlowCopy(broker)
    call = asyncio.ensure_future(forward(stage, handle))
    await stage.until(lambda: slow.count == 1)
    broker.ledger.progress.release("c", broker.runtime.now_ms() + 5_000)
    broker.ledger.progress.check()
    slow.full = True
    slow.waits.set()
    await call
    broker.ledger.progress.check()
    await stage.clock.advance(20_000)
    assert len(await received(stage)) == 1


async def test_the_last_attempt_that_was_given_back_is_in_no_transaction(stage: Any) -> None:
    broker, _ = await held(stage, count=0)
    await stage.during(broker.catalog.create_group("last", max_attempts=1, start_from=StartFrom.FIRST))
    await stage.ask("SendMessage", send_request("in", "in0"), service_pb2.SendMessageResponse)
    request = receive_request("last", "in", invisible_ms=30_000, batch_size=1, poll_ms=0)
    [message] = messages_of(await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse))
    handle = message.system_properties.receipt_handle
    slow = SlowCopy(broker)
    back = nack_request("last", "in", handle, 0)
    await stage.ask("ChangeInvisibleDuration", back, service_pb2.ChangeInvisibleDurationResponse)
    await stage.until(lambda: slow.count == 1)
    with pytest.raises(InvalidReceiptHandle):
        await transact(stage, [handle], result(0), group="last")
    slow.waits.set()
    await stage.clock.advance(10)
    assert (unfinished(broker), outputs(broker)) == ([], 0)


async def test_a_repeated_receive_returns_no_message_that_a_transaction_finishes_meanwhile(stage: Any) -> None:
    """Its record would also deliver the message again after a restart."""
    broker, _ = await held(stage, count=0)
    await stage.ask("SendMessage", send_request("in", "in0"), service_pb2.SendMessageResponse)
    handles = await received(stage, attempt_id="one")
    store: Any = broker.ledger.store
    read_at, disk, reads = store.read_at, asyncio.Event(), []

    async def slow(*places: Any, **options: Any) -> Any:
        reads.append(places)
        await disk.wait()
        return await read_at(*places, **options)

    store.read_at = slow
    again = asyncio.ensure_future(received(stage, attempt_id="one"))
    await stage.until(lambda: len(reads) > 0)
    _, call = answer_later = await under_way(stage, broker, handles)
    disk.set()
    assert await again == []
    assert answer_later[0].answer is not None
    answer_later[0].answer.set_result(None)
    await call
    assert unfinished(broker) == []


async def test_a_call_that_its_client_gives_up_is_stored_and_its_retry_knows(stage: Any) -> None:
    broker, handles = await held(stage)
    slow, call = await under_way(stage, broker, handles)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert slow.answer is not None
    slow.answer.set_result(None)
    await stage.clock.advance(10)
    assert unfinished(broker) == []


class Machine:
    """A broker on a disk whose machine may stop, and the next broker on what that left."""

    def __init__(self, stage: Any, disk: FaultDisk) -> None:
        self.stage, self.disk = stage, disk

    async def broker(self) -> Broker:
        settings = BrokerSettings(
            broker_name="a", default_start_from="FIRST", duplicates_window_ms=60_000, store=StoreSettings(flush="sync")
        )
        self.running = Broker(
            settings, clock=self.stage.clock, rng=random.Random("a"), net=self.stage.net, disk=self.disk
        )
        await self.running.open()
        await self.stage.begin(self.running)
        return self.running

    async def stops(self, keep: Keep, rng: random.Random) -> None:
        after = self.disk.crash(keep, rng)
        self.stage.brokers.remove(self.running)
        await self.stage.during(self.running.close())
        self.disk = after


async def story(stage: Any, cut: tuple[int, int], keep: Keep, *, snapshot: bool) -> tuple[bool, bool]:
    """One transaction during which the machine stops at a change of the disk: (number from its beginning, bytes of a
    write). Returns whether it stopped before an answer, and whether the transaction is stored.
    """
    machine = Machine(stage, FaultDisk())
    broker = await machine.broker()
    for topic in ("in", "out"):
        await stage.during(broker.catalog.create_topic(topic, queues=1))
    for number in range(3):
        await stage.ask("SendMessage", send_request("in", f"in{number}"), service_pb2.SendMessageResponse)
    handles = await received(stage)
    begun = machine.disk.operations
    machine.disk.cut = begun + cut[0], cut[1]
    call = asyncio.ensure_future(transact(stage, handles[:2], result(0), result(1)))
    if snapshot:
        await asyncio.sleep(0)
        await asyncio.gather(
            stage.during(broker.ledger.store.save_snapshot(broker.ledger._state())), return_exceptions=True
        )
    [answer] = await asyncio.gather(call, return_exceptions=True)
    await machine.stops(keep, random.Random(str((cut, keep))))
    broker = await machine.broker()
    found = outputs(broker), unfinished(broker)
    assert found in ((2, [2]), (0, [0, 1, 2])), f"half of it is there: {found}"
    assert not isinstance(answer, data_pb2.TransactResponse) or found[0] == 2, "it was answered and is not there"
    await transact(stage, handles[:2], result(0), result(1))
    assert (outputs(broker), unfinished(broker)) == (2, [2]), "its retry makes it whole, once"
    broker.ledger.progress.check()
    await stage.end(broker)
    return not isinstance(answer, data_pb2.TransactResponse), found[0] == 2


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("keep", list(Keep))
async def test_wherever_the_machine_stops_all_of_it_is_there_or_nothing(stage: Any, keep: Keep, snapshot: bool) -> None:
    # A snapshot alone has about twenty changes; the group is one write and one sync.
    numbers, sizes = (range(24), (0, 200)) if snapshot else (range(4), (0, 1, 60, 200, 350, 500, 1 << 20))
    seen = {await story(stage, (number, size), keep, snapshot=snapshot) for number in numbers for size in sizes}
    assert seen >= {(True, False), (False, True)}, "it stopped before the write, and after the answer"
    assert (True, True) in seen or keep is not Keep.ALL, "it stopped between them"
