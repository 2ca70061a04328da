"""The Parquet format of a dump, for pandas, Polars, DuckDB or Spark. Needs pyarrow (extra `tables`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from evenq.errors import Unsupported
from evenq.runtime.private_files import FILE_MODE

ROWS: Final = 10_000
BYTES: Final = 64 << 20


def write(path: Path, rows: Iterable[dict[str, Any]]) -> int:
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
    for row in islice(source, ROWS):
        group.append(row)
        size += len(row.get("body") or b"")
        if size >= BYTES:
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
