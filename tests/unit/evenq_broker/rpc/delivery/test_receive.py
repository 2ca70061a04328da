"""ReceiveMessage (wire contract 3.9): the frames, their order, the end of a poll, and errors as frames."""

import asyncio
import shutil
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Committed
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import ack_request, send_request, v2_message

from evenq.errors import StoreCorrupted
from evenq.model import NO_GENERATION, StartFrom
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


def request(*, batch: int = 32, poll_ms: int | None = 0, invisible_ms: int | None = 10_000, **fields: Any) -> Any:
    made = service_pb2.ReceiveMessageRequest(batch_size=batch, **fields)
    made.group.name, made.message_queue.topic.name, made.message_queue.id = "g", "t", -1
    if poll_ms is not None:
        set_duration_ms(made.long_polling_timeout, poll_ms)
    if invisible_ms is not None:
        set_duration_ms(made.invisible_duration, invisible_ms)
    return made


async def receive(stage: Any, result: Any, **options: Any) -> list[Any]:
    found: list[Any] = await stage.frames("ReceiveMessage", result, service_pb2.ReceiveMessageResponse, **options)
    return found


async def filled(stage: Any, count: int, **settings: Any) -> Any:
    broker = await stage.broker(**{"default_start_from": "FIRST", "default_queues": 1} | settings)
    send = service_pb2.SendMessageRequest(
        messages=[v2_message("t", f"id{number}", b"x" * 1_000) for number in range(count)]
    )
    if count:
        await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    return broker


async def test_the_status_comes_first_and_the_delivery_time_last(stage: Any) -> None:
    await filled(stage, 2)
    frames = await receive(stage, request())
    kinds = [frame.WhichOneof("content") for frame in frames]
    assert kinds == ["status", "message", "message", "delivery_timestamp"]
    system = frames[1].message.system_properties
    assert (system.delivery_attempt, system.invisible_duration.seconds) == (1, 10)


BODIES = [b"%d" % number for number in range(30, 60)]  # the CRC32 of some has seven digits


def digests_of(frames: list[Any]) -> dict[bytes, tuple[int, str]]:
    """Type and text of the digest of each body."""
    messages = [frame.message for frame in frames if frame.HasField("message")]
    digests = [one.system_properties.body_digest for one in messages]
    return {one.body: (digest.type, digest.checksum) for one, digest in zip(messages, digests, strict=True)}


def md5_of(body: bytes) -> tuple[int, str]:
    return definition_pb2.MD5, md5(body, usedforsecurity=False).hexdigest().upper()


def own_of(body: bytes) -> tuple[int, str]:
    """As all SDKs but that of Node.js write it."""
    return (definition_pb2.CRC32, f"{crc32(body):X}") if crc32(body) >= 1 << 28 else md5_of(body)


@pytest.mark.parametrize("body_digest", ["crc32", "md5"])
@pytest.mark.parametrize("language", ["JAVA", "HTTP", "DOTNET", "CPP", ""])
async def test_each_client_gets_a_digest_that_it_can_compare(stage: Any, language: str, body_digest: str) -> None:
    broker = await filled(stage, 0, body_digest=body_digest)
    send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{body!r}", body) for body in BODIES])
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    expected = {body: md5_of(body) if language == "HTTP" or body_digest == "md5" else own_of(body) for body in BODIES}
    assert digests_of(await receive(stage, request(batch=64), language=language)) == expected
    await stage.clock.advance(11_000)
    again = await receive(stage, request(batch=64), language=language)
    assert {frame.message.system_properties.delivery_attempt for frame in again if frame.HasField("message")} == {2}
    assert digests_of(again) == expected, "of a redelivery, too"
    pull = service_pb2.PullMessageRequest(offset=0, batch_size=64)
    pull.group.name, pull.message_queue.topic.name = "g", "t"
    pulled = await stage.frames("PullMessage", pull, service_pb2.PullMessageResponse, language=language)
    assert digests_of(pulled) == expected
    assert broker.ledger.store.queue_range(broker.catalog.topics.get("t").topic_id, 0) == (0, len(BODIES))


async def test_a_leader_stores_md5_while_a_copy_of_its_group_reads_nothing_else(stage: Any) -> None:
    broker = await filled(stage, 0)
    reads = [False]
    broker.runtime.leadership = replace(broker.runtime.leadership, copies_read_crc32=lambda: reads[0])
    for number, of in enumerate((md5_of, own_of, md5_of)):
        reads[0] = of is own_of
        bodies = [b"%d of %d" % (one, number) for one in range(20)]
        send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{body!r}", body) for body in bodies])
        await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
        assert digests_of(await receive(stage, request())) == {body: of(body) for body in bodies}


async def test_batches_are_cut_at_the_settings_number_and_bytes(stage: Any) -> None:
    await filled(stage, 12, receive_batch_max=8, receive_bytes_max=4_096)
    assert len(await receive(stage, request(batch=100))) == 2 + 3  # three of 1,000 bytes and their fields
    assert len(await receive(stage, request(batch=2))) == 2 + 2


@pytest.mark.parametrize("language", ["HTTP", "DOTNET", "RUST"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_that_the_clients_sdk_cannot_receive_becomes_a_dead_letter_and_the_rest_goes_on(
    stage: Any, ordered: bool, language: str
) -> None:
    """Wire contract 2.5: gRPC libraries of Node.js, C# and Rust refuse 4 MiB and more, and ask again for ever."""
    await filled(stage, 0)
    await stage.during(stage.brokers[0].catalog.create_group("g", ordered=ordered, start_from=StartFrom.FIRST))
    for number, size in enumerate((10, 4 << 20, 20)):
        send = send_request("t", f"id{number}", b"x" * size)
        await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    bodies: list[int] = []
    while len(bodies) < 2:  # an ordered group gives the next one when the one before it is acknowledged
        frames = await receive(stage, request(poll_ms=10_000), language=language)
        got = [frame.message for frame in frames if frame.HasField("message")]
        assert got, frames
        bodies += [len(one.body) for one in got]
        ack = ack_request("g", "t")
        for one in got:
            ack.entries.add(message_id="id", receipt_handle=one.system_properties.receipt_handle)
        await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    assert bodies == [10, 20]
    letters = request()
    letters.message_queue.topic.name = "%DLQ%g"
    found = [frame.message for frame in await receive(stage, letters) if frame.HasField("message")]
    assert [(len(one.body), one.user_properties["DLQ_REASON"]) for one in found] == [(4 << 20, "too-large")]


async def test_a_poll_that_names_no_time_has_the_default(stage: Any) -> None:
    """Five seconds: an idle push consumer of most SDKs waits for its poll before it ends."""
    broker = await filled(stage, 0)
    await stage.during(broker.catalog.create_topic("t"))
    started = stage.clock.monotonic_ms()
    await receive(stage, request(poll_ms=None), timeout_ms=60_000)
    assert 5_000 <= stage.clock.monotonic_ms() - started <= 5_030


async def test_an_empty_poll_ends_before_the_callers_deadline(stage: Any) -> None:
    broker = await filled(stage, 0, poll_margin_ms=500, poll_max_ms=3_000)
    await stage.during(broker.catalog.create_topic("t"))
    for poll_ms, timeout_ms, expected_ms in (
        (1_000, 9_000, 1_000), (9_000, 2_000, 1_500), (9_000, 60_000, 3_000), (None, 2_000, 1_500)
    ):  # fmt: skip
        started = stage.clock.monotonic_ms()
        [only] = await receive(stage, request(poll_ms=poll_ms), timeout_ms=timeout_ms)
        assert only.status.code == 40401
        assert expected_ms <= stage.clock.monotonic_ms() - started <= expected_ms + 30


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"invisible_ms": 0}, 40011),
        ({"invisible_ms": 43_200_001}, 40011),
        ({"filter_expression": definition_pb2.FilterExpression(type=definition_pb2.SQL, expression="a LIKE 1")}, 40010),
        ({"filter_expression": definition_pb2.FilterExpression(expression="a|b")}, 40010),
    ],
)
async def test_a_wish_that_cannot_be_is_one_frame_with_its_code(stage: Any, change: dict[str, Any], code: int) -> None:
    await filled(stage, 1)
    [only] = await receive(stage, request(**change))
    assert only.status.code == code
    assert only.status.message


async def test_an_error_is_held_back_for_push_consumers_only(stage: Any) -> None:
    await filled(stage, 0, auto_create_topics=False, error_hold_ms=700)
    for auto_renew, held_ms in ((False, 0), (True, 700)):
        started = stage.clock.monotonic_ms()
        [only] = await receive(stage, request(auto_renew=auto_renew))
        assert only.status.code == 40402
        assert held_ms <= stage.clock.monotonic_ms() - started <= held_ms + 30


async def test_the_place_of_a_damaged_record_is_for_the_door_not_for_callers(stage: Any) -> None:
    broker = await filled(stage, 1)

    def damaged(*_: Any, **__: Any) -> Any:
        raise StoreCorrupted("/data/commitlog/0 at byte 7 is damaged")

    broker.ledger.store.read_hot = damaged
    handler = next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/ReceiveMessage"))
    deadline_ms = stage.clock.monotonic_ms() + 5_000
    context = RpcContext("m", [("x-mq-client-id", "c")], "127.0.0.1:1", deadline_ms)
    with pytest.raises(StoreCorrupted):
        await anext(handler(request().SerializeToString(), context))


async def test_33_an_answer_that_got_lost_is_given_again_to_the_same_attempt_as_the_same_delivery(stage: Any) -> None:
    """Checklist 33: no attempt counted; what was acknowledged meanwhile does not come again."""
    for ordered in (False, True):
        await _lost_answer(stage, f"b{ordered}", ordered=ordered)


async def _lost_answer(stage: Any, name: str, *, ordered: bool) -> None:
    broker = await filled(stage, 3)
    await stage.during(broker.catalog.create_group("g", ordered=ordered))
    for auto_renew in (False, True):
        first = await receive(stage, request(batch=2, attempt_id="x", auto_renew=auto_renew))
        again = await receive(stage, request(batch=2, attempt_id="x", auto_renew=auto_renew))
        count = 1 if ordered else 2
        assert len(first) == len(again) == 2 + count
        places = [frame.message.system_properties.queue_offset for frame in first[1:-1]]
        assert [frame.message.system_properties.queue_offset for frame in again[1:-1]] == places
        assert {frame.message.system_properties.delivery_attempt for frame in again[1:-1]} == {1}
        ack = service_pb2.AckMessageRequest()
        ack.group.name, ack.topic.name = "g", "t"
        ack.entries.add(receipt_handle=first[1].message.system_properties.receipt_handle)  # the older handle is good
        answer = await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
        assert answer.status.code == 20000, name
        rest = await receive(stage, request(batch=2, attempt_id="x", auto_renew=auto_renew))
        offsets = [frame.message.system_properties.queue_offset for frame in rest[1:-1]]
        assert places[0] not in offsets
        for frame in rest[1:-1]:
            ack.entries[0].receipt_handle = frame.message.system_properties.receipt_handle
            await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
        send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"more{number}") for number in range(2)])
        await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
        while len(left := await receive(stage, request())) > 1:
            for frame in left[1:-1]:
                ack.entries[0].receipt_handle = frame.message.system_properties.receipt_handle
                await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
        await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)


async def test_another_client_or_a_late_one_does_not_get_the_attempts_batch(stage: Any) -> None:
    await filled(stage, 2, attempt_keep_ms=1_000)
    assert len(await receive(stage, request(batch=1, attempt_id="x"), client="one")) == 3
    assert len(await receive(stage, request(batch=1, attempt_id="x"), client="two")) == 3
    assert len(await receive(stage, request(batch=1, attempt_id="y"), client="one")) == 1
    await stage.clock.advance(1_100)
    assert len(await receive(stage, request(batch=1, attempt_id="x"), client="one")) == 1


async def test_oc_18_a_member_of_our_own_sdk_receives_only_from_queues_that_it_holds(stage: Any) -> None:
    broker = await filled(stage, 1)
    await stage.during(broker.catalog.create_group("g"))
    broker.sessions.join("g", Member(client_id="c", protocol=Protocol.EVENQ))
    result = request(auto_renew=True)
    result.message_queue.id = 0
    (refused,) = await receive(stage, result)
    assert refused.status.code == definition_pb2.PRECONDITION_FAILED
    assert "'c' does not hold queue" in refused.status.message
    queue = broker.catalog.routes.readable("t")[0]
    assert await stage.during(broker.sessions.locking.lock("g", "c", [queue], wait_ms=0)) == [True]
    assert len(await receive(stage, result)) == 3


def named(queue_id: int = -1, **fields: Any) -> Any:
    result = request(auto_renew=True, **fields)
    result.message_queue.id = queue_id
    return result


def messages(frames: list[Any]) -> list[Any]:
    return [frame.message for frame in frames if frame.HasField("message")]


async def test_who_receives_gets_nothing_of_a_queue_that_a_member_of_the_group_holds(stage: Any) -> None:
    broker = await filled(stage, 2)
    await stage.during(broker.catalog.create_group("g"))
    broker.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ))
    queue = broker.catalog.routes.readable("t")[0]
    assert await stage.during(broker.sessions.locking.lock("g", "owner", [queue], wait_ms=0)) == [True]
    assert not messages(await receive(stage, request()))
    assert not messages(await receive(stage, named(0), client="pusher"))
    waiting = asyncio.ensure_future(receive(stage, request(poll_ms=20_000)))
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    broker.sessions.locking.unlock("g", "owner", [queue])
    assert len(messages(await stage.during(waiting))) == 2, "it learns at once that the queue is free"


async def test_a_member_gets_a_queue_when_what_was_received_of_it_is_finished(stage: Any) -> None:
    broker = await filled(stage, 2)
    got = messages(await receive(stage, request(batch=1)))
    broker.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ))
    queue = broker.catalog.routes.readable("t")[0]
    lock = broker.sessions.locking.lock
    assert await stage.during(lock("g", "owner", [queue], wait_ms=0)) == [False]
    assert not messages(await receive(stage, request())), "nothing more is given out meanwhile"
    waiting = asyncio.ensure_future(lock("g", "owner", [queue], wait_ms=3_000))
    ack = ack_request("g", "t")
    ack.entries.add(message_id="m", receipt_handle=got[0].system_properties.receipt_handle)
    await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    assert await stage.during(waiting) == [True]
    assert broker.ledger.progress.committed(1, 1, 0) == 1, "it begins behind what is finished"


@pytest.mark.parametrize("waited", [False, True])
async def test_a_call_for_a_lock_that_breaks_off_leaves_the_next_one_the_wait_for_what_was_received(
    stage: Any, waited: bool
) -> None:
    """The first call has the queue, at once or when its owner lets go, and waits for another one when it breaks off."""
    broker = await filled(stage, 2, default_queues=2)
    await stage.during(broker.catalog.create_group("g"))
    first, second = broker.catalog.routes.readable("t")
    lock, unlock = broker.sessions.locking.lock, broker.sessions.locking.unlock
    for name in ("owner", "other"):
        broker.sessions.join("g", Member(client_id=name, protocol=Protocol.EVENQ))
    assert messages(await receive(stage, named(first.queue_id), client="worker"))
    assert await stage.during(lock("g", "other", [second], wait_ms=0)) == [True]
    if waited:
        assert await stage.during(lock("g", "other", [first], wait_ms=0)) == [False]
    broken = asyncio.ensure_future(lock("g", "owner", [first, second], wait_ms=60_000))
    await stage.until(lambda: broker.membership.locks.waiters("g", second) == ["owner"])
    if waited:
        unlock("g", "other", [first])
    broken.cancel()
    await asyncio.gather(broken, return_exceptions=True)
    assert await stage.during(lock("g", "owner", [first], wait_ms=0)) == [False]


async def test_a_member_that_asks_anew_for_what_it_holds_waits_for_what_was_received(stage: Any) -> None:
    """As after a restart of the broker, which knows of the lock and not that its member has not heard of it yet."""
    broker = await filled(stage, 1)
    assert messages(await receive(stage, request(), client="worker"))
    broker.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ))
    queue = broker.catalog.routes.readable("t")[0]
    broker.membership.locks.restore("g", queue, "owner", NO_GENERATION)
    lock = broker.sessions.locking.lock
    assert await stage.during(lock("g", "owner", [queue], wait_ms=0, anew=True)) == [False]


async def test_a_member_does_not_wait_for_ever_for_who_never_finishes(stage: Any) -> None:
    broker = await filled(stage, 2, revoke_ms=1_000)
    await receive(stage, request(invisible_ms=600_000))
    broker.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ))
    queue = broker.catalog.routes.readable("t")[0]
    lock = broker.sessions.locking.lock
    assert await stage.during(lock("g", "owner", [queue], wait_ms=500)) == [False]
    assert await stage.during(lock("g", "owner", [queue], wait_ms=3_000)) == [True]


def call_of(stage: Any, limit_ms: int) -> RpcContext:
    return RpcContext("m", [("x-mq-client-id", "c")], "127.0.0.1:1", stage.clock.monotonic_ms() + limit_ms)


def handler_of(broker: Any) -> Any:
    return next(rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/ReceiveMessage"))


@pytest.mark.parametrize("piece_bytes", [0, 128 << 10])
async def test_an_answer_that_breaks_off_gives_its_messages_back_at_once(
    stage: Any, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr("evenq_broker.rpc.delivery.receive._PIECE_BYTES", piece_bytes)
    broker = await filled(stage, 3)
    context = call_of(stage, 5_000)
    frames = handler_of(broker)(request(invisible_ms=600_000).SerializeToString(), context)
    first = await stage.during(anext(frames))
    if piece_bytes:  # all of it, and the client is gone before that was written
        assert len(first) == 5
    else:  # the status and one message; then the client is gone
        await stage.during(anext(frames))
    assert len(await receive(stage, request())) == 1, "they are being delivered"
    await stage.during(frames.aclose())
    again = await receive(stage, request())
    places = [frame.message.system_properties.queue_offset for frame in again[1:-1]]
    assert places == [0, 1, 2]
    assert {frame.message.system_properties.delivery_attempt for frame in again[1:-1]} == {1}, "no member saw them"


async def test_a_receive_that_breaks_off_in_a_disk_read_wakes_the_poll_that_waited_for_it(stage: Any) -> None:
    broker = await filled(stage, 3)
    begun, never = asyncio.Event(), asyncio.Event()
    hot = broker.ledger.store.read_hot
    broker.ledger.store.read_hot = lambda *_, **__: None  # all is cold

    async def stuck(*_: Any, **__: Any) -> Any:
        begun.set()
        await never.wait()

    read, broker.ledger.store.read = broker.ledger.store.read, stuck
    context = call_of(stage, 60_000)
    first = asyncio.ensure_future(anext(handler_of(broker)(request().SerializeToString(), context)))
    await stage.during(begun.wait())
    second = asyncio.ensure_future(receive(stage, request(poll_ms=20_000)))
    for _ in range(20):
        await stage.clock.advance(5)
    assert not second.done(), "it waits while the queue is read"
    broker.ledger.store.read_hot, broker.ledger.store.read = hot, read
    started = stage.clock.monotonic_ms()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    frames = await second
    assert [frame.WhichOneof("content") for frame in frames].count("message") == 3
    assert stage.clock.monotonic_ms() - started < 1_000, "at once, not at the end of its poll"


async def test_a_new_groups_first_receive_is_answered_once_its_start_is_on_the_disk(stage: Any) -> None:
    """LAST means from now on, also if this broker dies in the next moment."""
    broker = await filled(stage, 3, young_from_first=False)
    await stage.during(broker.catalog.create_group("g", start_from=StartFrom.LAST))
    disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    written: list[Any] = []

    def record(*ops: Any) -> asyncio.Future[None]:
        written.extend(ops)
        return asyncio.shield(disk)

    broker.ledger.journal.record, kept = record, broker.ledger.journal.record
    answer = asyncio.ensure_future(stage.frames("ReceiveMessage", request(), service_pb2.ReceiveMessageResponse))
    for _ in range(20):
        await asyncio.sleep(0)
    await stage.clock.advance(1_000)
    assert [op.offset for op in written if isinstance(op, Committed)] == [3]
    assert not answer.done(), "the disk is slow"
    disk.set_result(None)
    await answer
    broker.ledger.journal.record = kept


async def test_a_push_consumer_gets_what_its_broker_gave_it_and_died_before_it_answered(
    stage: Any, tmp_path: Path
) -> None:
    """Its life would hold the message for a day, and it does not know of it."""

    def stored(name: str) -> StoreSettings:
        return StoreSettings(path=tmp_path / name, flush="sync", segment_bytes=1 << 20, disk_free_min_bytes=0)

    first = await filled(stage, 1, store=stored("first"))
    given = messages(await receive(stage, named(attempt_id="x"), client="pusher"))
    assert len(given) == 1
    await stage.during(first.ledger.journal.record())
    # As it is on the disk of a process that is killed here: the delivery is recorded, and the answer was not read.
    shutil.copytree(tmp_path / "first", tmp_path / "second", ignore=shutil.ignore_patterns("lock"))
    await stage.clock.advance(5_000)
    second = await stage.broker("a", store=stored("second"))
    assert not messages(await receive(stage, named(attempt_id="x"), client="pusher"))
    waited_ms, again = 0, []
    while not again:
        assert waited_ms <= second.runtime.settings.invisible_default_ms
        await stage.clock.advance(1_000)
        again, waited_ms = messages(await receive(stage, named(attempt_id="x"), client="pusher")), waited_ms + 1_000
    assert [one.body for one in again] == [given[0].body]
