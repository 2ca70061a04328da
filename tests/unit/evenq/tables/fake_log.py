"""A topic in memory, read as `TopicSource` reads one: the seam of exports, queries and checks."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Sequence
from zlib import crc32

from evenq.client.core.reading.extents import QueueExtent, RecordMark
from evenq.errors import Error
from evenq.model import MessageQueue
from evenq.model.names import table_group
from evenq.store.log.record import pack
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

START_MS = 1_700_000_000_000
OK = definition_pb2.Status(code=definition_pb2.Code.OK, message="OK")


class FakeLog:
    """Queues of one topic at one broker. `queues[n]` has (store time, body) by offset."""

    def __init__(self, *, topic: str = "orders", queues: int = 1, uid: str = "u1-b1", broker: str = "broker-a") -> None:
        self.topic, self.uid, self.broker = topic, uid, broker
        self.queues: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(queues)}
        self.low = dict.fromkeys(range(queues), 0)
        self.block = 50
        """Messages in a block."""
        self.fails: dict[int, Error] = {}
        """Raised by a scan that reaches this offset."""
        self.flips: set[int] = set()
        """Offsets whose record is damaged when the reader compares checksums."""
        self.scans: list[tuple[int, int]] = []
        self.reported: dict[int, int] = {}
        """Queue -> the end of its files, as reported to the brokers."""
        self.refuses: Error | None = None
        """Raised by reports."""

    def add(self, count: int, *, at_ms: int = START_MS, queue: int = 0, step_ms: int = 0) -> None:
        there = self.queues[queue]
        there += [(at_ms + step_ms * n, b"body %d" % (len(there) + n)) for n in range(count)]

    async def queues_(self) -> list[QueueExtent]:
        return [
            QueueExtent(
                queue=MessageQueue(self.topic, self.broker, number), address="h:1", low=self.low[number],
                high=len(there), uid=self.uid,
            )
            for number, there in self.queues.items()
        ]  # fmt: skip


class FakeReader:
    """The reader of a `FakeLog`."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log

    async def queues(self, topic: str) -> list[QueueExtent]:
        assert topic == self.log.topic
        return await self.log.queues_()

    async def mark(self, extent: QueueExtent, offset: int) -> RecordMark:
        number = extent.queue.queue_id
        there = self.log.queues[number]
        if not self.log.low[number] <= offset < len(there):
            return RecordMark(text="")
        store_ms, body = there[offset]
        return RecordMark(text=f"{store_ms:x}.{crc32(body):08x}")

    async def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int:
        there = self.log.queues[extent.queue.queue_id]
        low = self.log.low[extent.queue.queue_id]
        return next((n for n in range(low, len(there)) if there[n][0] >= timestamp_ms), len(there))

    async def report(self, group: str, ends: Sequence[tuple[QueueExtent, int]]) -> None:
        assert group == table_group(self.log.topic)
        if self.log.refuses is not None:
            raise self.log.refuses
        self.log.reported.update({extent.queue.queue_id: end for extent, end in ends})

    async def scan(self, extent: QueueExtent, start: int, end: int, *, verifies: bool) -> AsyncGenerator[bytes, None]:
        self.log.scans.append((start, end))
        at = start
        while at < end:
            following = min(at + self.log.block, end)
            failing = [offset for offset in range(at, following) if offset in self.log.fails]
            if failing:
                raise self.log.fails[failing[0]]
            yield self._block(extent, at, following, verifies)
            at = following

    def _block(self, extent: QueueExtent, start: int, end: int, verifies: bool) -> bytes:
        frames = []
        for offset in range(start, end):
            store_ms, body = self.log.queues[extent.queue.queue_id][offset]
            message = definition_pb2.Message(body=body, user_properties={"n": str(offset)})
            message.topic.name = self.log.topic
            system = definition_pb2.SystemProperties(message_id=f"01{offset:030X}", tag="t", keys=[f"k{offset}"])
            set_ms(system.born_timestamp, store_ms - 5)
            frame = pack(
                kind=1, flags=0, epoch=1, topic_id=7, queue_id=extent.queue.queue_id, queue_offset=offset, log_offset=0,
                synced_offset=0, store_ms=store_ms, born_ms=0, tag_hash=0, head=message.SerializeToString(),
                system=system.SerializeToString(),
            )  # fmt: skip
            frames.append(frame[:-1] + bytes([frame[-1] ^ 1]) if verifies and offset in self.log.flips else frame)
        sizes = struct.pack(f"<{len(frames)}I", *map(len, frames))
        records = data_pb2.Records(head=True, system=True, sizes=sizes, frames=b"".join(frames), checked=not verifies)
        return data_pb2.ScanBlock(status=OK, first_offset=start, next_offset=end, records=records).SerializeToString()
