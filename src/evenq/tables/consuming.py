"""Messages of a table for a consumer that is behind the start of the log (`evenq.client.loops.reading.table_reads`).

A consumer must get each offset once, while retention moves the start of the log, an exporter adds files, and the
consumer restarts anywhere. So what is returned follows from the offset alone: a file has all offsets of its name, in
order. Decision 154. Used by one thread at a time.

Invariants:
- Only files of the content that the broker has now: their folder has the uid of the queue.
- A row is returned only after its offset, broker and queue were compared with the name and the folder of its file.
- Offsets before the first file, after the last one, and of accepted gaps (`.gap`) are reported as missing, after the
  folder was listed again. A hole between two files, and a table without the topic's present content, are errors.
- Memory: one batch of rows of at most CURSORS_MAX files, each with one row group (about 12 MiB, `files.GROUP_BYTES`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from evenq.client.core.reading.message_filter import filter_of
from evenq.client.loops.reading.table_reads import TablePull
from evenq.errors import Error, NotFound, StoreError, Unsupported
from evenq.model import FilterExpression, MessageQueue, QueueOffset, ReceivedMessage
from evenq.tables.files import COLUMNS, open_parquet, read_footer, reading
from evenq.tables.folder import TableTarget
from evenq.tables.layout import TableQueue, TableRange, ranges

if TYPE_CHECKING:
    import pyarrow as pa

CURSORS_MAX: Final = 8
"""Files that are open at the same time; with more queues, the one that was not read for longest is closed."""
BATCH_ROWS: Final = 1_024
"""Rows that are decoded in one step."""
MESSAGE_COLUMNS: Final = (
    "queueOffset",
    "body",
    "messageId",
    "tag",
    "keys",
    "properties",
    "messageGroup",
    "bornTimestamp",
    "storeTimestamp",
)
NO_END: Final = (1 << 63) - 1


class ConsumedTable:
    """All tables of a target, as a consumer reads them."""

    def __init__(self, target: TableTarget) -> None:
        self._target = target
        self._parts: dict[TableQueue, list[TableRange]] = {}
        """Files and gaps by queue, as they were last listed."""
        self._cursors: OrderedDict[TableQueue, _Cursor] = OrderedDict()
        """Open files, the last used one at the end."""

    def pull(
        self,
        queue: MessageQueue,
        uid: str,
        start: int,
        end: int,
        expression: FilterExpression,
        batch_max: int,
        bytes_max: int,
    ) -> TablePull:
        place = _place(queue, uid)
        try:
            cursor = self._cursors.pop(place, None)
            if cursor is not None and not (cursor.position == start and cursor.expression == expression):
                cursor.close()
                cursor = None
            if cursor is None:
                part = self._part(place, start)
                if part.gap:
                    return TablePull((), min(part.end, end), missing=True)
                cursor = _Cursor(self._target, place, part, start, expression)
            self._cursors[place] = cursor
            while len(self._cursors) > CURSORS_MAX:
                self._cursors.popitem(last=False)[1].close()
            messages = cursor.take(batch_max, bytes_max, end)
            following = cursor.position
            if following >= min(cursor.part.end, end):
                self._cursors.pop(place).close()
            return TablePull(messages, following)
        except Error:
            self._forget(place)
            raise

    def first(self, queue: MessageQueue, uid: str, end: int) -> int:
        parts = self._listed(_place(queue, uid))
        return min(next((part.start for part in parts if not part.gap), end), end)

    def offset_at(self, queue: MessageQueue, uid: str, timestamp_ms: int, end: int) -> int:
        place = _place(queue, uid)
        files = [part for part in self._listed(place) if not part.gap and part.start < end]

        def last_store_ms(part: TableRange) -> int:
            return read_footer(self._target, f"{place.folder}/{part.name}").last_store_ms

        number = bisect_left(files, timestamp_ms, key=last_store_ms)  # store times of a queue never fall
        if number == len(files):
            return end
        return min(_first_row_at(self._target, f"{place.folder}/{files[number].name}", timestamp_ms), end)

    def close(self) -> None:
        while self._cursors:
            self._cursors.popitem()[1].close()

    def _forget(self, place: TableQueue) -> None:
        self._parts.pop(place, None)
        cursor = self._cursors.pop(place, None)
        if cursor is not None:
            cursor.close()

    def _part(self, place: TableQueue, offset: int) -> TableRange:
        """Returns the file with an offset, or the gap from there on. Raises StoreError for a hole between two files."""
        parts = self._parts.get(place)
        if parts is None or (found := _containing(parts, offset)) is None:
            parts = self._parts[place] = self._listed(place)
            found = _containing(parts, offset)
        if found is not None:
            return found if not found.gap else TableRange(start=offset, end=found.end, gap=True)
        following = next((part for part in parts if part.start > offset), None)
        if following is None:
            return TableRange(start=offset, end=NO_END, gap=True)
        gap = TableRange(start=offset, end=following.start, gap=True)
        if following is not parts[0]:
            raise StoreError(
                f"{self._target.path(place.folder)} has no file with offsets {gap.start} to {gap.end - 1}, but files "
                f"before and after them: restore what is missing, or create the empty file {gap.name} there to accept "
                "that these messages are lost"
            )
        return gap

    def _listed(self, place: TableQueue) -> list[TableRange]:
        """Returns files and gaps of a queue; empty: only other queues have some. Raises NotFound."""
        target = self._target
        parts = ranges(path.rpartition("/")[2] for path in target.files(place.folder))
        if parts:
            return parts
        there = {TableQueue.of(path.rpartition("/")[0]) for path in target.files(place.topic)}
        uids = {one.topic_uid for one in there if one is not None}
        if place.topic_uid in uids:
            return []
        if uids:
            raise NotFound(
                f"{target.path(place.topic)} has files of other contents of the topic (uid {', '.join(sorted(uids))}), "
                f"and none of the present one (uid {place.topic_uid}): it is the table of a deleted topic of this name "
                f"or of another cluster; export the topic, or start the consumer without tables"
            )
        others = ", ".join(target.topics())
        raise NotFound(
            f"{target.url} has no files of topic {place.topic}{f'; it has {others}' if others else ''}: write them "
            f"(evenq table export {place.topic} --to {target.url}), or start the consumer without tables"
        )


def _place(queue: MessageQueue, uid: str) -> TableQueue:
    if not uid:
        raise Unsupported(
            f"broker {queue.broker_name} reports no uid of its queues, so files of a table cannot be assigned to "
            f"{queue}: use a newer broker, or start the consumer without tables"
        )
    return TableQueue(topic=queue.topic, uid=uid, broker_name=queue.broker_name, queue_id=queue.queue_id)


def _containing(parts: Sequence[TableRange], offset: int) -> TableRange | None:
    """Returns the last part with an offset that begins at or before it."""
    number = bisect_right(parts, offset, key=lambda part: part.start) - 1
    return parts[number] if number >= 0 and offset < parts[number].end else None


class _Cursor:
    """An open file, and the messages of its current batch of rows."""

    def __init__(
        self, target: TableTarget, place: TableQueue, part: TableRange, start: int, expression: FilterExpression
    ) -> None:
        self.part, self.expression = part, expression
        self.position = start
        """The next offset to return."""
        self._where = target.path(f"{place.folder}/{part.name}")
        self._place, self._passes = place, filter_of(expression)
        self._ready: deque[ReceivedMessage] = deque()
        self._decoded = part.start
        """Offset after the rows that were decoded or left out."""
        self._file = target.open(f"{place.folder}/{part.name}")
        try:
            with reading(self._where):
                self._batches = self._open_at(start)
        except Error:
            self._file.close()
            raise

    def _open_at(self, start: int) -> Iterator[pa.RecordBatch]:
        parquet = open_parquet(self._file)
        rows = parquet.metadata.num_rows
        if rows != self.part.count:
            raise StoreError(f"{self._where} has {rows:,} rows, its name says {self.part.count:,}")
        group = 0
        while self._decoded + (count := parquet.metadata.row_group(group).num_rows) <= start:
            self._decoded += count
            group += 1
        names = [column.name for column in COLUMNS]
        return (
            batch
            for number in range(group, parquet.num_row_groups)  # one at a time in memory
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=[number], columns=names)
        )

    def take(self, count: int, size: int, end: int) -> list[ReceivedMessage]:
        """Returns up to `count` messages with up to `size` bytes, at least one of the current batch below `end`."""
        if not self._ready:
            with reading(self._where):
                self._decode()
        taken: list[ReceivedMessage] = []
        while self._ready and self._ready[0].queue_offset < end and len(taken) < count:
            size -= len(self._ready[0].body)
            if taken and size < 0:
                break
            taken.append(self._ready.popleft())
        self.position = min(self._ready[0].queue_offset if self._ready else self._decoded, end)
        return taken

    def _decode(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            raise StoreError(f"{self._where} ends at offset {self._decoded}, before {self.part.end}")
        first, self._decoded = self._decoded, self._decoded + batch.num_rows
        self._must_be(batch, first)
        for message in _messages(batch, self._place.queue, max(0, self.position - first)):
            if self._passes(message):
                self._ready.append(message)

    def _must_be(self, batch: pa.RecordBatch, first: int) -> None:
        """Raises StoreError for rows of other offsets, or of another queue."""
        if batch.column("queueOffset").to_pylist() != list(range(first, first + batch.num_rows)):
            raise StoreError(f"{self._where} has no row or several rows of an offset from {first} on")
        place = self._place
        for name, value in (("topic", place.topic), ("brokerName", place.broker_name), ("queueId", place.queue_id)):
            if batch.column(name).unique().to_pylist() != [value]:
                raise StoreError(f"{self._where} has rows of another queue: {name} is not {value} from {first} on")

    def close(self) -> None:
        self._file.close()


def _messages(batch: pa.RecordBatch, queue: MessageQueue, skipped: int) -> Iterator[ReceivedMessage]:
    """Yields the rows of a batch, without the first `skipped` ones, as a broker delivers their messages."""
    import pyarrow as pa

    batch = batch.slice(skipped)

    def values(name: str) -> list[Any]:
        column: Any = batch.column(name)
        found: list[Any] = (column.cast(pa.int64()) if name.endswith("Timestamp") else column).to_pylist()
        return found

    for offset, body, message_id, tag, keys, properties, group, born_us, store_us in zip(
        *map(values, MESSAGE_COLUMNS), strict=True
    ):
        yield ReceivedMessage(
            topic=queue.topic,
            body=body,
            message_id=message_id,
            tag=tag,
            keys=tuple(keys),
            properties=dict(properties),
            message_group=group,
            queue=queue,
            queue_offset=QueueOffset(offset),
            born_ms=0 if born_us is None else born_us // 1_000,
            store_ms=store_us // 1_000,
        )


def _first_row_at(target: TableTarget, path: str, timestamp_ms: int) -> int:
    """Returns the offset of the first row of a file that was stored at or after a time. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with reading(target.path(path)), closing(target.open(path)) as file:
        for batch in open_parquet(file).iter_batches(columns=["queueOffset", "storeTimestamp"]):
            late = pc.greater_equal(batch.column("storeTimestamp").cast(pa.int64()), timestamp_ms * 1_000)
            offset = pc.min(batch.column("queueOffset").filter(late)).as_py()
            if offset is not None:
                return int(offset)
    raise StoreError(f"{target.path(path)} has no row stored at {timestamp_ms} ms or later, its footer says otherwise")
