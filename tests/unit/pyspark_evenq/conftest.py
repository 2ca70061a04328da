"""A broker of evenq.v1 in memory, on a real gRPC port, with faults to order: the edge that the Spark source talks to."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark_evenq.brokers import connection
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.source.stream import StreamReader

from evenq.columns.arrow_schema import OutputColumn
from evenq.model.queue import MessageQueue
from evenq.store.log.record import HEADER_BYTES, pack
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, data_pb2, routes_pb2
from tests.unit.pyspark_evenq.fake_groups import FakeGroups
from tests.unit.pyspark_evenq.fake_sink import FakeSink

OK = definition_pb2.Status(code=definition_pb2.Code.OK)
NOT_HERE = definition_pb2.Status(code=definition_pb2.Code.HA_NOT_AVAILABLE, message="ask the leader")


class FakeBroker:
    """One broker, `broker-a`, with the topic `flights`."""

    def __init__(self, *, queues: int = 2, topic: str = "flights", name: str = "broker-a") -> None:
        self.topic = topic
        self.name = name
        self.queues: dict[int, list[definition_pb2.Message]] = {number: [] for number in range(queues)}
        self.low: dict[int, int] = dict.fromkeys(range(queues), 0)
        self.committed: dict[tuple[str, int], int] = {}
        self.calls: list[str] = []
        self.uid = ""
        """Of its queues; empty: a broker that does not tell."""
        self.away: dict[str, int] = {}
        """Readable queues of brokers that are not there."""
        self.whole = True
        """False: a broker that does not know who is away."""
        self.near: list[str] = []
        """Names of topics that it lists."""
        self.cut_scans = 0
        """So many of the next scans break after their first block."""
        self.sends_records = False
        """Whether it is a broker that knows of records."""
        self.flip = False
        """Whether the last byte of each block of records is damaged, until it is asked to check them."""
        self.takes_groups = False
        """Whether the topic takes messages with a message group."""
        self.parts: set[tuple[bool, bool]] = set()
        """Parts of records that were sent: head, system properties."""
        self.refuse_commits = False
        self.denies: set[str] = set()
        """Calls that its user may not make (any more)."""
        self.commit_pause = 0.0
        """Seconds that a commit takes."""
        self.tells_marks = False
        self.stored_later: dict[int, int] = {}
        """By ms, the first offset stored then or later; else 1."""
        self.many_pause = 0.0
        """Seconds more for one of several queues."""
        self.followers: tuple[str, ...] = ()
        """Where other copies of its log answer; with them it has copies."""
        self.follows = False
        """Whether it is such a copy itself: it answers only who takes any, and knows nothing but messages."""
        self.far_behind = False
        """What it says of scans to who takes any copy."""
        self.any_copy: list[bool] = []
        """Of each scan."""
        self.sink = FakeSink(name)
        self.groups: FakeGroups | None = None
        """None: a broker that knows no members."""
        self.port = 0
        self._grown = threading.Condition()
        self._server: Any = None
        self.start()

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
        handlers = {
            "/apache.rocketmq.v2.MessagingService/QueryRoute": grpc.unary_unary_rpc_method_handler(self._route),
            "/evenq.v1.Admin/ListTopics": grpc.unary_unary_rpc_method_handler(self._list),
            "/evenq.v1.Data/QueryOffsets": grpc.unary_unary_rpc_method_handler(self._offsets),
            "/evenq.v1.Data/CommitOffsets": grpc.unary_unary_rpc_method_handler(self._commit),
            "/evenq.v1.Data/Scan": grpc.unary_stream_rpc_method_handler(self._scan),
            **self.sink.handlers(),
        }

        if self.groups is not None:
            handlers |= self.groups.handlers()

        class Handler(grpc.GenericRpcHandler):
            def service(self, call: Any) -> Any:
                return handlers.get(call.method)

        self._server.add_generic_rpc_handlers((Handler(),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def queue(self, queue_id: int) -> MessageQueue:
        return MessageQueue(self.topic, self.name, queue_id)

    def send(self, body: str, *, queue: int = 0, tag: str = "", **properties: str) -> None:
        message = definition_pb2.Message(body=body.encode(), user_properties=properties)
        message.topic.name = self.topic
        system = message.system_properties
        system.queue_id, system.queue_offset = queue, len(self.queues[queue])
        system.message_id = f"{queue}-{system.queue_offset}"
        if tag:
            system.tag = tag
            system.keys.append(f"key-{tag}")
        set_ms(system.born_timestamp, 1_700_000_000_123)
        set_ms(system.store_timestamp, 1_700_000_000_456)
        with self._grown:
            self.queues[queue].append(message)
            self._grown.notify_all()

    def know_groups(self) -> FakeGroups:
        """Start again as a broker that knows members."""
        self.stop()
        self.groups = FakeGroups(name=self.name, topic=self.topic, committed=self.committed)
        self.start()
        return self.groups

    def progress(self, group: str) -> dict[int, int]:
        return {queue: offset for (name, queue), offset in sorted(self.committed.items()) if name == group}

    def _route(self, encoded: bytes, context: Any) -> bytes:
        self._called("QueryRoute", context)
        request = service_pb2.QueryRouteRequest.FromString(encoded)
        if not request.endpoints.addresses:
            unnamed = definition_pb2.Status(code=definition_pb2.Code.ILLEGAL_ACCESS_POINT, message="no access point")
            return service_pb2.QueryRouteResponse(status=unnamed).SerializeToString()
        if request.topic.name != self.topic:
            missing = definition_pb2.Status(code=definition_pb2.Code.TOPIC_NOT_FOUND, message="no such topic")
            return service_pb2.QueryRouteResponse(status=missing).SerializeToString()
        whole = self.whole and routes_pb2.RouteQuestion.FromString(encoded).whole
        if not self.queues and not whole:
            none = definition_pb2.Status(code=definition_pb2.Code.TOPIC_NOT_FOUND, message="no open queue")
            return service_pb2.QueryRouteResponse(status=none).SerializeToString()
        broker = definition_pb2.Broker(
            name=self.name,
            endpoints=definition_pb2.Endpoints(
                scheme=definition_pb2.AddressScheme.IPv4,
                addresses=[definition_pb2.Address(host="127.0.0.1", port=self.port)],
            ),
        )
        away = [routes_pb2.AwayBroker(broker_name=name, read_queues=count) for name, count in self.away.items()]
        leaders = [routes_pb2.GroupLeader(broker_name=self.name, epoch=7, followers=self.followers)]
        schemes = routes_pb2.RouteSchemes(
            whole=whole, away=away if whole else [], leaders=leaders if self.followers else []
        ).SerializeToString()
        response = service_pb2.QueryRouteResponse(
            status=OK,
            message_queues=[
                definition_pb2.MessageQueue(
                    topic=request.topic,
                    id=number,
                    permission=definition_pb2.Permission.READ_WRITE,
                    broker=broker,
                    accept_message_types=[definition_pb2.FIFO if self.takes_groups else definition_pb2.NORMAL],
                )
                for number in self.queues
            ],
        ).SerializeToString()
        return response + schemes

    def _list(self, _encoded: bytes, _context: Any) -> bytes:
        topics = [admin_pb2.TopicSummary(topic=name) for name in self.near]
        return admin_pb2.ListTopicsResponse(status=OK, topics=topics).SerializeToString()

    def _called(self, name: str, context: Any) -> None:
        self.calls.append(name)
        if name in self.denies:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "user spark may not consume topic flights")

    def _offsets(self, encoded: bytes, context: Any) -> bytes:
        self._called("QueryOffsets", context)
        request = data_pb2.QueryOffsetsRequest.FromString(encoded)
        if self.follows and (not request.any_copy or request.group or request.wait_ms or any(request.mark_at)):
            return data_pb2.QueryOffsetsResponse(status=NOT_HERE).SerializeToString()
        deadline = time.monotonic() + request.wait_ms / 1000
        with self._grown:
            while request.wait_ms and not any(
                len(self.queues[queue.queue_id]) > known
                for queue, known in zip(request.queues, request.known_max, strict=True)
            ):
                if not self._grown.wait(max(0.0, deadline - time.monotonic())):
                    break
            return data_pb2.QueryOffsetsResponse(
                status=OK,
                offsets=[
                    data_pb2.QueueOffsets(
                        queue=queue,
                        min_offset=self.low[queue.queue_id],
                        max_offset=len(self.queues[queue.queue_id]),
                        committed=self.committed.get((request.group, queue.queue_id), -1),
                        timestamp_offset=self.stored_later.get(request.timestamp_ms, 1) if request.timestamp_ms else -1,
                        uid=self.uid,
                        mark=self._mark(queue.queue_id, mark_at),
                    )
                    for queue, mark_at in zip(request.queues, request.mark_at or [0] * len(request.queues), strict=True)
                ],
            ).SerializeToString()

    def _mark(self, queue_id: int, offset: int) -> str:
        """Of a message that was stored at 100 ms; its checksum is its body."""
        there = self.tells_marks and 0 < offset <= len(self.queues[queue_id])
        return f"64.{bytes(self.queues[queue_id][offset - 1].body).hex()}" if there else ""

    def _commit(self, encoded: bytes, _context: Any) -> bytes:
        self.calls.append("CommitOffsets")
        request = data_pb2.CommitOffsetsRequest.FromString(encoded)
        time.sleep(self.commit_pause + (self.many_pause if len(request.offsets) > 1 else 0))
        if self.refuse_commits:
            full = definition_pb2.Status(code=definition_pb2.Code.TOO_MANY_REQUESTS, message="later")
            return data_pb2.CommitOffsetsResponse(status=full).SerializeToString()
        if self.groups is not None and (refusal := self.groups.refusal(request)) is not None:
            return data_pb2.CommitOffsetsResponse(status=refusal).SerializeToString()
        for entry in request.offsets:
            if self.groups is not None and self.groups.ignores(request.group, entry.queue):
                continue
            key = (request.group, entry.queue.queue_id)
            self.committed[key] = max(self.committed.get(key, -1), entry.offset)
        return data_pb2.CommitOffsetsResponse(status=OK).SerializeToString()

    def _scan(self, encoded: bytes, context: Any) -> Iterator[bytes]:
        self.calls.append("Scan")
        request = data_pb2.ScanRequest.FromString(encoded)
        number, position = request.queue.queue_id, request.start
        stored = self.queues[number]
        self.any_copy.append(request.any_copy)
        if self.follows and (not request.any_copy or position > len(stored)):
            yield data_pb2.ScanBlock(status=NOT_HERE).SerializeToString()
            return
        if self.follows:
            request.end = min(request.end, len(stored))
        if self.uid and request.uid not in {"", self.uid}:
            other = definition_pb2.Status(code=definition_pb2.Code.PRECONDITION_FAILED, message="made anew")
            yield data_pb2.ScanBlock(status=other).SerializeToString()
            return
        if not self.low[number] <= position or request.end > len(stored):
            wrong = definition_pb2.Status(code=definition_pb2.Code.ILLEGAL_OFFSET, message="out of range")
            yield data_pb2.ScanBlock(status=wrong).SerializeToString()
            return
        per_block = max(1, request.block_bytes // 256)
        wanted = set(request.filter.expression.split(" || ")) if request.filter.expression else set()
        while position < request.end:
            following = min(position + per_block, request.end)
            messages = [
                message
                for message in stored[position:following]
                if not wanted or message.system_properties.tag in wanted
            ]
            block = data_pb2.ScanBlock(status=OK, first_offset=position, next_offset=following)
            block.far_behind = self.far_behind and request.any_copy
            if self.sends_records and request.records.version == 1 and not wanted:
                self.parts.add((request.records.head, request.records.system))
                block.records.CopyFrom(records_of(messages, position, request.records))
                if self.flip and request.records.verifies:
                    block.records.frames = block.records.frames[:-1] + b"\xff"
            else:
                block.messages.extend(messages)
            yield block.SerializeToString()
            position = following
            if self.cut_scans:
                self.cut_scans -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")


def records_of(messages: list[definition_pb2.Message], first: int, asked: data_pb2.RecordsWanted) -> data_pb2.Records:
    """The messages as they would be stored."""
    frames = []
    for number, message in enumerate(messages):
        head = definition_pb2.Message()
        head.CopyFrom(message)
        head.ClearField("system_properties")
        parts = head.SerializeToString(), message.system_properties.SerializeToString()
        frame = pack(
            kind=1, flags=0, epoch=1, topic_id=1, queue_id=message.system_properties.queue_id,
            queue_offset=first + number, log_offset=0, synced_offset=0, store_ms=1_700_000_000_456, born_ms=0,
            tag_hash=0, head=parts[0], system=parts[1],
        )  # fmt: skip
        kept = (asked.head, asked.system)
        frames.append(frame[:HEADER_BYTES] + b"".join(p for p, wanted in zip(parts, kept, strict=True) if wanted))
    sizes = struct.pack(f"<{len(frames)}I", *map(len, frames))
    checked = not (asked.verifies and asked.head and asked.system)
    return data_pb2.Records(head=asked.head, system=asked.system, sizes=sizes, frames=b"".join(frames), checked=checked)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    # Its port may be one that a broker of an earlier test had, and a channel that knows it as dead waits for a while.
    monkeypatch.setattr(connection, "_channels", {})
    made = FakeBroker()
    yield made
    made.stop()


@pytest.fixture
def follower() -> Iterator[FakeBroker]:
    """Another copy of the log of `broker`; a test gives it the messages that it knows to be committed."""
    made = FakeBroker()
    made.follows = True
    yield made
    made.stop()


@pytest.fixture
def stream_reader(broker: FakeBroker) -> Iterator[Callable[..., StreamReader]]:
    """Makes readers of one column of the topic `flights` as group `g`; stops them after the test."""
    readers: list[StreamReader] = []

    def make(**more: str) -> StreamReader:
        given = {
            "endpoints": broker.endpoint,
            "subscribe": "flights",
            "group": "g",
            "idleWaitMs": "20",
            "gcFreeze": "false",
        }
        options = ReadOptions.parse(given | more, streaming=True)
        readers.append(StreamReader(options, (OutputColumn("body", nullable=True),)))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()
