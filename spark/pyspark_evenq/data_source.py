"""The data source that Spark finds under the name `evenq`.

Spark builds it on the driver for each `load()`, reads its schema, and pickles it to the processes that build the
readers. Nothing here may connect, start a thread or load grpc: the same code runs in planners that only pickle it.
A query waits for each such process, so it imports only the modules that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _CameWith42  # noqa: F401  an older Spark says so
from pyspark.sql.types import StructType

from evenq.columns.arrow_schema import ddl
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.rows.requested import columns, types_of

if TYPE_CHECKING:
    from pyspark_evenq.options.sink import WriteOptions
    from pyspark_evenq.sink.writer import BatchWriter, StreamWriter
    from pyspark_evenq.source.reader import BatchReader
    from pyspark_evenq.source.stream import StreamReader


class DefaultSource(DataSource):
    """The format `evenq`, for reading and writing, batches and streams. Options: docs/guides/spark.md."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "evenq"

    def schema(self) -> str:
        """Returns all columns; `.schema("body binary, tag string")` reads any subset of them in any order."""
        return ddl(types_of(ReadOptions.parse(self.options, streaming=False)))

    def reader(self, schema: StructType) -> BatchReader:
        from pyspark_evenq.source.pushdown import PushdownReader
        from pyspark_evenq.source.reader import BatchReader

        options = ReadOptions.parse(self.options, streaming=False)
        # Spark pushes filters to readers that have `pushFilters`, and rejects such a reader where its setting is off.
        made = PushdownReader if options.filter_pushdown else BatchReader
        return made(options, columns(schema, types_of(options)))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  Spark's name
        from pyspark_evenq.source.stream import StreamReader

        options = ReadOptions.parse(self.options, streaming=True)
        return StreamReader(options, columns(schema, types_of(options)))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from pyspark_evenq.sink.schema import no_overwrite
        from pyspark_evenq.sink.writer import BatchWriter

        no_overwrite(overwrite, streaming=False)
        return BatchWriter(self._writing(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  the same
        from pyspark_evenq.sink.schema import no_overwrite
        from pyspark_evenq.sink.writer import StreamWriter

        no_overwrite(overwrite, streaming=True)
        return StreamWriter(self._writing(schema))

    def _writing(self, schema: StructType) -> WriteOptions:
        from pyspark_evenq.options.sink import WriteOptions
        from pyspark_evenq.sink.schema import check_columns

        options = WriteOptions.parse(self.options)
        check_columns(schema, options)
        return options
