"""The rows of `spark.py`, and the ceiling: a source that yields the same prebuilt Arrow batch repeatedly.

A separate module, because Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

BODY_BYTES = 1024
FILLING = "abcdefghijklmnopqrstuvwxyz012345" * (BODY_BYTES // 32)
BATCH_ROWS = 800
COLUMNS = (
    "topic string, brokerName string, queueId int, queueOffset bigint, messageId string, tag string, "
    "keys array<string>, messageGroup string, body binary, properties map<string,string>, bornTimestamp timestamp, "
    "storeTimestamp timestamp"
)


def body(number: int) -> bytes:
    """Returns the body of one row: its number, padded to 1 KiB."""
    return (f"{number:08d}" + FILLING)[:BODY_BYTES].encode()


class Ceiling(DataSource):
    """The ceiling of Python sources in Spark: no broker, no network, nothing to parse."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> CeilingReader:  # noqa: ARG002  # it has no other columns
        return CeilingReader(self.options)


class CeilingReader(DataSourceReader):
    """`rows` rows in `partitions` partitions."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows, self._partitions = int(options["rows"]), int(options["partitions"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002  # all are alike
        from pyspark_evenq.rows.collector import freeze_libraries

        batch, left = _batch(), self._rows // self._partitions
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS
        freeze_libraries()


def _batch() -> Any:
    import pyarrow as pa

    from evenq.columns.arrow_schema import TYPES, OutputColumn, arrow_schema

    numbers = range(BATCH_ROWS)
    values: dict[str, list[Any]] = {
        "topic": ["flights"] * BATCH_ROWS,
        "brokerName": ["broker-a"] * BATCH_ROWS,
        "queueId": [0] * BATCH_ROWS,
        "queueOffset": list(numbers),
        "messageId": [f"01{number:030X}" for number in numbers],
        "tag": [f"t{number % 12}" for number in numbers],
        "keys": [[f"key-{number}"] for number in numbers],
        "messageGroup": [None] * BATCH_ROWS,
        "body": [body(number) for number in numbers],
        "properties": [[("origin", "EWR"), ("carrier", f"C{number % 16}")] for number in numbers],
        "bornTimestamp": [1_700_000_000_000_000] * BATCH_ROWS,
        "storeTimestamp": [1_700_000_000_000_000] * BATCH_ROWS,
    }
    schema = arrow_schema(tuple(OutputColumn(name, nullable=True) for name in TYPES))
    return pa.RecordBatch.from_arrays([pa.array(values[f.name], type=f.type) for f in schema], schema=schema)
