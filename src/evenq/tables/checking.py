"""Content of a table: queues and their files, findings about them, and the files that are older than a time.

Called by `evenq table` and by queries. Needs no broker; offsets of the live queues are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from evenq.client.core.reading.extents import QueueExtent
from evenq.errors import NotFound, StoreError
from evenq.tables.files import COLUMNS, FileFooter, footer_findings, read_batches, read_footer, reading
from evenq.tables.folder import TableTarget
from evenq.tables.layout import TableQueue, TableRange, ranges
from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.stored import all_schemas

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFiles:
    """The files of one queue's content, by offset."""

    queue: TableQueue
    parts: tuple[TableRange, ...]
    """Files and accepted gaps."""
    sizes: Mapping[str, int]
    """Bytes by name."""

    @property
    def files(self) -> list[TableRange]:
        return [part for part in self.parts if not part.gap]

    @property
    def paths(self) -> list[str]:
        return [self.path(part) for part in self.files]

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        return self.parts[-1].end

    @property
    def rows(self) -> int:
        return sum(part.count for part in self.files)

    @property
    def bytes(self) -> int:
        return sum(self.sizes[part.name] for part in self.files)

    @property
    def gaps(self) -> int:
        """Messages of accepted gaps."""
        return sum(part.count for part in self.parts if part.gap)

    def path(self, part: TableRange) -> str:
        return f"{self.queue.folder}/{part.name}"

    def last_store_ms(self, target: TableTarget) -> int:
        """Returns the store time of the newest row, ms since the epoch; 0 without rows."""
        return read_footer(target, self.paths[-1]).last_store_ms if self.files else 0


class TableFinding(NamedTuple):
    """Something that is wrong with a table."""

    place: str
    """Path of a file or folder."""
    what: str


def table_of(target: TableTarget, topic: str) -> list[QueueFiles]:
    """Returns the queues that have files, sorted. Raises NotFound without any, StoreError."""
    found = queues_of(target, topic)
    if not found:
        others = ", ".join(one for one in target.topics() if one != topic)
        also = f"; it has the tables {others}" if others else ""
        raise NotFound(
            f"{target.url} has no files of topic {topic}{also}; write them: evenq table export {topic} --to "
            f"{target.url}"
        )
    return found


def queues_of(target: TableTarget, topic: str) -> list[QueueFiles]:
    """Returns the queues that have files, sorted. Raises StoreError."""
    names: dict[str, dict[str, int]] = {}
    for path, size in target.files(topic).items():
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, {})[name] = size
    found: list[QueueFiles] = []
    for folder, sizes in names.items():
        queue, parts = TableQueue.of(folder), ranges(sizes)
        if queue is not None and parts:
            found.append(QueueFiles(queue=queue, parts=tuple(parts), sizes=sizes))
    return sorted(found, key=lambda one: one.queue)


def newest_content(target: TableTarget, table: Iterable[QueueFiles], topic_uid: str = "") -> list[QueueFiles]:
    """Returns the queues of one topic, without those of deleted topics of the same name. `topic_uid`: that of the live
    topic; empty: the one with the newest message counts.
    """
    queues = list(table)
    uids = {one.queue.topic_uid for one in queues}
    if not topic_uid and len(uids) > 1:
        topic_uid = max(queues, key=lambda one: one.last_store_ms(target)).queue.topic_uid
    return [one for one in queues if topic_uid in {"", one.queue.topic_uid}]


def findings(
    target: TableTarget, files: QueueFiles, live: QueueExtent | None = None, *, whole: bool = False
) -> Iterator[TableFinding]:
    """Yields findings about one queue: gaps and overlaps of names, footers that contradict them, and with `whole` rows
    that cannot be read or are not in order. `live`: the queue at its broker.
    """
    end = files.start
    folder = target.path(files.queue.folder)
    typed = {number: one.bodies() for number, one in all_schemas(target, files.queue.topic).items()}
    for part in files.parts:
        if part.start > end:
            yield TableFinding(folder, f"no file has offsets {end} to {part.start - 1}, {part.start - end:,} messages")
        elif part.start < end:
            yield TableFinding(folder, f"{part.name} begins before {end}, so rows are in two files")
        end = max(end, part.end)
        if part.gap:
            yield TableFinding(
                target.path(files.path(part)),
                f"{part.count:,} messages are missing; the gap was accepted at the export",
            )
            continue
        yield from (
            TableFinding(target.path(files.path(part)), what) for what in _file(target, files, part, whole, typed)
        )
    if live is None:
        return
    if live.low > end:
        yield TableFinding(
            folder, f"retention deleted offsets {end} to {live.low - 1} before they were exported (--allow-gaps)"
        )
    elif live.high < end:
        yield TableFinding(folder, f"the queue ends at {live.high}, before the table's end {end}")


def broken(target: TableTarget, files: QueueFiles, *, whole: bool) -> Iterator[TableRange]:
    """Yields the ranges without a sound file, by their starts: damaged files, and holes between two files. `whole`:
    reads every row.
    """
    end = files.start
    typed = {number: one.bodies() for number, one in all_schemas(target, files.queue.topic).items()}
    for part in files.parts:
        if part.start > end:
            yield TableRange(start=end, end=part.start)
        end = max(end, part.end)
        if not part.gap and any(_file(target, files, part, whole, typed)):
            yield part


def _file(
    target: TableTarget, files: QueueFiles, part: TableRange, whole: bool, typed: Mapping[int, TypedBodies]
) -> Iterator[str]:
    path = files.path(part)
    try:
        with reading(target.path(path)):  # a column may be missing or have values of any kind
            footer = read_footer(target, path)
            yield from footer_findings(footer, part)
            wrong = _columns(footer, typed)
            yield from wrong
            if whole:
                bodies = typed.get(footer.schema) if not wrong else None
                yield from _rows(target, files.queue, part, path, footer, bodies)
    except StoreError as error:
        yield error.message


def _columns(footer: FileFooter, typed: Mapping[int, TypedBodies]) -> list[str]:
    """Returns what in a footer contradicts the typed columns of the table."""
    if footer.schema and footer.schema not in typed:
        return [f"was written with schema {footer.schema}, which the table does not have in its folder _schema"]
    expected = typed[footer.schema].schema.names if footer.schema else [column.name for column in COLUMNS]
    if footer.columns.names != expected:
        return [f"has the columns {', '.join(footer.columns.names)}, not {', '.join(expected)}"]
    wrong = [
        field
        for field in (typed[footer.schema].schema if footer.schema else ())
        if footer.columns.field(field.name).type != field.type
    ]
    return [f"has the column {one.name} as {footer.columns.field(one.name).type}, not as {one.type}" for one in wrong]


def _rows(
    target: TableTarget, queue: TableQueue, part: TableRange, path: str, footer: FileFooter, typed: TypedBodies | None
) -> Iterator[str]:
    last_ms = footer.last_store_ms
    following, right = part.start, {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
    for batch in read_batches(target, path):
        offsets = batch.column("queueOffset").to_pylist()
        if offsets != list(range(following, following + len(offsets))):
            yield f"has no row or several rows of an offset from {following} on"
            return
        wrong = [name for name, value in right.items() if batch.column(name).unique().to_pylist() != [value]]
        if wrong and offsets:
            yield f"has rows of another queue: {', '.join(wrong)} from offset {following} on"
            return
        if typed is not None and (others := _other_values(typed, batch)):
            yield f"has other typed values than its bodies: {', '.join(others)} from offset {following} on"
            return
        following += len(offsets)
        last_ms = batch.column("storeTimestamp")[-1].value // 1_000
    if last_ms != footer.last_store_ms:  # `expired` uses it
        yield (
            f"has {footer.last_store_ms} as the store time of its last row in its footer, which was stored at "
            f"{last_ms} ms"
        )


def _other_values(typed: TypedBodies, batch: pa.RecordBatch) -> list[str]:
    """Returns the typed columns whose values differ from those of the bodies."""
    import pyarrow as pa

    plain = batch.select([column.name for column in COLUMNS])
    made = pa.Table.from_batches(typed.batches(plain), typed.schema)
    names = [field.name for field in typed.typed.fields()]
    return [
        name
        for name in names
        if not made.column(name).equals(pa.chunked_array([batch.column(name)]))
        and repr(made.column(name).to_pylist()) != repr(batch.column(name).to_pylist())  # NaN equals NaN there
    ]


def expired(target: TableTarget, files: QueueFiles, before_ms: int) -> list[TableRange]:
    """Returns the oldest files and gaps of a queue, as far as all their rows were stored before a time. The newest file
    is never among them: its name says where the export continues.
    """
    old: list[TableRange] = []
    for part in files.parts[:-1]:
        if not part.gap and read_footer(target, files.path(part)).last_store_ms >= before_ms:
            break
        old.append(part)
    return old
