"""Transactions at one broker and two: half messages, decisions, checks of live producers, restarts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from evenq_broker.core.transactions.table import TransactionOutcome
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import messages_of, receive_request

from evenq.client.async_admin import Admin
from evenq.client.wiring import ClientContext
from evenq.errors import MessageNotFound, PreconditionFailed, StoreFull
from evenq.model import MessageType, StartFrom
from evenq.model.names import GIVEN_UP_TOPIC
from evenq.runtime.tasks import spawn
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

OK, BAD_REQUEST, INVALID_ID, CONFLICT, TOO_MANY = 20000, 40000, 40008, 40014, 42900
COMMIT, ROLLBACK, UNKNOWN = v2.COMMIT, v2.ROLLBACK, v2.TRANSACTION_RESOLUTION_UNSPECIFIED


def half(number: int = 0, topic: str = "t", recovery_ms: int = 0) -> v2.Message:
    message = v2.Message(body=b"body %d" % number, user_properties={"number": str(number)})
    message.topic.name = topic
    system = message.system_properties
    system.message_id, system.message_type, system.tag = f"id{number}", v2.TRANSACTION, "a"
    system.keys.append(f"key{number}")
    if recovery_ms:
        set_duration_ms(system.orphaned_transaction_recovery_duration, recovery_ms)
    return message


async def send(stage: Any, *messages: v2.Message, client: str = "sender", broker: str = "a") -> Any:
    request = service_pb2.SendMessageRequest(messages=messages)
    return await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, client=client, broker=broker)


async def begin(stage: Any, number: int = 0, **options: Any) -> str:
    answer = await send(stage, half(number, **options))
    assert answer.status.code == answer.entries[0].status.code == OK
    assert answer.entries[0].message_id == f"id{number}"
    name: str = answer.entries[0].transaction_id
    assert name.isascii()
    return name


async def end(stage: Any, name: str, resolution: int, *, topic: str = "t", broker: str = "a") -> int:
    request = service_pb2.EndTransactionRequest(transaction_id=name, message_id="id0")
    request.topic.name, request.resolution = topic, resolution  # type: ignore[assignment]  # a number of the enum
    answer = await stage.ask("EndTransaction", request, service_pb2.EndTransactionResponse, broker=broker)
    code: int = answer.status.code
    return code


async def receive(stage: Any, topic: str = "t") -> list[v2.Message]:
    request = receive_request("g", topic, queue=-1, poll_ms=0, invisible_ms=600_000, tags="*", batch_size=32)
    return messages_of(await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse))


async def begun(stage: Any, name: str = "a", **settings: Any) -> Any:
    broker = await stage.broker(name, poll_default_ms=1, **settings)
    await stage.during(broker.catalog.create_topic("t", queues=2, message_type=MessageType.TRANSACTION))
    await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    return broker


class Producer:
    """A telemetry stream of a producer, and the checks that came on it."""

    def __init__(self, stage: Any, client: str, *topics: str, broker: str = "a") -> None:
        self.checks: list[service_pb2.RecoverOrphanedTransactionCommand] = []
        self.answers = 0
        self._stop = asyncio.Event()
        self._topics = topics
        self._task = spawn(self._run(stage, client, broker), name=client)

    async def _run(self, stage: Any, client: str, broker: str) -> None:
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        headers = {"x-mq-client-id": client}
        stream = stage.net.stream(f"{broker}:8081", method, self._requests(), timeout_ms=None, metadata=headers)
        async for frame in stream:
            command = service_pb2.TelemetryCommand.FromString(frame)
            if command.HasField("recover_orphaned_transaction_command"):
                self.checks.append(command.recover_orphaned_transaction_command)
            else:
                self.answers += 1

    async def _requests(self) -> Any:
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.SetInParent()
        for topic in self._topics:
            settings.publishing.topics.add().name = topic
        yield service_pb2.TelemetryCommand(settings=settings).SerializeToString()
        await self._stop.wait()

    async def close(self) -> None:
        self._stop.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def producer(stage: Any, client: str, *topics: str, broker: str = "a") -> Producer:
    made = Producer(stage, client, *topics, broker=broker)
    await stage.until(lambda: made.answers == 1)
    return made


async def test_a_half_message_is_seen_by_nobody_until_it_is_committed_and_then_once(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)
    assert await receive(stage) == []
    assert await end(stage, name, UNKNOWN) == OK
    assert await receive(stage) == []
    for _ in range(2):
        assert await end(stage, name, COMMIT) == OK
    (message,) = await receive(stage)
    assert (message.body, dict(message.user_properties), message.topic.name) == (b"body 0", {"number": "0"}, "t")
    system = message.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == ("id0", "a", ["key0"])
    assert system.message_type == v2.TRANSACTION
    assert broker.ledger.store.timers.stats.pending == 0
    assert broker.transactions.stats.committed == {1: 1}


async def test_what_was_rolled_back_never_comes_and_a_later_commit_changes_nothing(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)
    assert await end(stage, name, ROLLBACK) == OK
    assert await end(stage, name, ROLLBACK) == OK
    assert await end(stage, name, COMMIT) == OK
    assert await receive(stage) == []
    assert broker.ledger.store.timers.stats.pending == len(broker.transactions.table) == 0
    assert broker.transactions.stats.conflicts == 1

    other = await begin(stage, 1)
    assert await end(stage, other, COMMIT) == OK
    assert await end(stage, other, ROLLBACK) == OK
    assert [message.system_properties.message_id for message in await receive(stage)] == ["id1"]


@pytest.mark.parametrize("name", ["", "x" * 500, "t1.a.00", "t1.elsewhere.00", "d1.a.00"])
async def test_an_id_that_is_empty_or_forged_is_refused(stage: Any, name: str) -> None:
    await begun(stage)
    await begin(stage)
    assert await end(stage, name, COMMIT) == INVALID_ID
    assert await end(stage, name, UNKNOWN) == INVALID_ID


async def test_an_id_of_another_topic_is_refused(stage: Any) -> None:
    await begun(stage)
    assert await end(stage, await begin(stage), COMMIT, topic="other") == INVALID_ID


async def test_decisions_that_race_are_decided_once(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)
    ident = broker.ledger.transaction_ids.read(name)
    outcomes = [TransactionOutcome.COMMITTED, TransactionOutcome.ROLLED_BACK] * 5
    work = asyncio.gather(*(broker.transactions.end(ident.number, outcome) for outcome in outcomes))
    await stage.during(work)
    assert len(await receive(stage)) == 1
    assert broker.transactions.stats.conflicts == 5


async def test_a_decision_that_the_store_refused_is_open_still(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)
    append = broker.ledger.store.append

    def refuse(*_: Any, **__: Any) -> None:
        raise StoreFull("the disk is full")

    broker.ledger.store.append = refuse
    assert await end(stage, name, COMMIT) == TOO_MANY
    broker.ledger.store.append = append
    assert await receive(stage) == []
    assert await end(stage, name, COMMIT) == OK
    assert len(await receive(stage)) == 1


async def test_a_topic_takes_only_its_kind_and_the_error_names_the_command(stage: Any) -> None:
    broker = await begun(stage)
    await stage.during(broker.catalog.create_topic("plain"))
    await stage.during(broker.catalog.create_topic("all", message_type=MessageType.MIXED))
    answer = await send(stage, half(topic="plain"))
    assert answer.status.code == answer.entries[0].status.code == CONFLICT
    assert "evenq topic create plain --type MIXED" in answer.status.message
    normal = half()
    normal.system_properties.message_type = v2.NORMAL
    assert (await send(stage, normal)).status.code == CONFLICT
    assert (await send(stage, half(topic="all"))).status.code == OK
    assert (await send(stage, half(topic="made"))).status.code == OK
    assert broker.catalog.topics.get("made").message_type is MessageType.TRANSACTION


async def test_a_transaction_message_travels_alone_and_its_first_check_is_within_an_hour(stage: Any) -> None:
    broker = await begun(stage)
    answer = await send(stage, half(0), half(1))
    assert [entry.status.code for entry in answer.entries] == [BAD_REQUEST] * 2
    assert (await send(stage, half(recovery_ms=3_600_001))).status.code == BAD_REQUEST
    assert (await send(stage, half(recovery_ms=3_600_000))).status.code == OK
    assert broker.ledger.store.timers.stats.pending == 1


async def test_too_many_open_ones_are_refused_until_one_ends(stage: Any) -> None:
    await begun(stage, transactions_max=2)
    names = [await begin(stage, number) for number in range(2)]
    answer = await send(stage, half(2))
    assert answer.status.code == TOO_MANY
    assert "transactions_max" in answer.status.message
    await end(stage, names[0], ROLLBACK)
    assert (await send(stage, half(2))).status.code == OK


async def test_an_open_one_is_asked_about_after_six_seconds_and_then_each_thirty(stage: Any) -> None:
    broker = await begun(stage)
    sender = await producer(stage, "sender", "t")
    other = await producer(stage, "other", "t")
    name = await begin(stage)
    await stage.clock.advance(5_900)
    assert sender.checks == []
    await stage.until(lambda: len(sender.checks) == 1, limit_ms=200)
    check = sender.checks[0]
    assert check.transaction_id == name
    message = check.message
    system = message.system_properties
    assert (message.topic.name, message.body, system.message_id) == ("t", b"body 0", "id0")
    assert system.body_digest.checksum == f"{crc32(b'body 0'):X}"
    assert system.body_encoding == v2.IDENTITY
    assert system.born_timestamp.seconds > 0
    assert system.delivery_attempt == 1
    assert system.receipt_handle
    await stage.clock.advance(29_900)
    assert len(sender.checks) == 1
    await stage.until(lambda: len(sender.checks) == 2, limit_ms=200)
    await sender.close()
    await stage.until(lambda: len(other.checks) == 1, limit_ms=31_000)
    assert await end(stage, name, COMMIT) == OK
    assert len(await receive(stage)) == 1
    await stage.clock.advance(60_000)
    assert len(other.checks) == 1
    assert broker.ledger.store.timers.stats.pending == 0
    await other.close()


async def test_the_message_may_move_its_first_check(stage: Any) -> None:
    await begun(stage)
    await begin(stage, recovery_ms=600_000)
    await stage.clock.advance(595_000)
    sender = await producer(stage, "sender", "t")
    await stage.clock.advance(4_900 - stage.clock.monotonic_ms() % 100)
    assert sender.checks == []
    await stage.until(lambda: len(sender.checks) == 1, limit_ms=1_100)
    await sender.close()


async def test_producers_of_other_topics_and_consumers_are_not_asked(stage: Any) -> None:
    broker = await begun(stage)
    strangers = [await producer(stage, "x", "other"), await producer(stage, "y")]
    await begin(stage)
    await stage.until(lambda: broker.transactions.stats.missed == 1)
    assert all(stranger.checks == [] for stranger in strangers)
    for stranger in strangers:
        await stranger.close()


async def test_after_the_last_check_it_is_given_up_into_a_topic_that_everybody_reads(stage: Any) -> None:
    broker = await begun(stage, transaction_checks_max=3, transaction_check_interval_ms=1_000)
    sender = await producer(stage, "sender", "t")
    name = await begin(stage)
    await stage.until(lambda: broker.transactions.stats.given_up == 1)
    assert len(sender.checks) == 3
    await stage.until(lambda: broker.ledger.store.timers.stats.pending == 0)
    assert await receive(stage) == []
    (message,) = await receive(stage, GIVEN_UP_TOPIC)
    assert message.body == b"body 0"
    assert message.topic.name == GIVEN_UP_TOPIC
    origin = message.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("t", "id0")
    assert dict(message.user_properties) == {
        "number": "0", "REAL_TOPIC": "t", "TRANSACTION_CHECK_TIMES": "3",
    }  # fmt: skip
    assert await end(stage, name, COMMIT) == INVALID_ID
    assert await receive(stage) == []
    await sender.close()


@asynccontextmanager
async def admin_of(stage: Any) -> AsyncIterator[Admin]:
    context = ClientContext(clock=stage.clock, rng=random.Random(3), net=stage.net)
    admin = Admin(endpoint="a:8081", context=context)
    yield admin
    await stage.during(admin.close())


async def test_one_that_was_given_up_is_checked_again_by_its_first_id(stage: Any) -> None:
    broker = await begun(
        stage, transaction_checks_max=1, transaction_check_interval_ms=1_000, duplicates_window_ms=1_000
    )
    sender = await producer(stage, "sender", "t")
    await begin(stage)
    await stage.until(lambda: broker.transactions.stats.given_up == 1)
    async with admin_of(stage) as admin:
        [given_up] = (await stage.during(admin.peek_messages(GIVEN_UP_TOPIC))).messages
        assert await stage.during(admin.check_again(given_up.queue, given_up.offset)) == "id0"
        [waiting] = (await stage.during(admin.list_scheduled("t"))).messages
    assert (waiting.message_id, waiting.kind) == ("id0", "TRANSACTION")
    await stage.until(lambda: len(sender.checks) == 2)
    again = sender.checks[1]
    assert again.message.body == b"body 0"
    assert dict(again.message.user_properties) == {"number": "0"}
    assert (again.message.system_properties.tag, list(again.message.system_properties.keys)) == ("a", ["key0"])
    assert await end(stage, again.transaction_id, COMMIT) == OK
    [message] = await receive(stage)
    assert (message.system_properties.message_id, message.body) == ("id0", b"body 0")
    await sender.close()


async def test_a_check_again_within_the_window_of_duplicates_is_an_error_that_says_so(stage: Any) -> None:
    broker = await begun(
        stage, transaction_checks_max=1, transaction_check_interval_ms=1_000, duplicates_window_ms=600_000
    )
    sender = await producer(stage, "sender", "t")
    await begin(stage)
    await stage.until(lambda: broker.transactions.stats.given_up == 1)
    async with admin_of(stage) as admin:
        [given_up] = (await stage.during(admin.peek_messages(GIVEN_UP_TOPIC))).messages
        with pytest.raises(PreconditionFailed, match="duplicates_window_ms"):
            await stage.during(admin.check_again(given_up.queue, given_up.offset))
        with pytest.raises(MessageNotFound, match="no transaction is at offset 7"):
            await stage.during(admin.check_again(given_up.queue, 7))
    await sender.close()


async def test_checks_without_a_producer_do_not_count_until_it_is_too_old(stage: Any) -> None:
    broker = await begun(
        stage, transaction_checks_max=2, transaction_check_interval_ms=1_000, transaction_age_max_ms=30_000
    )
    await begin(stage)
    await stage.until(lambda: broker.transactions.stats.missed >= 5)
    assert broker.transactions.stats.given_up == 0
    await stage.until(lambda: broker.transactions.stats.given_up == 1, limit_ms=40_000)
    assert len(await receive(stage, GIVEN_UP_TOPIC)) == 1


async def test_a_producer_that_comes_is_asked_at_once_what_nobody_could_be_asked(stage: Any) -> None:
    broker = await begun(stage)
    names = [await begin(stage, number) for number in range(3)]
    assert await end(stage, names[0], ROLLBACK) == OK
    await stage.until(lambda: broker.transactions.stats.missed >= 2)
    assert await end(stage, names[1], ROLLBACK) == OK
    late = await producer(stage, "late", "t")
    await stage.until(lambda: len(late.checks) == 1, limit_ms=500)
    assert late.checks[0].transaction_id == names[2]
    half = broker.transactions.table.get(broker.ledger.transaction_ids.read(names[2]).number)
    assert (half.checks, half.missed) == (1, 0)
    await late.close()


async def test_another_broker_decides_and_another_brokers_producer_is_asked(stage: Any) -> None:
    a, b = await begun(stage, "a"), await begun(stage, "b")
    for one, other in ((a, b), (b, a)):
        one.catalog.routes.snapshot("ns", "1", [other.cluster.own.now()], stage.clock.monotonic_ms())
    away = await producer(stage, "away", "t", broker="b")
    name = await begin(stage)
    await stage.until(lambda: len(away.checks) == 1)
    assert away.checks[0].transaction_id == name
    await stage.until(lambda: a.transactions.stats.relayed == 1)
    assert a.transactions.table.get(a.ledger.transaction_ids.read(name).number).checks == 1
    assert await end(stage, name, COMMIT, broker="b") == OK
    assert len(await receive(stage)) == 1
    await away.close()


async def test_open_ones_their_counts_and_decisions_survive_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await begun(stage, store=store, transaction_check_interval_ms=1_000)
    sender = await producer(stage, "sender", "t")
    names = [await begin(stage, number) for number in range(4)]
    await end(stage, names[0], COMMIT)
    await end(stage, names[1], ROLLBACK)
    number = broker.ledger.transaction_ids.read(names[2]).number
    await stage.until(lambda: len(sender.checks) >= 4 and broker.transactions.table.get(number).checks >= 2)
    checks = broker.transactions.table.get(number).checks
    await sender.close()
    await stage.during(broker.close())

    again = await stage.broker(store=store, poll_default_ms=1, transaction_check_interval_ms=1_000)
    assert len(again.transactions.table) == 2
    assert again.transactions.table.get(number).checks >= checks
    assert await end(stage, names[0], COMMIT) == OK
    assert await end(stage, names[1], COMMIT) == OK
    assert again.transactions.stats.conflicts == 1
    assert await end(stage, names[2], COMMIT) == OK
    assert await end(stage, names[3], ROLLBACK) == OK
    await stage.clock.advance(40_000)
    await stage.until(lambda: again.ledger.store.timers.stats.pending == 0)
    assert sorted(message.system_properties.message_id for message in await receive(stage)) == ["id0", "id2"]


async def test_a_deleted_topic_takes_its_half_messages_along(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)
    await stage.during(broker.catalog.delete_topic("t"))
    assert await end(stage, name, COMMIT) == INVALID_ID
    await stage.until(lambda: broker.ledger.store.timers.stats.pending == 0)
    assert len(broker.transactions.table) == 0


async def test_a_half_message_that_cannot_be_read_is_delivered_by_its_timer(stage: Any) -> None:
    broker = await begun(stage)
    name = await begin(stage)

    async def nothing(wanted: list[int]) -> list[None]:
        return [None for _ in wanted]

    broker.ledger.store.read_timers = nothing
    assert await end(stage, name, COMMIT) == OK
    assert await receive(stage) == []
    await stage.until(lambda: broker.ledger.store.timers.stats.pending == 0)
    assert len(await receive(stage)) == 1
    assert await end(stage, name, COMMIT) == OK


async def test_a_decision_may_leave_out_the_topic_and_one_without_an_id_says_what_is_missing(stage: Any) -> None:
    await begun(stage)
    name = await begin(stage)
    assert await end(stage, "", COMMIT) == INVALID_ID
    empty = service_pb2.EndTransactionRequest(resolution=v2.COMMIT)
    answer = await stage.ask("EndTransaction", empty, service_pb2.EndTransactionResponse)
    assert "the transaction id is empty" in answer.status.message
    assert await end(stage, name, COMMIT, topic="") == OK
    assert len(await receive(stage)) == 1


async def test_a_broker_without_the_topics_producer_tells_its_peer_that_it_sent_nothing(stage: Any) -> None:
    await begun(stage)
    request = data_pb2.RelayCheckRequest(topic="t", client_id="sender", command=b"")
    answer = await stage.call("/evenq.v1.Data/RelayCheck", request, data_pb2.RelayCheckResponse)
    assert not answer.sent
    sender = await producer(stage, "sender", "t")
    answer = await stage.call("/evenq.v1.Data/RelayCheck", request, data_pb2.RelayCheckResponse)
    assert answer.sent
    await sender.close()
