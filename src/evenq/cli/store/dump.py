"""`evenq store dump DIR`: the messages of a data folder as JSON lines or as a Parquet file."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from evenq.cli.output import complain
from evenq.cli.store.commands import ProgressBar, folder_of, unreadable
from evenq.cli.store.decoding import RecordDecoder, decoder_of
from evenq.errors import BadRequest, StoreError, Unsupported
from evenq.runtime.printable import json_line
from evenq.runtime.private_files import FILE_MODE, open_private
from evenq.store.inspection.dump import Wanted, frames
from evenq.store.inspection.folder import Folder, read_folder
from evenq.store.inspection.log_walk import Hole
from evenq.store.io.disk import Disk
from evenq.store.log.record import MESSAGE, STATE, TIMER, TIMER_END


def dump(options: argparse.Namespace) -> int:
    """Returns 1 if a part of the log could not be read, which is reported on standard error."""
    if options.format == "parquet" and (options.output is None or options.states or options.timers):
        raise BadRequest(
            "--format parquet writes only messages, to a file: give --output FILE, without --states and --timers"
        )
    try:
        disk = folder_of(options.dir)
        folder = read_folder(disk, owner=disk.owner())
        decoder = decoder_of(disk, folder)
    except StoreError as error:
        return unreadable(error)
    holes: list[Hole] = []
    rows = _rows(options, disk, folder, decoder, holes)
    if options.limit is not None:
        rows = islice(rows, options.limit)
    if options.format == "parquet":
        count = write_parquet(options.output, rows)
    else:
        path = options.output
        with nullcontext(sys.stdout) if path is None else open_private(path, "w", encoding="utf-8") as out:
            count = _lines(out, rows)
    if options.output is not None:
        complain(f"{count} rows in {options.output}")
    for hole in holes:
        complain(
            f"evenq: the log from {hole.start} to {hole.end} cannot be read ({hole.why}); "
            f"for details: evenq store verify {options.dir}"
        )
    return 1 if holes else 0


def _rows(
    options: argparse.Namespace, disk: Disk, folder: Folder, decoder: RecordDecoder, holes: list[Hole]
) -> Iterator[dict[str, Any]]:
    kinds = {MESSAGE}
    if options.states:
        kinds.add(STATE)
    if options.timers:
        kinds |= {TIMER, TIMER_END}
    selection = Wanted(
        kinds=frozenset(kinds),
        topic_ids=decoder.topic_ids(options.topic) if options.topic is not None else None,
        queue_id=options.queue,
        begin_ms=moment(options.begin),
        end_ms=moment(options.end),
    )
    quiet = options.output is None  # the bar would appear between the lines
    with ProgressBar("dumping", quiet=quiet) as progress:
        for frame in frames(disk, folder, selection, on_hole=holes.append, on_progress=progress):
            yield decoder.row(frame)


def _lines(out: IO[Any], rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    for row in rows:
        body = row.get("body")
        if body is not None:
            try:
                row["body"] = body.decode()
            except UnicodeDecodeError:
                del row["body"]
                row["body_base64"] = base64.b64encode(body).decode()
        out.write(json_line(row) + "\n")
        count += 1
    return count


def moment(text: str | None) -> int | None:
    """Returns ms since the epoch for such a number or an ISO 8601 time. Raises BadRequest."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        raise BadRequest(f"{text} is not a time: give ms since the epoch or ISO 8601, e.g. 2026-01-31T08:00") from error


PARQUET_ROWS: Final = 10_000
PARQUET_BYTES: Final = 64 << 20


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Writes rows in groups of bounded size and returns their number. Raises Unsupported without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise Unsupported("writing Parquet needs pyarrow: pip install 'evenq[tables]', or use --format json") from error
    text, time = pa.string(), pa.timestamp("ms", tz="UTC")
    place = [("topic", text), ("topic_id", pa.int64()), ("queue_id", pa.int32()), ("queue_offset", pa.int64())]
    ids = [("log_offset", pa.int64()), ("message_id", text), ("tag", text), ("keys", pa.list_(text))]
    content = [("message_group", text), ("properties", pa.map_(text, text)), ("body", pa.binary())]
    schema = pa.schema([*place, *ids, *content, ("born_time", time), ("store_time", time)])
    count = 0
    path.touch(mode=FILE_MODE)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        source = iter(rows)
        while group := _group(source):
            columns = [pa.array([_value(row, field.name) for row in group], type=field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(group)
    return count


def _group(source: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    group: list[dict[str, Any]] = []
    size = 0
    for row in islice(source, PARQUET_ROWS):
        group.append(row)
        size += len(row.get("body") or b"")
        if size >= PARQUET_BYTES:
            break
    return group


def _value(row: dict[str, Any], name: str) -> Any:
    match name:
        case "born_time" | "store_time":
            return row[name.replace("time", "ms")]
        case "properties":
            return list(row.get(name, {}).items())
        case _:
            return row.get(name)
