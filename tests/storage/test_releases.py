"""Data folders of every release are opened by today's broker, which finds each message, offset, timer and transaction.

tests/data/releases/VERSION holds a folder as a broker of that release left it (`data.tar.gz`, never written again), what
is in it (`expected.json`), and the script that wrote both.
"""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Iterator
from hashlib import md5, sha256
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import ack_request, receive_request

from evenq.model import MessageQueue, MessageType
from evenq.runtime.clock import FakeClock
from evenq.store.inspection.verify import verify
from evenq.store.io.disk import RealDisk
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s
from evenq.wire.stubs.evenq.v1 import staging_pb2
from tests.unit.evenq_broker import staged
from tests.unit.evenq_broker.conftest import Stage

RELEASES = Path(__file__).resolve().parents[1] / "data" / "releases"
VERSIONS = sorted(path.name for path in RELEASES.iterdir())
MINUTE_MS = 60_000


class Opened:
    """A copy of a release's folder, and a broker of today that opened it."""

    def __init__(self, version: str, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, Any] = json.loads((RELEASES / version / "expected.json").read_text(encoding="utf-8"))
        folder.mkdir(parents=True, exist_ok=True)
        # The program: the module's own filter is not in the first releases of Python 3.11, such as Debian's.
        subprocess.run(["tar", "-xzf", RELEASES / version / "data.tar.gz", "-C", folder], check=True)
        self.name = self.told["broker_name"]
        self.stage = Stage()
        self.stage.clock = FakeClock(self.told["now_ms"])
        self.stage.during, self.stage.until = self.stage.clock.during, self.stage.clock.until
        self.stage.net._clock = self.stage.clock

    async def open(self, **settings: Any) -> None:
        store = StoreSettings(path=self.folder, disk_free_min_bytes=0, disk_used_max_ratio=1, retention_ms=0)
        self.broker = await self.stage.broker(self.name, store=store, session_timeout_ms=60_000, **settings)

    async def close(self) -> None:
        await self.stage.during(self.broker.close())
        self.stage.brokers.clear()

    # ------------------------------------------------------------------------------------------------ calls

    async def ask(self, method: str, request: Any, response: Any) -> Any:
        return await self.stage.ask(method, request, response, broker=self.name)

    async def streamed(self, method: str, request: Any, response: Any) -> list[Any]:
        async def collect() -> list[Any]:
            stream = self.stage.net.stream(
                f"{self.name}:8081", f"/apache.rocketmq.v2.MessagingService/{method}", request.SerializeToString(),
                timeout_ms=60_000, metadata={"x-mq-client-id": "c", "x-mq-language": "JAVA"},
            )  # fmt: skip
            return [response.FromString(frame) async for frame in stream]

        found: list[Any] = await self.stage.during(collect())
        return [one.message for one in found if one.HasField("message")]

    async def pulled(self, topic: str, queue_id: int) -> list[v2.Message]:
        """Every message of a queue."""
        request = s.PullMessageRequest(offset=0, batch_size=32)
        request.group.name, request.message_queue.topic.name, request.message_queue.id = "pullers", topic, queue_id
        request.message_queue.broker.name = self.name
        set_duration_ms(request.long_polling_timeout, 0)
        found: list[v2.Message] = []
        while part := await self.streamed("PullMessage", request, s.PullMessageResponse):
            found += part
            request.offset = part[-1].system_properties.queue_offset + 1
        return found

    async def received(self, group: str, topic: str) -> dict[str, v2.Message]:
        """All that the group can have of the topic now, by message id; nothing of it is acknowledged."""
        request = receive_request(group, topic, queue=-1, batch_size=32)
        request.message_queue.broker.name = self.name
        set_duration_ms(request.invisible_duration, 60 * MINUTE_MS)
        set_duration_ms(request.long_polling_timeout, 0)
        request.filter_expression.type, request.filter_expression.expression = v2.TAG, "*"
        found: dict[str, v2.Message] = {}
        while part := await self.streamed("ReceiveMessage", request, s.ReceiveMessageResponse):
            found |= {one.system_properties.message_id: one for one in part}
        return found

    async def end(self, transaction: dict[str, Any], resolution: Any) -> None:
        request = s.EndTransactionRequest(
            message_id=transaction["id"], transaction_id=transaction["transaction_id"], resolution=resolution
        )
        request.topic.name = self.told["sent"][transaction["id"]]["topic"]
        assert (await self.ask("EndTransaction", request, s.EndTransactionResponse)).status.code == v2.OK

    # ------------------------------------------------------------------------------------------------ what is there

    def stored(self, **wanted: Any) -> list[dict[str, Any]]:
        return [one for one in self.told["stored"] if all(one[key] == value for key, value in wanted.items())]

    async def ids(self, topic: str, queues: int) -> set[str]:
        return {
            message.system_properties.message_id
            for queue_id in range(queues)
            for message in await self.pulled(topic, queue_id)
        }


def alike(message: v2.Message, sent: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, as it is, as it was sent), where they differ."""
    system = message.system_properties
    packed = system.body_encoding == v2.GZIP
    now = {
        "topic": message.topic.name,
        "body": sha256(zlib.decompress(message.body) if packed else message.body).hexdigest(),
        "type": v2.MessageType.Name(system.message_type),
        "tag": system.tag,
        "keys": list(system.keys),
        "properties": dict(message.user_properties),
        "message_group": system.message_group,
        "lite_topic": system.lite_topic,
        "priority": system.priority,
        "born_ms": system.born_timestamp.ToMilliseconds(),
    }
    for what, value in now.items():
        if sent[what] != value:
            yield what, value, sent[what]


async def every_message(opened: Opened) -> None:
    """Each at its offset, as it was sent; and nothing else."""
    result, store = opened.told, opened.broker.ledger.store
    for name, kind in result["topics"].items():
        topic = opened.broker.catalog.topics.get(name)
        assert topic is not None, name
        assert (topic.message_type, topic.read_queues, topic.uid) == (
            MessageType[kind], result["queues"][name], result["uids"][name],
        )  # fmt: skip
        there = {}
        for queue_id in sorted({one["queue"] for one in opened.stored(topic=name)}):
            low, high = store.queue_range(topic.topic_id, queue_id)
            if kind == "LITE":  # their queues are in no route
                read = await opened.stage.during(store.read_at(topic.topic_id, queue_id, range(low, high)))
                there |= {(queue_id, one.queue_offset): lite_message(one, name) for one in read}
            else:
                found = await opened.pulled(name, queue_id)
                there |= {(queue_id, one.system_properties.queue_offset): one for one in found}
        expected = {(one["queue"], one["offset"]): one for one in opened.stored(topic=name)}
        assert sorted(there) == sorted(expected), name
        for place, message in there.items():
            assert message.system_properties.message_id == expected[place]["id"]
            if name != result["rows"]["topic"]:
                sent = result["sent"][expected[place]["id"]]
                assert list(alike(message, sent)) == [], place
            store_ms = message.system_properties.store_timestamp.ToMilliseconds()
            assert kind == "LITE" or store_ms == expected[place]["store_ms"]
    rows = await opened.pulled(result["rows"]["topic"], 0)
    assert [row.body.decode() for row in rows] == result["rows"]["there"]


def lite_message(stored: Any, topic: str) -> v2.Message:
    message = v2.Message.FromString(stored.head)
    message.topic.name = message.topic.name or topic
    message.system_properties.ParseFromString(stored.system)
    return message


async def every_offset(opened: Opened) -> None:
    """Committed offsets, settings of groups, locks."""
    for one in opened.told["offsets"]:
        request = s.GetOffsetRequest()
        request.group.name = one["group"]
        request.message_queue.topic.name, request.message_queue.id = one["topic"], one["queue"]
        request.message_queue.broker.name = opened.name
        answer = await opened.ask("GetOffset", request, s.GetOffsetResponse)
        assert (answer.status.code, answer.offset) == (v2.OK, one["offset"]), one
    for name, settings in opened.told["groups"].items():
        group = opened.broker.catalog.groups.get(name)
        assert group is not None, name
        assert {key: getattr(group, key) for key in settings} == settings
    for one in opened.told["locks"]:
        queue = MessageQueue(one["topic"], opened.name, one["queue"])
        assert opened.broker.membership.locks.holder(one["group"], queue) == one["client_id"]


async def every_delivery(opened: Opened) -> None:
    """A handle of then is good; what is done never comes again, what is in hand comes at its time, the rest now."""
    result = opened.told
    acked: dict[str, set[str]] = {group: set(ids) for group, ids in result["acked"].items()}
    handed = [one for one in result["handed"] if one["topic"] == "orders"]
    in_hand = {one["id"] for one in handed}
    first = handed[0]
    request = ack_request(first["group"], first["topic"])
    request.entries.add(message_id=first["id"], receipt_handle=first["handle"])
    answer = await opened.ask("AckMessage", request, s.AckMessageResponse)
    assert [entry.status.code for entry in answer.entries] == [v2.OK], answer
    acked[first["group"]].add(first["id"])
    orders = {one["id"] for one in opened.stored(topic="orders")}
    now = await opened.received("plain", "orders")
    assert set(now) == orders - acked["plain"] - in_hand
    await opened.stage.clock.advance(2 * MINUTE_MS)
    later = await opened.received("plain", "orders")
    assert set(later) == in_hand - {first["id"]}
    assert {one.system_properties.delivery_attempt for one in later.values()} == {2}
    ordered = await opened.received("ordered", "accounts")
    groups = [one.system_properties.message_group for one in ordered.values()]
    assert groups
    assert len(set(groups)) == len(groups)  # one of a message group at a time
    assert not acked["ordered"] & set(ordered)
    dead = await opened.ids(f"%DLQ%{result['dead']['group']}", 1)
    assert dead == {result["dead"]["id"]}


async def every_transaction(opened: Opened) -> None:
    """What was decided stays so; what was open can be decided, at the id that its producer has."""
    result = opened.told
    payments = lambda: opened.ids("payments", 2)  # noqa: E731
    assert await payments() == {result["committed_transaction"]}
    commit, roll_back = result["open_transactions"]
    await opened.end(commit, v2.COMMIT)
    await opened.end(roll_back, v2.ROLLBACK)
    assert await payments() == {result["committed_transaction"], commit["id"]}
    assert len(opened.broker.transactions.table) == 0
    rows = result["rows"]
    decision = staged.decide({rows["token"]: [opened.name]}, batch=rows["batch"], topics=(rows["topic"],))
    await opened.stage.call(staged.DECIDE, decision, staging_pb2.DecideResponse, opened.name)
    found = await opened.pulled(rows["topic"], 0)
    assert [row.body.decode() for row in found] == rows["there"] + rows["to_come"]


async def every_timer(opened: Opened) -> None:
    """Each comes once, at its millisecond; one that was called back never comes, nor one that is called back now."""
    result = opened.told
    later = lambda: opened.ids("later", 2)  # noqa: E731
    assert await later() == {result["fired"]}
    request = s.RecallMessageRequest(recall_handle=result["recall"]["handle"])
    request.topic.name = "later"
    answer = await opened.ask("RecallMessage", request, s.RecallMessageResponse)
    assert (answer.status.code, answer.message_id) == (v2.OK, result["recall"]["id"])
    last_ms = max(one["due_ms"] for one in result["timers"])
    fired = opened.broker.ledger.store.timers.stats
    await opened.stage.clock.advance(
        min(one["due_ms"] for one in result["timers"]) - opened.stage.clock.now_ms() - 1_000
    )
    assert await later() == {result["fired"]}
    await opened.stage.clock.advance(last_ms - opened.stage.clock.now_ms() + 1_000)
    await opened.stage.until(lambda: fired.fired >= len(result["timers"]))
    there = {
        one.system_properties.message_id: one.system_properties
        for queue_id in range(2)
        for one in await opened.pulled("later", queue_id)
    }
    due = {one["id"]: one["due_ms"] for one in result["timers"]}
    assert set(there) == {result["fired"], *due}
    for name, due_ms in due.items():
        assert there[name].delivery_timestamp.ToMilliseconds() == due_ms
        assert there[name].store_timestamp.ToMilliseconds() >= due_ms


async def every_change(opened: Opened) -> None:
    """Since 0.2: settings of topics, deleted topics, and changes that an absent broker has not confirmed."""
    result, broker = opened.told, opened.broker
    for name, settings in result.get("settings_of_topics", {}).items():
        topic = broker.catalog.topics.get(name)
        assert topic is not None, name
        assert {"queues": topic.read_queues, "retention_ms": topic.retention_ms} == settings, name
    for name in result.get("deleted", ()):
        assert broker.catalog.topics.get(name) is None, name
    for group_name, name in result.get("awaited", ()):
        group = broker.catalog.groups.get(group_name)
        assert group is not None, group_name
        assert broker.catalog.awaits(group, name)
    assert [gone.name for gone in broker.cluster.known.missing()] == result.get("missing", [])
    remembered = [
        {"kind": one.kind.value, "name": one.name, "uid": one.uid, "at_ms": one.at_ms, "waiting": list(one.waiting)}
        for one in broker.change_sender.unconfirmed.all()
    ]
    assert remembered == result.get("unconfirmed", [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_folder_of_a_release_is_opened_with_everything_in_it(version: str, tmp_path: Path) -> None:
    opened = Opened(version, tmp_path)
    await opened.open()
    try:
        assert opened.broker.ledger.store.identity.store_id == opened.told["store_id"]
        assert opened.broker.ledger.store.stats.recovered_cut_bytes == 0
        await every_change(opened)
        await every_message(opened)
        await every_offset(opened)
        await every_delivery(opened)
        await every_transaction(opened)
        await every_timer(opened)
        before = await opened.ids("orders", 4)
        await opened.close()
        await opened.open()  # once more, with what today's program has written beside it
        assert await opened.ids("orders", 4) == before
        assert len(await opened.ids("later", 2)) == 1 + len(opened.told["timers"])
    finally:
        await opened.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_digests_of_a_release_are_delivered_and_its_messages_are_in_the_window_of_duplicates(
    version: str, tmp_path: Path
) -> None:
    """Both releases stored MD5 (decision 151)."""
    opened = Opened(version, tmp_path)
    await opened.open(duplicates_window_ms=3_600_000)
    try:
        topic = opened.broker.catalog.topics.get("orders")
        assert topic is not None
        for message in [one for queue_id in range(4) for one in await opened.pulled("orders", queue_id)]:
            system = message.system_properties
            digest = v2.Digest(type=v2.MD5, checksum=md5(message.body, usedforsecurity=False).hexdigest().upper())
            assert system.body_digest == digest
            request = s.SendMessageRequest(messages=[v2.Message(topic=message.topic, body=message.body)])
            again = request.messages[0].system_properties
            again.message_id, again.born_timestamp.seconds = system.message_id, system.born_timestamp.seconds
            again.body_encoding, again.message_type = v2.IDENTITY, v2.NORMAL
            answer = await opened.ask("SendMessage", request, s.SendMessageResponse)
            assert answer.entries[0].offset == system.queue_offset
        assert opened.broker.runtime.stats.topic(topic.topic_id).duplicates == len(opened.stored(topic="orders"))
    finally:
        await opened.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_folder_of_a_release_has_nothing_to_be_found_by_the_store_tool(version: str, tmp_path: Path) -> None:
    opened = Opened(version, tmp_path)
    verdict = verify(RealDisk(tmp_path), owner=lambda: None)
    assert verdict.clean, verdict.findings.listed
    assert sum(verdict.frames.values()) > len(opened.told["stored"])


def test_the_running_version_has_its_folder() -> None:
    """A release is not complete before its data folder is kept for those that come."""
    from evenq import __version__

    assert __version__.partition(".dev")[0].partition("+")[0] in VERSIONS or ".dev" in __version__
