"""Exporter of a topic: committed ranges of its queues become files, each row in exactly one of them.

Problem: an exporter may be killed at any moment, run twice, or run beside another one, while brokers restart, retention
deletes messages, and the topic is deleted and created again. Readers take every file that they see, and check nothing.

Idea: the names of the files are the only state. A queue continues at the greatest END among them. Where the next file
ends follows from the log (`layout`), so every exporter writes the same name, and a name is placed once (`folder`).

Invariants:
- A file has exactly the offsets START to END - 1: blocks of the scan must be dense and begin where the last one ended.
  A damaged record ends the export of its queue. Nothing is left out.
- Only what the leader reports as committed, and not younger than `settle_ms`: a broker with asynchronous flush has
  synced it by then. The message before START must still be the one that the last file ended with (its mark). Otherwise
  the broker lost the end of its log, and the queue stops.
- Messages that retention deleted before they were exported are a gap. The queue stops, unless gaps are allowed: then a
  file `_START-END.gap` states it. A queue without files begins at the oldest message of the log, without a gap.
- A scan names the uid of the queue's content, which is in the path too.
- Typed columns (`typed`) are those of the newest schema of the table when a turn writes its first file.
- Brokers learn the ends of the files (`reports`) only when the files are durable: retention may delete what is before.
- A damaged file is replaced by one of the same name, when that one is whole. A hole gets the files that were there:
  their ends follow from the log.

Example: rows_per_file is 1,000 and close_after_ms 60,000. A queue has [0, 2500); offset 2300 was stored in a later
minute than 2299. The files end at 1000, 2000, 2300 and, after the minute of the last message, at 2500. The next
one begins at 2500 and ends at 3000 at the latest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from evenq.client.core.reading.extents import QueueExtent, RecordMark
from evenq.columns.blocks import parse, records_of
from evenq.columns.verifying import RecordChecksumMismatch, can_verify
from evenq.errors import BadRequest, Error, IllegalOffset, InternalError, NotFound, StoreError, Unsupported
from evenq.model import MessageQueue
from evenq.model.names import table_group
from evenq.tables.checking import QueueFiles, broken, table_of
from evenq.tables.files import COLUMNS, TableWriter, read_footer
from evenq.tables.folder import TableTarget, place_bytes
from evenq.tables.layout import (
    SETTINGS_NAME,
    TableChanged,
    TableGap,
    TableQueue,
    TableRange,
    TableSettings,
    must_follow,
    ranges,
)
from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.stored import StoredSchema, newest_schema
from evenq.wire.status import check

SETTLE_MS: Final = 5_000
FILES_PER_TURN: Final = 4
"""Files of one queue before the next queue has its turn."""


class HistoryReader(Protocol):
    """The calls of `evenq.client.topic_source.TopicSource` that an export needs."""

    async def queues(self, topic: str) -> list[QueueExtent]: ...

    async def mark(self, extent: QueueExtent, offset: int) -> RecordMark: ...

    async def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int: ...

    def scan(self, extent: QueueExtent, start: int, end: int, *, verifies: bool) -> AsyncGenerator[bytes, None]: ...

    async def report(self, group: str, ends: Sequence[tuple[QueueExtent, int]]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    topic: str
    settings: TableSettings
    settle_ms: int = SETTLE_MS
    """Least age of the newest message of a file, ms."""
    allow_gaps: bool = False
    tail: bool = False
    """Ends a file at the end of the queue, also within a window."""
    reports: bool = True
    """Reports the ends of the files to the brokers, whose retention waits for them."""


@dataclass(slots=True, kw_only=True)
class ExportTurn:
    """The outcome of one pass over all queues."""

    files: int = 0
    rows: int = 0
    left: int = 0
    """Committed messages that are in no file yet."""
    gaps: int = 0
    """Messages of gaps that were accepted."""
    misfits: int = 0
    """Rows of `rows` whose bodies do not fit the typed columns."""
    failures: dict[MessageQueue, Error] = field(default_factory=dict)
    unreported: Error | None = None
    """Why brokers do not know the ends of the files, so that their retention does not wait; None: they do."""


@dataclass(slots=True, kw_only=True)
class _Position:
    """Where the files of one queue end."""

    next: int
    mark: str
    """Of the last row; empty: not known."""
    begun: bool
    """The queue has files."""


def table_settings(
    target: TableTarget, topic: str, *, rows_per_file: int | None, close_after_ms: int | None
) -> TableSettings:
    """Returns the settings of a topic's table; writes them if it is new. Raises SettingsError for other values."""
    path = f"{topic}/{SETTINGS_NAME}"
    given = {"rows_per_file": rows_per_file, "close_after_ms": close_after_ms}
    wanted = TableSettings(**{name: value for name, value in given.items() if value is not None})
    if path not in target.files(topic):
        place_bytes(target, path, wanted.encode(), lambda _: None)  # False: another exporter was faster
    known = TableSettings.decode(target.read(path), target.path(path))
    for name, value in given.items():
        if value is not None and value != getattr(known, name):
            option, unit = f"--{name.removesuffix('_ms').replace('_', '-')}", " ms" if name.endswith("_ms") else ""
            raise TableChanged(
                f"the table of {topic} in {target.url} was begun with {option} {getattr(known, name)}{unit}, not "
                f"{value}{unit}: its files end there, so the value cannot change; leave {option} out, or export to "
                "another folder"
            )
    return known


class TopicExport:
    """The export of one topic, in turns. `clock_ms` returns the time, ms since the epoch."""

    def __init__(
        self,
        reader: HistoryReader,
        target: TableTarget,
        plan: ExportPlan,
        *,
        clock_ms: Callable[[], int],
        wrote: Callable[[str, int, int], None] = lambda _path, _rows, _misfits: None,
    ) -> None:
        """`wrote` is called with each new file, its rows, and how many bodies of them do not fit the typed columns."""
        self._reader, self._target, self._plan = reader, target, plan
        self._clock_ms, self._wrote = clock_ms, wrote
        self._positions: dict[TableQueue, _Position] = {}
        self._reported: dict[TableQueue, int] = {}
        self._schema: StoredSchema | None = None
        self._bodies: TypedBodies | None = None
        self._schema_read = False
        """In this turn."""
        self.stopping = False
        """Set by the caller: the turn ends after its current file."""

    async def turn(self) -> ExportTurn:
        """Writes every file that can be written now. Raises errors of the route, TopicNotFound among them; those of one
        queue are in the result, and the other queues continue.
        """
        turn, self._schema_read = ExportTurn(), False
        extents = waiting = await self._reader.queues(self._plan.topic)
        while waiting and not self.stopping:
            more: list[QueueExtent] = []
            for extent in waiting:
                if self.stopping:
                    break
                try:
                    if await self._some_files(extent, turn):
                        more.append(extent)
                except Error as error:
                    turn.failures[extent.queue] = error
                    self._positions.pop(self._table_queue(extent), None)  # the names are read again
            waiting = more
            if self._plan.reports:
                await self._report(extents, turn)
        return turn

    async def rebuild(
        self, *, whole: bool, registered: Mapping[TableQueue, Iterable[TableRange]] = MappingProxyType({})
    ) -> ExportTurn:
        """Writes damaged files, and those that are gone from between others, again from the log. `left`: rows that
        still have no sound file. `registered`: files of an Iceberg table, whose names those that are gone get again.
        Raises NotFound without files, and errors of the route; those of a queue are in the result.
        """
        turn, self._schema_read = ExportTurn(), False
        live = {self._table_queue(extent): extent for extent in await self._reader.queues(self._plan.topic)}
        for files in table_of(self._target, self._plan.topic):
            ends = {one.start: one.end for one in registered.get(files.queue, ())}
            for part in broken(self._target, files, whole=whole):
                written = turn.rows
                try:
                    await self._write_again(live.get(files.queue), files, part, turn, ends)
                except Error as error:
                    turn.failures.setdefault(files.queue.queue, error)
                turn.left += part.count - (turn.rows - written)
        return turn

    async def _write_again(
        self,
        extent: QueueExtent | None,
        files: QueueFiles,
        part: TableRange,
        turn: ExportTurn,
        ends: Mapping[int, int],
    ) -> None:
        """Writes the files of a range. `ends`: of registered files, by their starts. Raises TableGap, TableChanged if
        the log does not have these messages.
        """
        what = f"offsets {part.start} to {part.end - 1} of {files.queue.queue} have no sound file"
        if extent is None:
            raise NotFound(f"{what}, and the broker is away, or the topic was deleted or created again")
        if part.start < extent.low:
            raise TableGap(f"{what}, and retention has deleted them up to {min(part.end, extent.low) - 1}")
        replaces = part in files.parts
        for one in files.files:  # itself and those beside it; the mark of a damaged one may not be readable
            if one.end == part.start or part.start <= one.start <= part.end:
                there = _Position(next=one.end, mark=self._mark_of(files, one), begun=True)
                await self._must_continue(extent, there)
        position = _Position(next=part.start, mark="", begun=True)
        while position.next < part.end:
            known = part.end if replaces else ends.get(position.next)
            closed = known or await self._closed_end(extent, position.next)
            await self._write(extent, files.queue, position, min(closed or part.end, part.end), turn, replace=replaces)

    def _mark_of(self, files: QueueFiles, part: TableRange) -> str:
        """Returns the mark of a file's last row; empty for a damaged file."""
        try:
            return read_footer(self._target, files.path(part)).mark
        except StoreError:
            return ""

    async def _report(self, extents: Sequence[QueueExtent], turn: ExportTurn) -> None:
        """Reports the ends that moved. A failure does not stop the export: the next report has all of them."""
        ends: dict[TableQueue, tuple[QueueExtent, int]] = {}
        for extent in extents:
            queue = self._table_queue(extent) if extent.uid else None
            position = self._positions.get(queue) if queue is not None else None
            if queue is not None and position is not None and self._reported.get(queue) != position.next:
                ends[queue] = extent, position.next
        if not ends:
            return
        topic = self._plan.topic
        try:
            if not (group := table_group(topic)):
                raise BadRequest(f"{topic} is a system topic, or longer than 108 characters: no group can stand for it")
            await self._reader.report(group, list(ends.values()))
            turn.unreported = None
        except Error as error:
            turn.unreported = error
        else:
            self._reported.update({queue: end for queue, (_, end) in ends.items()})

    def _table_queue(self, extent: QueueExtent) -> TableQueue:
        if not extent.uid:
            raise Unsupported(
                f"broker {extent.queue.broker_name} reports no uid of its queues, so its files could be "
                "those of a deleted topic: export with a newer broker"
            )
        queue = extent.queue
        return TableQueue(topic=queue.topic, uid=extent.uid, broker_name=queue.broker_name, queue_id=queue.queue_id)

    async def _some_files(self, extent: QueueExtent, turn: ExportTurn) -> bool:
        """Writes a few files of a queue; returns whether there are more."""
        queue = self._table_queue(extent)
        position = self._positions.get(queue)
        if position is None:
            position = self._positions[queue] = self._known(queue, extent)
        for _ in range(FILES_PER_TURN):
            self._must_be_there(extent, position, turn, queue)
            if position.next == extent.high or self.stopping:
                return False
            end = await self._closed_end(extent, position.next)
            if not end:
                turn.left += extent.high - position.next
                return False
            await self._must_continue(extent, position)
            await self._write(extent, queue, position, end, turn)
        return position.next < extent.high

    def _known(self, queue: TableQueue, extent: QueueExtent) -> _Position:
        """Returns the position after the files that are there."""
        known = ranges(path.rpartition("/")[2] for path in self._target.files(queue.folder))
        if not known:
            return _Position(next=extent.low, mark="", begun=False)
        last = known[-1]
        mark = "" if last.gap else read_footer(self._target, f"{queue.folder}/{last.name}").mark
        return _Position(next=last.end, mark=mark, begun=True)

    def _must_be_there(self, extent: QueueExtent, position: _Position, turn: ExportTurn, queue: TableQueue) -> None:
        """Handles what retention deleted. Raises TableGap, and TableChanged for a queue shorter than its table."""
        if position.next > extent.high:
            raise TableChanged(
                f"the table has {extent.queue} up to offset {position.next}, but the queue ends at {extent.high}: the "
                "broker lost the end of its log or was restored from a backup; export to another folder"
            )
        if position.next >= extent.low:
            return
        if not position.begun:
            position.next = extent.low
            return
        gap = TableRange(start=position.next, end=extent.low, gap=True)
        if not self._plan.allow_gaps:
            raise TableGap(
                f"retention deleted offsets {gap.start} to {gap.end - 1} of {extent.queue}, {gap.count:,} messages, "
                "before they were exported; add --allow-gaps to continue after them (the gap is recorded), and raise "
                "the topic's retention (evenq topic create --retention) so that it does not happen again"
            )
        path = f"{queue.folder}/{gap.name}"
        place_bytes(self._target, path, b"", lambda names: must_follow(gap, names))
        turn.gaps += gap.count
        position.next, position.mark = gap.end, ""

    async def _closed_end(self, extent: QueueExtent, start: int) -> int:
        """Returns the end of the file that begins at `start`; 0: it is still open."""
        now_ms, settings = self._clock_ms(), self._plan.settings
        first_ms = (await self._reader.mark(extent, start)).store_ms
        if first_ms < 0:  # deleted just now
            raise IllegalOffset(f"offset {start} of {extent.queue} does not exist any more")
        limit, window_end_ms = settings.limit(start), settings.window_end_ms(first_ms)
        window_end = await self._reader.offset_at(extent, window_end_ms)
        end = min(limit, extent.high, window_end)
        if end <= start:
            raise InternalError(f"{extent.queue} has no messages stored at {first_ms} ms although {start} is one")
        # `extent.high` is from the start of the turn: a window that has messages behind it has not ended there.
        ended = end == window_end and now_ms >= window_end_ms + self._plan.settle_ms
        over = end == limit or end < extent.high or ended
        if not (over or self._plan.tail):
            return 0
        last_ms = (await self._reader.mark(extent, end - 1)).store_ms
        return end if last_ms <= now_ms - self._plan.settle_ms else 0

    async def _must_continue(self, extent: QueueExtent, position: _Position) -> None:
        """Raises TableChanged if the message before the next one is another one than in the last file."""
        if not position.mark or position.next == extent.low:  # retention deleted that message
            return
        there = (await self._reader.mark(extent, position.next - 1)).text
        if there not in {"", position.mark}:
            raise TableChanged(
                f"offset {position.next - 1} of {extent.queue} is another message now than in the table: the broker "
                "lost the end of its log and stored new messages there; export to another folder"
            )

    async def _write(
        self,
        extent: QueueExtent,
        queue: TableQueue,
        position: _Position,
        end: int,
        turn: ExportTurn,
        *,
        replace: bool = False,
    ) -> None:
        part = TableRange(start=position.next, end=end)
        path = f"{queue.folder}/{part.name}"
        self._read_schema()
        try:
            mark, misfits = await self._file(extent, queue, part, verifies=can_verify(), replace=replace)
        except RecordChecksumMismatch:  # once more, checked by the broker, whose error names the damaged file
            mark, misfits = await self._file(extent, queue, part, verifies=False, replace=replace)
        position.next, position.mark, position.begun = end, mark, True
        turn.files += 1
        turn.rows += part.count
        turn.misfits += misfits
        self._wrote(self._target.path(path), part.count, misfits)

    def _read_schema(self) -> None:
        """Takes the typed columns that the table has now: another exporter may have added some."""
        if self._schema_read:
            return
        newest = newest_schema(self._target, self._plan.topic)
        if newest is not None and (self._schema is None or newest.number != self._schema.number):
            self._schema, self._bodies = newest, newest.bodies()
        self._schema_read = True

    async def _file(
        self, extent: QueueExtent, queue: TableQueue, part: TableRange, *, verifies: bool, replace: bool
    ) -> tuple[str, int]:
        """Writes one file; returns the mark of its last row, and how many bodies do not fit the typed columns."""
        path = f"{queue.folder}/{part.name}"
        draft = self._target.draft(queue.folder)
        try:
            number = self._schema.number if self._schema is not None else 0
            writer = TableWriter(
                draft.file, self._target.path(path), rows=part.count, bodies=self._bodies, number=number
            )
            try:
                await copy_rows(self._reader, extent, part, writer.write, verifies=verifies)
                mark = await self._reader.mark(extent, part.end - 1)
                writer.close(mark.text, mark.store_ms)
            finally:
                writer.give_up()
            # False: another exporter was faster
            draft.place(part.name, lambda names: must_follow(part, names), replace=replace)
        finally:
            draft.discard()
        return mark.text, writer.misfits


async def copy_rows(
    reader: HistoryReader,
    extent: QueueExtent,
    part: TableRange,
    write: Callable[..., None],
    *,
    verifies: bool,
) -> None:
    """Passes exactly the rows of a range to `write`, as Arrow batches. Raises IllegalOffset for rows that are gone,
    RecordChecksumMismatch for damaged ones, and InternalError for blocks that do not follow each other.
    """
    following = part.start
    async with aclosing(reader.scan(extent, part.start, part.end, verifies=verifies)) as blocks:
        async for data in blocks:
            block = parse(data)
            if block.status is not None:
                check(block.status)
            records = records_of(block, extent.queue)
            if records is None:
                raise Unsupported(
                    f"broker {extent.queue.broker_name} sends no stored records: export with a newer broker"
                )
            dense = block.first_offset == following and block.next_offset - block.first_offset == block.count
            if not dense or not following < block.next_offset <= part.end:
                raise InternalError(
                    f"the block of {extent.queue} that was to begin at {following} has {block.first_offset} to "
                    f"{block.next_offset} with {block.count} messages"
                )
            write(records.batch(COLUMNS))
            following = block.next_offset
            del block, records, data  # frees its memory for the next one
    if following != part.end:
        raise IllegalOffset(f"the scan of {extent.queue} ended at {following}, before {part.end}")
