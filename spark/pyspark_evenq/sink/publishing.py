"""Writes without a decision: a broker acknowledges every row before the task ends, and rows are visible immediately.

Called by `writer.write` for `delivery=atLeastOnce` and `idempotent`. They differ in the messages' ids: random ones, or
ones made from query, batch, partition, place and content, by which brokers recognize a row that was sent before.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.cluster import persist
from pyspark_evenq.options.sink import DeliveryGuarantee, WriteOptions
from pyspark_evenq.sink.blocks import Columns, SinkTarget, parted, pieces
from pyspark_evenq.sink.cluster import STAGE_MS
from pyspark_evenq.sink.rows import checked
from pyspark_evenq.sink.staging import QueuesOf, Routes, TaskAttempt

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH, SEND = "/evenq.v1.Data/Publish", "/apache.rocketmq.v2.MessagingService/SendMessage"
BYTES_MAX = 3 << 20
"""Of one call. Brokers accept more, because one message may be large."""
SENDS_MAX = 500
"""Delayed messages in one call."""


def publish(options: WriteOptions, attempt: TaskAttempt, rows: Iterator[pa.RecordBatch]) -> int:
    """Sends all rows; returns their number when every one is acknowledged."""
    publisher = _Publisher(options, attempt)
    try:
        for batch in rows:
            publisher.add(batch)
        return publisher.finish()
    finally:
        publisher.close()


class _Publisher:
    def __init__(self, options: WriteOptions, attempt: TaskAttempt) -> None:
        self._options = options
        self._routes = Routes(options)
        self._queues = QueuesOf(self._routes)
        self._added = 0
        self._rows = 0
        # Parallel tasks begin at different brokers.
        self._turn = attempt.partition_id
        if options.delivery is DeliveryGuarantee.IDEMPOTENT:
            self._ids = f"{attempt.query_id}\0{attempt.batch_id}\0{attempt.partition_id}"
        else:
            self._ids = uuid.uuid4().hex
        self._pool = ThreadPoolExecutor(options.in_flight, "evenq-sink")
        self._running: deque[Future[None]] = deque()
        self._last: dict[SinkTarget, Future[None]] = {}
        """Queue of rows with a queue id or message group -> its newest call, for which the next one waits (order)."""

    def add(self, batch: pa.RecordBatch) -> None:
        options = self._options
        batch = checked(batch, first_row=self._added)
        self._added += batch.num_rows
        for target, part in parted(batch, options.topic, self._queues):
            for piece in pieces(part, rows_max=options.block_rows, bytes_max=options.block_bytes):
                self._send(target, piece)

    def finish(self) -> int:
        while self._running:
            self._running.popleft().result()
        return self._rows

    def close(self) -> None:
        # Calls still run only after an error; then the attempt has failed, whatever their answers are.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, target: SinkTarget, piece: pa.RecordBatch) -> None:
        brokers = self._routes[target.topic]
        name = target.broker_name
        if not name:
            names = list(brokers.addresses)
            self._turn += 1
            name = names[self._turn % len(names)]
        address = brokers.addresses[name]
        plain: dict[int, list[Any]] = {}
        delayed = []
        for message in self._messages(target.topic, piece):
            system = message.system_properties
            # Only SendMessage supports delivery times.
            if system.HasField("delivery_timestamp"):
                _name_queue(system, target)
                delayed.append(message)
            else:  # by priority: a block is for one queue
                plain.setdefault(system.priority if system.HasField("priority") else -1, []).append(message)
        for messages in plain.values():
            for some in _by_size(messages):
                self._submit(target, address, PUBLISH, _block(target, name, some))
        for some in _by_size(delayed, SENDS_MAX):
            self._submit(target, address, SEND, _sending(some))

    def _submit(self, target: SinkTarget, address: str, method: str, request: bytes) -> None:
        while len(self._running) >= self._options.in_flight:
            self._running.popleft().result()
        if target in self._last:
            self._last[target].result()
        call = self._pool.submit(_call, address, method, request, self._options.write_timeout_ms)
        self._running.append(call)
        # Order is promised only within a chosen queue; other rows are sent in parallel.
        if target.queue_id >= 0:
            self._last[target] = call

    def _messages(self, topic: str, piece: pa.RecordBatch) -> Iterator[Any]:
        columns = Columns.of(piece)
        values_of = {
            name: getattr(columns, name).to_pylist()
            for name in Columns.__slots__
            if name not in {"topic", "broker_name", "queue_id"} and getattr(columns, name) is not None
        }
        for at in range(piece.num_rows):
            message = _message(topic, {name: values[at] for name, values in values_of.items()})
            message.system_properties.message_id = self._id(message)
            yield message
            self._rows += 1

    def _id(self, message: Any) -> str:
        digest = blake2b(f"{self._ids}\0{self._rows}\0".encode(), digest_size=16)
        if self._options.delivery is DeliveryGuarantee.IDEMPOTENT:
            # The place alone is not enough: an older copy of the checkpoint has other rows in the same place.
            digest.update(message.SerializeToString(deterministic=True))
        return f"01{digest.hexdigest().upper()}"


def _name_queue(system: Any, target: SinkTarget) -> None:
    """Sets the queue of a delayed message, after its id, which is made of the row as in earlier versions."""
    if system.message_group or target.queue_id < 0:  # the broker chooses the queue, by the group if there is one
        return
    if target.queue_id == 0:
        raise SettingsError(
            f"a row names queue 0 of broker {target.broker_name} and has a deliveryTimestamp; brokers take 0 in a "
            "delayed message for no queue. Name another queue or none, or give delivery=transactional"
        )
    system.queue_id = target.queue_id


def _message(topic: str, row: dict[str, Any]) -> Any:
    from evenq.wire.convert import set_ms
    from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

    message = definition_pb2.Message(body=_bytes(row["body"]))
    message.topic.name = topic
    system = message.system_properties
    if row.get("tag"):
        system.tag = row["tag"]
    if row.get("keys"):
        system.keys.extend(row["keys"])
    if row.get("key") is not None:
        system.keys.append(_bytes(row["key"]).decode())
    for name, value in row.get("properties") or ():
        message.user_properties[name] = value or ""
    for header in row.get("headers") or ():
        message.user_properties[header["key"]] = _bytes(header["value"]).decode()
    if row.get("message_group"):
        system.message_group = row["message_group"]
    if row.get("delivery_timestamp") is not None:
        set_ms(system.delivery_timestamp, int(row["delivery_timestamp"].timestamp() * 1_000))
    if row.get("priority") is not None:
        system.priority = row["priority"]
    return message


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _by_size(messages: Sequence[Any], count_max: int = 10_000) -> Iterator[list[Any]]:
    some: list[Any] = []
    size = 0
    for message in messages:
        bytes_here = message.ByteSize()
        if some and (size + bytes_here > BYTES_MAX or len(some) >= count_max):
            yield some
            some, size = [], 0
        some.append(message)
        size += bytes_here
    if some:
        yield some


def _block(target: SinkTarget, broker_name: str, messages: Sequence[Any]) -> bytes:
    from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

    queue = common_pb2.Queue(topic=target.topic, broker_name=broker_name, queue_id=target.queue_id)
    return data_pb2.PublishRequest(queue=queue, messages=messages).SerializeToString()


def _sending(messages: Sequence[Any]) -> bytes:
    from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

    return service_pb2.SendMessageRequest(messages=messages).SerializeToString()


def _call(address: str, method: str, request: bytes, timeout_ms: int) -> None:
    persist(f"writing rows at {address}", lambda: _once(address, method, request), timeout_ms=timeout_ms)


def _once(address: str, method: str, request: bytes) -> None:
    from evenq.wire.status import check
    from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
    from evenq.wire.stubs.evenq.v1 import data_pb2

    content = connection.unary(address, method, request, timeout_ms=STAGE_MS, writes=True)
    if method == PUBLISH:
        check(data_pb2.PublishResponse.FromString(content).status)
        return
    response = service_pb2.SendMessageResponse.FromString(content)
    check(response.status)
    for entry in response.entries:
        check(entry.status)
