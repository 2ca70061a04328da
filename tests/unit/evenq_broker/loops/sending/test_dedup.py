"""A retry of a producer at the same broker is stored once (checklist 20): v2 and evenq.v1, each kind of message, while
the first try is under way, after it failed or was broken off, and after a restart."""

import asyncio
import gc
from hashlib import sha1
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from evenq_broker.core.sending.plain_sends import PlainSends

from evenq.errors import HaNotAvailable, PersistenceTimeout, StoreFull, TooManyRequests
from evenq.model import MessageType
from evenq.serving.rpc import RpcContext
from evenq.store import MessageStore
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
WINDOW = {"duplicates_window_ms": 60_000}


@pytest.fixture(autouse=True, params=["from its bytes", "by the full path"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain messages are read in both ways."""
    if request.param == "by the full path":
        monkeypatch.setattr(PlainSends, "read", lambda self, request: None)
        monkeypatch.setattr(PlainSends, "read_block", lambda self, request: None)


def request(*ids: str, body: bytes = b"x", topic: str = "t") -> service_pb2.SendMessageRequest:
    made = service_pb2.SendMessageRequest()
    for message_id in ids:
        message = made.messages.add(body=body)
        message.topic.name = topic
        message.system_properties.message_id = message_id
        message.system_properties.born_timestamp.seconds = 1_700_000_000
    return made


async def send(stage: Any, response: service_pb2.SendMessageRequest) -> Any:
    return await stage.ask("SendMessage", response, service_pb2.SendMessageResponse)


def stored(broker: Any, topic: str = "t") -> int:
    config = broker.catalog.topics.get(topic)
    return sum(broker.ledger.store.queue_range(config.topic_id, queue)[1] for queue in range(config.write_queues))


def duplicates(broker: Any, topic: str = "t") -> int:
    return int(broker.runtime.stats.topic(broker.catalog.topics.get(topic).topic_id).duplicates)


def block(*ids: str, queue_id: int = 0) -> data_pb2.PublishRequest:
    made = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id))
    for message_id in ids:
        system = made.messages.add(body=b"x").system_properties
        system.message_id = message_id
        system.born_timestamp.seconds = 1_700_000_000
    return made


async def publish(stage: Any, response: data_pb2.PublishRequest) -> Any:
    return await stage.call("/evenq.v1.Data/Publish", response, data_pb2.PublishResponse)


async def test_a_retry_gets_the_first_answer_and_is_counted(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    first = await send(stage, request("one"))
    await send(stage, request("two"))
    again = await send(stage, request("one"))
    assert again == first
    assert (stored(broker), duplicates(broker), broker.runtime.stats.messages_in) == (2, 1, 2)


async def test_every_message_of_a_call_is_known_and_not_the_first_alone(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await send(stage, request("one", "two", "three"))
    for again in ("three", "two"):
        await send(stage, request(again))
    await send(stage, request("four", "one"))
    assert (stored(broker), duplicates(broker)) == (4, 3)
    await publish(stage, block("five", "six", "seven"))
    await publish(stage, block("six"))
    await publish(stage, block("seven", "eight"))
    assert (stored(broker), duplicates(broker)) == (8, 5)


async def test_another_topic_or_another_body_is_no_retry(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await send(stage, request("one"))
    await send(stage, request("one", topic="u"))
    await send(stage, request("one", body=b"y"))
    assert (stored(broker), stored(broker, "u"), duplicates(broker)) == (2, 1, 0)


async def test_ids_that_differ_anywhere_are_other_messages(stage: Any) -> None:
    """Ids of one process begin and end alike: the window must know them whole."""
    broker = await stage.broker(**WINDOW)
    ids = ["01AABBCCDD0000000001FFFF", "01AABBCCDD0000000002FFFF", "01AABBCCDD0000000101FFFF", "01AA", "FFFF"]
    for message_id in ids:
        await send(stage, request(message_id))
    assert (stored(broker), duplicates(broker)) == (len(ids), 0)
    await publish(stage, block(*(f"02{one}" for one in ids)))
    assert (stored(broker), duplicates(broker)) == (2 * len(ids), 0)


async def test_without_a_window_each_try_is_a_message(stage: Any) -> None:
    broker = await stage.broker(duplicates_window_ms=0)
    for _ in range(3):
        await send(stage, request("one"))
    assert broker.deduplicator is None
    assert stored(broker) == 3


async def test_after_the_window_it_is_a_new_message(stage: Any) -> None:
    broker = await stage.broker(duplicates_window_ms=1_000)
    await send(stage, request("one"))
    await stage.clock.advance(800)
    await send(stage, request("one"))
    assert stored(broker) == 1
    await stage.clock.advance(1_200)
    await send(stage, request("one"))
    assert stored(broker) == 2


async def test_retries_that_come_while_the_first_is_written_wait_for_its_answer(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    answers = await asyncio.gather(*(asyncio.ensure_future(send(stage, request("one"))) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert (stored(broker), duplicates(broker)) == (1, 4)


async def test_each_message_of_a_call_answers_the_retries_that_wait_for_it(stage: Any, monkeypatch: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    append, held = broker.ledger.store.append, asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> None:
        await held.wait()
        await append(*args, **kwargs)

    monkeypatch.setattr(type(broker.ledger.store), "append", lambda self, *args, **kwargs: slow(*args, **kwargs))
    first = asyncio.ensure_future(send(stage, request("one", "two")))
    await stage.clock.advance(10)
    retries = [asyncio.ensure_future(send(stage, request(name))) for name in ("one", "two")]
    await stage.until(lambda: len(broker.deduplicator.waits) == 2)
    held.set()
    assert [entry.offset for entry in (await first).entries] == [0, 1]
    assert [(await retry).entries[0].offset for retry in retries] == [0, 1]
    assert (stored(broker), duplicates(broker)) == (2, 2)


async def test_a_message_in_the_place_of_a_call_that_was_broken_off_is_not_taken_for_its_own(
    stage: Any, monkeypatch: Any
) -> None:
    """An append that fails gives its place back; the next message of the queue has it."""
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    store = broker.ledger.store

    async def failing(messages: Any, **_: Any) -> None:
        messages[0].queue_offset = 0
        await asyncio.get_running_loop().create_future()

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "append", lambda self, *args, **kwargs: failing(*args, **kwargs))
        call = asyncio.ensure_future(send(stage, request("one")))
        await stage.clock.advance(10)
    assert (await send(stage, request("two"))).entries[0].offset == 0
    call.cancel()
    assert (await send(stage, request("one"))).entries[0].offset == 1
    assert (stored(broker), duplicates(broker)) == (2, 0)


@pytest.mark.parametrize("delayed", [False, True])
async def test_a_retry_of_a_failed_try_is_stored(stage: Any, delayed: bool) -> None:
    broker = await stage.broker(**WINDOW)
    kind = MessageType.DELAY if delayed else MessageType.NORMAL
    await stage.during(broker.catalog.create_topic("t", queues=1, message_type=kind))
    one = request("one")
    if delayed:
        one.messages[0].system_properties.delivery_timestamp.seconds = stage.clock.now_ms() // 1000 + 1
    broker.ledger.store._state.set_full(StoreFull("the broker's disk is 95% full"))
    assert (await send(stage, one)).status.code == definition_pb2.TOO_MANY_REQUESTS
    broker.ledger.store._state.set_full(None)
    assert (await send(stage, one)).status.code == definition_pb2.OK
    await stage.until(lambda: stored(broker) == 1)
    assert duplicates(broker) == 0


async def test_a_retry_that_waited_for_a_try_that_failed_is_stored_by_itself(stage: Any, monkeypatch: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    append, late = broker.ledger.store.append, asyncio.get_running_loop().create_future()
    monkeypatch.setattr(type(broker.ledger.store), "append", lambda self, *args, **kwargs: late)
    first, second = (asyncio.ensure_future(send(stage, request("one"))) for _ in range(2))
    await stage.until(lambda: bool(broker.deduplicator.waits))
    monkeypatch.setattr(type(broker.ledger.store), "append", lambda self, *args, **kwargs: append(*args, **kwargs))
    late.set_exception(TooManyRequests("the first one fails"))
    assert (await first).status.code == definition_pb2.TOO_MANY_REQUESTS
    assert (await second).status.code == definition_pb2.OK
    assert stored(broker) == 1


@pytest.mark.parametrize("way", ["v2", "evenq.v1"])
async def test_the_message_of_a_call_that_was_broken_off_is_found_by_its_retry(stage: Any, way: str) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    method, result = (SEND, request("one")) if way == "v2" else ("/evenq.v1.Data/Publish", block("one"))
    [rpc] = [rpc for rpc in broker.rpcs() if rpc.method == method]
    context = RpcContext(method, (), "test", None)
    context.plain = rpc.plain and rpc.plain(result.SerializeToString())
    call = asyncio.ensure_future(rpc.handler(result.SerializeToString(), context))
    await asyncio.sleep(0)
    call.cancel()
    if way == "v2":
        assert (await send(stage, request("one"))).entries[0].offset == 0
    else:
        assert list((await publish(stage, block("one"))).offsets) == [0]
    assert (stored(broker), duplicates(broker)) == (1, 1)


@pytest.mark.parametrize("way", ["v2", "evenq.v1"])
@pytest.mark.parametrize("records", ["taken", "refused"])
async def test_a_call_that_was_broken_off_is_looked_for_after_what_was_queued_before_it_has_its_outcome(
    stage: Any, monkeypatch: Any, way: str, records: str
) -> None:
    """A leader that lacks copies refuses records, but may still commit what it took before."""
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    method, result = (SEND, request("one")) if way == "v2" else ("/evenq.v1.Data/Publish", block("one"))
    [rpc] = [rpc for rpc in broker.rpcs() if rpc.method == method]
    context = RpcContext(method, (), "test", None)
    context.plain = rpc.plain and rpc.plain(result.SerializeToString())
    call = asyncio.ensure_future(rpc.handler(result.SerializeToString(), context))
    await asyncio.sleep(0)

    def refused(_: bytes) -> asyncio.Future[None]:
        raise HaNotAvailable("nothing is taken now: 1 of 2 copies are in sync; try again")

    store, settled = broker.ledger.store, False
    append_state, settle, read_at = store.append_state, store.settle, store.read_at

    async def append_first(data: bytes) -> None:
        nonlocal settled
        await append_state(data)
        settled = True

    async def settle_first(within_ms: int) -> None:
        nonlocal settled
        await settle(within_ms)
        settled = True

    async def read_committed(*place: Any) -> Any:
        return await read_at(*place) if settled else []

    monkeypatch.setattr(store, "append_state", append_first if records == "taken" else refused)
    monkeypatch.setattr(store, "settle", settle_first)
    monkeypatch.setattr(store, "read_at", read_committed)
    call.cancel()
    if way == "v2":
        assert (await send(stage, request("one"))).entries[0].offset == 0
    else:
        assert list((await publish(stage, block("one"))).offsets) == [0]
    assert (stored(broker), duplicates(broker)) == (1, 1)
    monkeypatch.undo()


@pytest.mark.parametrize("mistake", [False, True])
async def test_the_outcome_of_a_call_that_was_broken_off_is_in_the_log_only_if_it_is_a_mistake_of_ours(
    stage: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture, mistake: bool
) -> None:
    """A leader that is deposed fails what was sent to it, also where the sender has gone: that is no stack trace."""
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=1, message_type=MessageType.DELAY))
    held = asyncio.Event()

    async def deposed(*_: Any, **__: Any) -> None:
        await held.wait()
        raise ValueError("a slip") if mistake else PersistenceTimeout("epoch 2 began")

    monkeypatch.setattr(broker.ledger.store, "append", deposed)
    delayed = request("one")
    delayed.messages[0].system_properties.delivery_timestamp.seconds = stage.clock.now_ms() // 1000 + 60
    [rpc] = [rpc for rpc in broker.rpcs() if rpc.method == SEND]
    data = delayed.SerializeToString()
    context = RpcContext(SEND, (), "test", None)
    context.plain = rpc.plain and rpc.plain(data)
    call = asyncio.ensure_future(rpc.handler(data, context))
    for _ in range(5):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    held.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    monkeypatch.undo()
    gc.collect()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == (["store a message failed after its caller was cancelled"] if mistake else [])


async def test_fifo_delayed_and_half_messages_are_stored_once_too(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=4, message_type=MessageType.MIXED))
    fifo, delayed, half = request("fifo"), request("delayed"), request("half")
    fifo.messages[0].system_properties.message_group = "g"
    due = stage.clock.now_ms() + 60_000
    delayed.messages[0].system_properties.delivery_timestamp.seconds = due // 1000
    half.messages[0].system_properties.message_type = definition_pb2.TRANSACTION
    for value in (fifo, delayed, half):
        first = await send(stage, value)
        assert first.status.code == definition_pb2.OK
        assert await send(stage, value) == first, "with its transaction id, its recall handle"
    assert (stored(broker), duplicates(broker)) == (1, 3)
    assert broker.ledger.store.stats.timers == 2


async def test_a_list_with_old_and_new_messages_gets_each_its_answer(stage: Any) -> None:
    broker = await stage.broker(default_queues=1, **WINDOW)
    await send(stage, request("a", "b"))
    answer = await send(stage, request("b", "c", "c", "a", ""))
    reported = [(entry.message_id, entry.status.code, entry.offset) for entry in answer.entries]
    ok = definition_pb2.OK
    assert reported[:4] == [("b", ok, 1), ("c", ok, 2), ("c", ok, 2), ("a", ok, 0)]
    assert answer.entries[4].status.code == definition_pb2.ILLEGAL_MESSAGE_ID
    assert (stored(broker), duplicates(broker)) == (3, 3)


async def test_a_block_that_comes_again_is_answered_with_its_old_places(stage: Any) -> None:
    broker = await stage.broker(**WINDOW)
    await stage.during(broker.catalog.create_topic("t", queues=2))
    first = await publish(stage, block("a", "b"))
    assert (first.first_offset, list(first.offsets)) == (0, [])
    again = await publish(stage, block("a", "b", "c", queue_id=1))
    assert list(zip(again.queue_ids, again.offsets, strict=True)) == [(0, 0), (0, 1), (1, 0)]
    assert (stored(broker), duplicates(broker)) == (3, 2)


async def test_what_came_just_before_a_restart_is_known_after_it(stage: Any, tmp_path: Path) -> None:
    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(**settings)
    await send(stage, request("old"))
    await stage.clock.advance(61_000)
    first = await send(stage, request("one"))
    await stage.end(broker)
    broker = await stage.broker(**settings)
    assert await send(stage, request("one")) == first
    assert len(broker.deduplicator.recent) == 1, "only what the window holds is read back"
    await send(stage, request("old"))
    assert (stored(broker), duplicates(broker)) == (3, 1)


def of_each_kind(now_ms: int) -> dict[str, service_pb2.SendMessageRequest]:
    """One message of each kind, for the topic that takes it."""
    made = {kind: request(kind, topic=kind) for kind in ("fifo", "delayed", "half", "priority", "lite")}
    system = {kind: one.messages[0].system_properties for kind, one in made.items()}
    system["fifo"].message_group = "g"
    system["delayed"].delivery_timestamp.FromMilliseconds(now_ms + 60_000)
    system["half"].message_type = definition_pb2.TRANSACTION
    system["priority"].priority = 3
    system["lite"].lite_topic = "room-1"
    return made


TYPES = {
    "fifo": MessageType.FIFO,
    "delayed": MessageType.DELAY,
    "half": MessageType.TRANSACTION,
    "priority": MessageType.PRIORITY,
    "lite": MessageType.LITE,
}


@pytest.mark.parametrize("kind", TYPES)
async def test_a_message_of_any_kind_is_known_after_a_restart_with_its_first_answer(
    stage: Any, tmp_path: Path, kind: str
) -> None:
    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic(kind, queues=4, message_type=TYPES[kind]))
    sent = of_each_kind(stage.clock.now_ms())[kind]
    first = await send(stage, sent)
    assert first.status.code == definition_pb2.OK
    records = stored(broker, kind), len(broker.ledger.store.timers.pending)
    await stage.end(broker)
    broker = await stage.broker(**settings)
    assert await send(stage, sent) == first, "with its offset, its transaction id, its recall handle"
    assert (stored(broker, kind), len(broker.ledger.store.timers.pending)) == records
    assert duplicates(broker, kind) == 1


@pytest.mark.parametrize("kind", ["plain", *TYPES])
@pytest.mark.parametrize(("before", "after"), [("md5", "crc32"), ("crc32", "md5")])
async def test_the_window_does_not_depend_on_the_digest_that_is_stored(
    stage: Any, tmp_path: Path, kind: str, before: str, after: str
) -> None:
    """Brokers of 0.2 stored MD5: a message that came shortly before an upgrade is known after it."""
    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(body_digest=before, **settings)
    await stage.during(broker.catalog.create_topic(kind, queues=4, message_type=TYPES.get(kind, MessageType.NORMAL)))
    sent = {**of_each_kind(stage.clock.now_ms()), "plain": request("plain", topic="plain")}[kind]
    sent.messages[0].user_properties["a"] = "v" * 200
    low = request("low", topic=kind)
    low.MergeFrom(sent)
    del low.messages[0]
    low.messages[0].system_properties.message_id = "low"
    low.messages[0].body = next(body for body in map(str.encode, map(str, range(99))) if crc32(body) < 1 << 28)
    firsts = [await send(stage, one) for one in (sent, low)]
    assert {one.status.code for one in firsts} == {definition_pb2.OK}
    assert [await send(stage, one) for one in (sent, low)] == firsts
    records = stored(broker, kind), len(broker.ledger.store.timers.pending)
    await stage.end(broker)
    broker = await stage.broker(body_digest=after, **settings)
    assert [await send(stage, one) for one in (sent, low)] == firsts
    sent.messages[0].system_properties.body_digest.type = definition_pb2.SHA1
    sent.messages[0].system_properties.body_digest.checksum = sha1(b"x", usedforsecurity=False).hexdigest()
    assert await send(stage, sent) == firsts[0]
    assert (stored(broker, kind), len(broker.ledger.store.timers.pending)) == records
    assert duplicates(broker, kind) == 3


async def decide(stage: Any, name: str, resolution: int) -> Any:
    made = service_pb2.EndTransactionRequest(message_id="half", transaction_id=name, resolution=resolution)  # type: ignore[arg-type]  # a number of the enum
    made.topic.name = "half"
    return await stage.ask("EndTransaction", made, service_pb2.EndTransactionResponse)


@pytest.mark.parametrize("resolution", [definition_pb2.COMMIT, definition_pb2.ROLLBACK])
async def test_a_half_message_that_was_committed_before_a_restart_is_not_stored_again(
    stage: Any, tmp_path: Path, resolution: int
) -> None:
    """Its check may have been answered while its sender was in doubt; the transaction that the retry gets is decided."""
    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("half", queues=1, message_type=MessageType.TRANSACTION))
    sent = of_each_kind(stage.clock.now_ms())["half"]
    first = await send(stage, sent)
    await decide(stage, first.entries[0].transaction_id, definition_pb2.COMMIT)
    assert stored(broker, "half") == 1
    await stage.end(broker)
    broker = await stage.broker(**settings)
    again = await send(stage, sent)
    assert again.entries[0].transaction_id
    assert (await decide(stage, again.entries[0].transaction_id, resolution)).status.code == definition_pb2.OK
    assert (stored(broker, "half"), len(broker.ledger.store.timers.pending)) == (1, 0)


async def test_a_queue_that_waits_for_the_repair_of_a_record_delays_no_other_one(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired = asyncio.Event()
    read_block = MessageStore.read_block

    async def waits(store: MessageStore, topic_id: int, queue_id: int, *args: Any, **kwargs: Any) -> Any:
        if queue_id == 0:
            await repaired.wait()
        return await read_block(store, topic_id, queue_id, *args, **kwargs)

    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("t", queues=6))
    sent = [block(f"id{queue_id}", queue_id=queue_id) for queue_id in range(6)]
    for one in sent:
        await publish(stage, one)
    await stage.end(broker)
    monkeypatch.setattr(MessageStore, "read_block", waits)
    broker = stage.made("a", **settings)
    await stage.during(broker.open())
    await stage.begin(broker)
    for one in sent[1:]:
        await publish(stage, one)
    assert (stored(broker), duplicates(broker)) == (6, 5)
    repaired.set()
    await stage.clock.advance(1)
    await publish(stage, sent[0])
    assert (stored(broker), duplicates(broker)) == (6, 6), "its reader ended while the broker served"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_ids_are_known_after_a_restart_whatever_the_next_clock_says(
    stage: Any, tmp_path: Path, hours: int
) -> None:
    """The next leader of a group has a clock of its own; the window is one of the log's time."""
    settings = {"store": {"path": tmp_path}, **WINDOW}
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("t", queues=1, message_type=MessageType.MIXED))
    delayed = request("delayed")
    delayed.messages[0].system_properties.delivery_timestamp.FromMilliseconds(stage.clock.now_ms() + 7_200_000)
    firsts = [await send(stage, request("one")), await send(stage, delayed)]
    await stage.end(broker)
    stage.clock.jump_wall(hours * 3_600_000)
    broker = await stage.broker(**settings)
    assert [await send(stage, request("one")), await send(stage, delayed)] == firsts
    assert (stored(broker), len(broker.ledger.store.timers.pending)) == (1, 1)


async def test_no_more_ids_are_kept_than_the_setting_says(stage: Any) -> None:
    broker = await stage.broker(duplicates_max=8, **WINDOW)
    for number in range(20):
        await send(stage, request(f"id{number}"))
    assert len(broker.deduplicator.recent) == 8
    await send(stage, request("id0"))
    await send(stage, request("id19"))
    assert stored(broker) == 21
