"""Write the data folder of a broker of release 0.2.0, as tests/storage/test_releases.py opens it for ever.

    python tests/data/releases/0.2.0/write.py            writes data.tar.gz and expected.json beside itself

Runs with the code of release 0.2.0 only; it stays here to say what is in the folder and how it came there. The same
code writes the same folder: the clock is the test's, the broker's chance is seeded, and its disk is memory (protobuf
alone chooses in which order the properties of the dead letter stand). The broker is not closed: its last records are in
no snapshot, as after a kill, so a reader has to replay them.

Beyond the folder of 0.1.0: a topic with a retention of its own, one that was widened, one that a group read before it
was deleted, and deletions that an absent broker has not confirmed.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import random
import sys
import tarfile
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[3]), str(HERE.parents[2] / "proofs")]

from evenq_broker.broker import Broker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue, MessageType, StartFrom
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import lock
from evenq.store.timers import loading, pending
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s
from evenq.wire.stubs.evenq.v1 import admin_pb2, groups_pb2, staging_pb2
from tests.unit.evenq_broker import staged
from tests.unit.evenq_broker.conftest import Stage

NAME, STORE_ID, SEGMENT_BYTES = "broker-0", "0123456789abcdef0123456789abcdef", 1 << 16
ABSENT, REGISTRY, ADMIN = "broker-1", "ns:1", "/evenq.v1.Admin/"
MINUTE_MS = 60_000
TOPICS = {
    "orders": (MessageType.NORMAL, 4),
    "accounts": (MessageType.FIFO, 2),
    "later": (MessageType.DELAY, 2),
    "payments": (MessageType.TRANSACTION, 2),
    "alarms": (MessageType.PRIORITY, 0),
    "rooms": (MessageType.LITE, 0),
    "anything": (MessageType.MIXED, 2),
    "rows": (MessageType.NORMAL, 1),
}
OF_TYPE = {
    MessageType.NORMAL: v2.NORMAL, MessageType.FIFO: v2.FIFO, MessageType.DELAY: v2.DELAY,
    MessageType.TRANSACTION: v2.TRANSACTION, MessageType.PRIORITY: v2.PRIORITY, MessageType.LITE: v2.LITE,
}  # fmt: skip


class Writer:
    """One broker, and what the expectation says of it."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.disk = MemoryDisk()
        self.sent: dict[str, dict[str, Any]] = {}
        self.told: dict[str, Any] = {}
        self.count = 0

    async def start(self) -> Broker:
        store = StoreSettings(segment_bytes=SEGMENT_BYTES, flush="sync", retention_hour=-1)
        self.stage.net.serve(REGISTRY, FakeRegistry().rpcs())
        settings = BrokerSettings(
            broker_name=NAME, store=store, session_timeout_ms=60 * MINUTE_MS, nameservers=REGISTRY, route_settle_ms=0
        )
        self.disk.make_folder("")
        made = lock.Identity(NAME, STORE_ID, SEGMENT_BYTES)
        text = {
            "format": lock.FORMAT, "broker_name": NAME, "store_id": STORE_ID, "segment_bytes": SEGMENT_BYTES,
            "crc32c": lock._crc(made),
        }  # fmt: skip
        lock.write_whole(self.disk, lock.PATH, json.dumps(text, indent=1).encode())
        loading.PendingTimers = lambda: pending.PendingTimers(table_max=8)  # so that a few timers make a run
        self.broker = Broker(
            settings, clock=self.stage.clock, rng=random.Random(NAME), net=self.stage.net, disk=self.disk
        )
        await self.stage.during(self.broker.open())
        await self.stage.begin(self.broker)
        return self.broker

    def message(self, topic: str, kind: Any, *, body: bytes = b"", tag: str = "", **system: Any) -> v2.Message:
        self.count += 1
        name = f"01{self.count:030X}"
        message = v2.Message(body=body or f"message {self.count} of {topic}: größer".encode())
        message.topic.name = topic
        message.user_properties["number"] = str(self.count)
        of = message.system_properties
        of.message_id, of.message_type, of.born_host = name, kind, "host-0"
        of.keys.append(f"key-{self.count}")
        set_ms(of.born_timestamp, self.stage.clock.now_ms())
        if tag:
            of.tag = tag
        for field, value in system.items():
            if field == "delivery_ms":
                set_ms(of.delivery_timestamp, value)
            elif field == "recovery_ms":
                set_duration_ms(of.orphaned_transaction_recovery_duration, value)
            else:
                setattr(of, field, value)
        self.sent[name] = {
            "topic": topic, "body": sha256(unpacked(message)).hexdigest(), "type": v2.MessageType.Name(kind), "tag": of.tag,
            "keys": list(of.keys), "properties": dict(message.user_properties), "message_group": of.message_group,
            "lite_topic": of.lite_topic, "priority": of.priority,
            "born_ms": self.stage.clock.now_ms(),
        }  # fmt: skip
        return message

    async def send(self, *messages: v2.Message) -> Any:
        answer = await self.ask("SendMessage", s.SendMessageRequest(messages=messages), s.SendMessageResponse)
        assert {entry.status.code for entry in answer.entries} == {v2.OK}, answer
        return answer.entries

    async def ask(self, method: str, request: Any, response: Any, *, client: str = "c") -> Any:
        answer = await self.stage.ask(method, request, response, broker=NAME, client=client)
        assert answer.status.code == v2.OK, (method, answer)
        return answer

    async def receive(
        self, group: str, topic: str, count: int, *, client: str = "c", hidden_ms: int = 2 * MINUTE_MS
    ) -> Any:
        request = s.ReceiveMessageRequest(batch_size=count)
        request.group.name, request.message_queue.topic.name, request.message_queue.id = group, topic, -1
        request.message_queue.broker.name = NAME
        set_duration_ms(request.invisible_duration, hidden_ms)
        set_duration_ms(request.long_polling_timeout, 0)
        request.filter_expression.type, request.filter_expression.expression = v2.TAG, "*"
        headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}

        async def collect() -> list[Any]:
            stream = self.stage.net.stream(
                f"{NAME}:8081", "/apache.rocketmq.v2.MessagingService/ReceiveMessage", request.SerializeToString(),
                timeout_ms=60_000, metadata=headers,
            )  # fmt: skip
            return [s.ReceiveMessageResponse.FromString(frame) async for frame in stream]

        return [one.message for one in await self.stage.during(collect()) if one.HasField("message")]

    async def ack(self, group: str, topic: str, *messages: v2.Message) -> None:
        request = s.AckMessageRequest()
        request.group.name, request.topic.name = group, topic
        for message in messages:
            system = message.system_properties
            request.entries.add(
                message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
            )
        await self.ask("AckMessage", request, s.AckMessageResponse)

    # ------------------------------------------------------------------------------------------------ the story

    async def write(self) -> None:
        broker = await self.start()
        for name, (kind, queues) in TOPICS.items():
            await self.stage.during(broker.catalog.create_topic(name, message_type=kind, queues=queues))
        for name, ordered in (("plain", False), ("ordered", True), ("pullers", False), ("lites", True)):
            await self.stage.during(broker.catalog.create_group(name, ordered=ordered, start_from=StartFrom.FIRST))
        await self.stage.during(broker.catalog.create_group("shared", strategy="STICKY", max_attempts=5))
        await self.stage.during(broker.catalog.create_topic("kept", queues=1, retention_ms=90 * 24 * 60 * MINUTE_MS))
        await self.stage.during(broker.catalog.create_topic("gone", queues=1))
        await self.send(self.message("gone", v2.NORMAL))
        await self.deliver("plain", "gone", 1, acked=1)
        await self.stage.during(broker.catalog.delete_topic("gone"))
        self.told["awaited"] = [["plain", "gone"]]
        await self.first_half()
        await self.stage.during(broker.ledger.store.save_snapshot(broker.ledger._state()))
        await self.second_half()
        await self.stage.clock.advance(10_000)  # index, checkpoint
        await self.tell()

    async def first_half(self) -> None:
        """What the snapshot tells."""
        for number in range(40):
            tag = "ab"[number % 2]
            await self.send(self.message("orders", v2.NORMAL, tag=tag))
            await self.stage.clock.advance(100)
        noise = random.Random(0)
        for _ in range(6):  # several log files, with padding between them
            body = noise.randbytes(9_000)
            await self.send(self.message("anything", v2.NORMAL, body=body))
        packed = zlib.compress(b"packed by its producer " * 40)
        await self.send(self.message("anything", v2.NORMAL, body=packed, body_encoding=v2.GZIP))
        for number in range(8):
            await self.send(self.message("accounts", v2.FIFO, message_group=f"account-{number % 3}"))
        now = self.stage.clock.now_ms()
        recalls = []
        for number in range(10):  # more than a table of timers takes
            due = now + 5 * MINUTE_MS + number * 1_000
            [entry] = await self.send(self.message("later", v2.DELAY, delivery_ms=due))
            recalls.append((entry, due))
        [fired] = await self.send(self.message("later", v2.DELAY, delivery_ms=now + 2_000))
        await self.stage.clock.advance(5_000)
        self.told["fired"] = fired.message_id
        self.told["timers"] = [{"id": entry.message_id, "due_ms": due} for entry, due in recalls[2:]]
        self.told["recall"] = {"id": recalls[0][0].message_id, "handle": recalls[0][0].recall_handle}
        [gone] = [recalls[1][0]]
        request = s.RecallMessageRequest(recall_handle=gone.recall_handle)
        request.topic.name = "later"
        await self.ask("RecallMessage", request, s.RecallMessageResponse)
        self.told["recalled"] = gone.message_id
        await self.deliver("plain", "orders", 8, acked=3)
        await self.deliver("ordered", "accounts", 2, acked=1)
        await self.dead_letter()

    async def deliver(self, group: str, topic: str, count: int, *, acked: int) -> None:
        """`count` deliveries in turn, the last `acked` of them done: so there are gaps below what is done."""
        got = await self.receive(group, topic, count)
        assert len(got) == count, (group, topic, len(got))
        await self.ack(group, topic, *got[count - acked :])
        done = self.told.setdefault("acked", {}).setdefault(group, [])
        done += [one.system_properties.message_id for one in got[count - acked :]]
        handed = self.told.setdefault("handed", [])
        handed += [
            {
                "group": group, "topic": topic, "id": one.system_properties.message_id,
                "handle": one.system_properties.receipt_handle,
            }
            for one in got[: count - acked]
        ]  # fmt: skip

    async def dead_letter(self) -> None:
        [got] = await self.receive("plain", "anything", 1)
        system = got.system_properties
        request = s.ForwardMessageToDeadLetterQueueRequest(
            message_id=system.message_id, receipt_handle=system.receipt_handle, delivery_attempt=1,
            max_delivery_attempts=1,
        )  # fmt: skip
        request.group.name, request.topic.name = "plain", "anything"
        await self.ask("ForwardMessageToDeadLetterQueue", request, s.ForwardMessageToDeadLetterQueueResponse)
        await self.stage.clock.advance(1_000)
        self.told["dead"] = {"group": "plain", "id": system.message_id}
        self.told["acked"]["plain"].append(system.message_id)

    async def second_half(self) -> None:
        """What only the log tells."""
        for priority in (0, 5, 9):
            await self.send(self.message("alarms", v2.PRIORITY, priority=priority))
        for number in range(6):
            await self.send(self.message("rooms", v2.LITE, lite_topic=f"room-{number % 2}"))
        batch = [self.message("orders", v2.NORMAL, tag="c") for _ in range(5)]
        await self.send(*batch)
        await self.transactions()
        await self.offsets()
        await self.members()
        await self.rows()
        await self.changes()
        await self.deliver("plain", "orders", 4, acked=2)

    async def transactions(self) -> None:
        names = []
        for _ in range(4):
            [entry] = await self.send(self.message("payments", v2.TRANSACTION, recovery_ms=60 * MINUTE_MS))
            names.append((entry.message_id, entry.transaction_id))
        for (message_id, transaction_id), resolution in zip(names[:2], (v2.COMMIT, v2.ROLLBACK), strict=True):
            request = s.EndTransactionRequest(
                message_id=message_id, transaction_id=transaction_id, resolution=resolution
            )
            request.topic.name = "payments"
            await self.ask("EndTransaction", request, s.EndTransactionResponse)
        self.told["committed_transaction"], self.told["rolled_back"] = names[0][0], names[1][0]
        self.told["open_transactions"] = [{"id": one, "transaction_id": name} for one, name in names[2:]]

    async def offsets(self) -> None:
        told = self.told["offsets"] = []
        for queue_id, offset in ((0, 3), (1, 7), (2, 0)):
            request = s.UpdateOffsetRequest(offset=offset)
            request.group.name = "pullers"
            request.message_queue.topic.name, request.message_queue.id = "orders", queue_id
            request.message_queue.broker.name = NAME
            await self.ask("UpdateOffset", request, s.UpdateOffsetResponse)
            told.append({"group": "pullers", "topic": "orders", "queue": queue_id, "offset": offset})

    async def members(self) -> None:
        self.broker.sessions.join("shared", Member(client_id="member-1", protocol=Protocol.EVENQ))
        request = groups_pb2.LockQueuesRequest(group="shared", client_id="member-1")
        for queue_id in (0, 2):
            request.queues.add(topic="orders", broker_name=NAME, queue_id=queue_id)
        answer = await self.stage.call("/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse, NAME)
        assert [queue.granted for queue in answer.queues] == [True, True]
        assert self.broker.membership.locks.holder("shared", MessageQueue("orders", NAME, 0)) == "member-1"
        self.told["locks"] = [
            {"group": "shared", "topic": "orders", "queue": one, "client_id": "member-1"} for one in (0, 2)
        ]

    async def rows(self) -> None:
        """A batch of Spark's sink that is decided, and one whose decision is to come."""
        begin = staging_pb2.BeginRequest(query_id="q", topics=["rows"], coordinator=NAME)
        await self.stage.call(staged.BEGIN, begin, staging_pb2.BeginResponse, NAME)
        for batch, token in ((0, "a"), (1, "b")):
            block = staged.block([f"row {batch}.{row}" for row in range(3)], tags=["t"] * 3)
            asked = staged.stage_rows(block, topic="rows", batch=batch, token=token, coordinator=NAME)
            await self.stage.call(staged.STAGE, asked, staging_pb2.StageResponse, NAME)
        decision = staged.decide({"a": [NAME]}, batch=0, topics=("rows",))
        await self.stage.call(staged.DECIDE, decision, staging_pb2.DecideResponse, NAME)
        self.told["rows"] = {
            "topic": "rows", "there": [f"row 0.{row}" for row in range(3)], "query": "q", "batch": 1, "token": "b",
            "to_come": [f"row 1.{row}" for row in range(3)],
        }  # fmt: skip

    async def changes(self) -> None:
        """A topic is widened; a topic and a group are deleted while another broker, which had them, is away."""
        request = admin_pb2.ScaleTopicRequest(topic="widened", queues=4)
        other = await self.stage.broker(ABSENT, nameservers=REGISTRY, route_settle_ms=0)
        both = {NAME, ABSENT}
        for broker in (self.broker, other):
            await self.stage.until(lambda one=broker: {view.name for view in one.catalog.routes.brokers()} == both)
        for topic, queues in (("widened", 1), ("retired", 1)):
            create = admin_pb2.CreateTopicRequest(topic=topic, queues=queues)
            await self.stage.call(ADMIN + "CreateTopic", create, admin_pb2.CreateTopicResponse, NAME)
        group = admin_pb2.CreateGroupRequest(group="retirees")
        await self.stage.call(ADMIN + "CreateGroup", group, admin_pb2.CreateGroupResponse, NAME)
        await self.stage.call(ADMIN + "ScaleTopic", request, admin_pb2.ScaleTopicResponse, NAME)
        await self.stage.end(other)
        known = self.broker.cluster.known
        await self.stage.until(lambda: [gone.name for gone in known.missing()] == [ABSENT])
        for method, request, response in (
            ("DeleteTopic", admin_pb2.DeleteTopicRequest(topic="retired"), admin_pb2.DeleteTopicResponse),
            ("DeleteGroup", admin_pb2.DeleteGroupRequest(group="retirees"), admin_pb2.DeleteGroupResponse),
        ):
            try:
                await self.stage.call(ADMIN + method, request, response, NAME)
            except ConnectionFailed:
                continue
            raise AssertionError(f"{method} does not wait for {ABSENT}")
        changes = self.broker.change_sender.unconfirmed.all()
        assert {one.name for one in changes} >= {"retired", "retirees"}
        self.told["missing"] = [ABSENT]
        self.told["unconfirmed"] = [
            {"kind": one.kind.value, "name": one.name, "uid": one.uid, "at_ms": one.at_ms, "waiting": list(one.waiting)}
            for one in changes
        ]
        self.told["deleted"] = ["gone", "retired"]

    async def tell(self) -> None:
        """Where everything is, as the store of the release reads it."""
        store, topics = self.broker.ledger.store, self.broker.catalog.topics
        stored: list[dict[str, Any]] = []
        for topic_id, queue_id in sorted(store._queues):
            topic = topics.by_id(topic_id)
            low, high = store.queue_range(topic_id, queue_id)
            if topic is None:
                continue
            read = await self.stage.during(store.read_at(topic_id, queue_id, list(range(low, high))))
            assert len(read) == high - low
            for message in read:
                system = v2.SystemProperties.FromString(message.system)
                one = {
                    "topic": topic.name, "queue": queue_id, "offset": message.queue_offset,
                    "id": system.message_id, "store_ms": message.store_ms,
                }  # fmt: skip
                if topic.name in TOPICS and topic.name != "rows":
                    one |= {"lite_topic": system.lite_topic} if system.lite_topic else {}
                stored.append(one)
        self.told |= {
            "broker_name": NAME,
            "store_id": STORE_ID,
            "now_ms": self.stage.clock.now_ms(),
            "topics": {name: kind.name for name, (kind, _) in TOPICS.items()},
            "queues": {name: topics.get(name).read_queues for name in TOPICS},
            "groups": {
                group.name: {"ordered": group.ordered, "strategy": group.strategy, "max_attempts": group.max_attempts}
                for group in sorted(self.broker.catalog.groups.all(), key=lambda group: group.name)
            },
            "uids": {name: topics.get(name).uid for name in TOPICS},
            "settings_of_topics": {
                name: {"queues": topics.get(name).read_queues, "retention_ms": topics.get(name).retention_ms}
                for name in ("kept", "widened")
            },
            "sent": self.sent,
            "stored": stored,
        }


def unpacked(message: v2.Message) -> bytes:
    return zlib.decompress(message.body) if message.system_properties.body_encoding == v2.GZIP else message.body


def packed(files: dict[str, bytes]) -> bytes:
    """A .tar.gz that depends on nothing but the files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o644, 0
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), 9, mtime=0)


async def main() -> None:
    writer = Writer()
    await writer.write()
    files = {name: bytes(file.data) for name, file in writer.disk.files.items()}
    (HERE / "data.tar.gz").write_bytes(packed(files))
    (HERE / "expected.json").write_text(json.dumps(writer.told, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    for name, data in sorted(files.items()):
        print(f"{len(data):>9} {name}")


if __name__ == "__main__":
    asyncio.run(main())
