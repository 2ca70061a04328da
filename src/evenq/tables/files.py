"""Parquet files of a table: the columns of the Spark source, by offset, with what a reader needs to check them.

The footer also has the mark of the last message (`evenq.mark`), by which an exporter notices that a broker lost the end
of its log and stored other messages at the same offsets.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from evenq.columns.arrow_schema import TYPES, OutputColumn, arrow_schema
from evenq.errors import Error, StoreError
from evenq.runtime.targets import failed
from evenq.tables.folder import TableTarget
from evenq.tables.layout import TableRange
from evenq.tables.typed.columns import ERROR

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from evenq.tables.typed.bodies import TypedBodies

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 12 << 20
"""Bounds of a row group, which is held in memory until it is written."""
MARK, LAST_MS, WRITER = b"evenq.mark", b"evenq.last_store_ms", b"evenq.version"
SCHEMA: Final = b"evenq.schema"
"""Number of the schema of the typed columns."""
NULLABLE: Final = frozenset({"tag", "messageGroup", "bornTimestamp"})
REPEATING: Final = ["topic", "brokerName", "tag", "messageGroup", "properties.key_value.key"]
"""Columns with few different values, stored once each."""
KEYS_PATH: Final = "keys.list.element"
SEARCHED: Final = [KEYS_PATH if name == "keys" else name for name in TYPES if name not in {"body", "properties"}]
"""Columns with statistics."""
COLUMNS: Final = tuple(OutputColumn(name, name in NULLABLE) for name in TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFooter:
    """The facts in a footer by which a file is checked."""

    rows: int
    first: int
    """Smallest offset in the statistics; -1 without rows or statistics."""
    last: int
    mark: str
    last_store_ms: int
    schema: int
    """Number of the schema of its typed columns; 0: it has none."""
    columns: pa.Schema


def bloom_filters(rows: int) -> dict[str, Any]:
    """Returns the arguments for a bloom filter on the keys of a file; empty with a pyarrow that cannot write one."""
    import pyarrow.parquet as pq

    if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter.__init__).parameters:
        return {}
    return {"bloom_filter_options": {KEYS_PATH: {"ndv": min(rows, GROUP_ROWS), "fpp": 0.01}}}


class TableWriter:
    """The writer of one file, by row groups of bounded size. Raises StoreFull and StoreError."""

    def __init__(
        self, file: IO[bytes], path: str, *, rows: int, bodies: TypedBodies | None = None, number: int = 0
    ) -> None:
        """`path`: for error texts. `rows`: that the file will have. `bodies`, `number`: of the typed columns."""
        import pyarrow.parquet as pq

        self._file, self._path = file, path
        self._bodies, self._number = bodies, number
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self.rows = self.misfits = 0
        """Rows so far, and those of them whose bodies do not fit the typed columns."""
        schema = arrow_schema(COLUMNS) if bodies is None else bodies.schema
        searched = [] if bodies is None else bodies.typed.searched()
        repeating = [] if bodies is None else bodies.typed.repeating()
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=REPEATING + repeating,
            write_statistics=SEARCHED + searched,
            write_page_index=True,
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(schema.get_field_index("queueOffset"))],
            **bloom_filters(rows),
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows, which must continue the last ones."""
        if self._bodies is None:
            self._add(batch)
            return
        for piece in self._bodies.batches(batch):
            self.misfits += piece.num_rows - piece.column(ERROR).null_count
            self._add(piece)

    def _add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def close(self, mark: str, last_store_ms: int) -> None:
        """Writes the footer."""
        from evenq.runtime.version import __version__

        self._write_group()
        values = {MARK: mark, LAST_MS: str(last_store_ms), WRITER: __version__}
        if self._number:
            values[SCHEMA] = str(self._number)
        try:
            self._writer.add_key_value_metadata({key.decode(): value for key, value in values.items()})
            self._writer.close()
        except OSError as error:
            raise failed(self._path, error) from error

    def give_up(self) -> None:
        """Ends a writer whose file is dropped; does nothing after `close`."""
        with suppress(OSError, ValueError):  # what it has not written yet may not fit on the disk
            self._writer.close()

    def _write_group(self) -> None:
        import pyarrow as pa

        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0
        try:
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        except OSError as error:
            raise failed(self._path, error) from error


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises StoreError for any failure: pyarrow and each package of fsspec have classes of their own. `path`: the
    whole path of a file, for the error text.
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise StoreError(
            f"{path} is damaged or cannot be read: {type(error).__name__}: {error}; `evenq table rebuild` writes "
            "damaged files again, as far as the log has their messages; restore others from a copy"
        ) from error


def read_footer(target: TableTarget, path: str) -> FileFooter:
    """Returns the footer of a file. Raises StoreError for one that is damaged or missing."""
    import pyarrow.parquet as pq

    with reading(target.path(path)):
        with target.open(path) as file:
            metadata = pq.read_metadata(file)
        known = metadata.metadata or {}
        column = metadata.schema.names.index("queueOffset") if "queueOffset" in metadata.schema.names else None
        numbers = range(metadata.num_row_groups) if column is not None else ()
        groups = [metadata.row_group(number).column(column).statistics for number in numbers]
        bounds = [group for group in groups if group is not None and group.has_min_max]
        return FileFooter(
            rows=metadata.num_rows,
            first=min((group.min for group in bounds), default=-1),
            last=max((group.max for group in bounds), default=-1),
            mark=known.get(MARK, b"").decode(),
            last_store_ms=int(known.get(LAST_MS, b"0")),
            schema=int(known.get(SCHEMA, b"0")),
            columns=metadata.schema.to_arrow_schema(),
        )


def open_parquet(file: IO[bytes]) -> pq.ParquetFile:
    """Opens a Parquet file whose pages are compared with their checksums while rows are read."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, page_checksum_verification=True)


def read_batches(target: TableTarget, path: str) -> Iterator[pa.RecordBatch]:
    """Yields all rows of a file. Raises StoreError for one that is damaged."""
    with reading(target.path(path)), target.open(path) as file:
        yield from open_parquet(file).iter_batches(batch_size=8_192)


def footer_findings(footer: FileFooter, part: TableRange) -> list[str]:
    """Returns what in a footer contradicts the name of its file."""
    if footer.rows != part.count:
        return [f"has {footer.rows:,} rows, its name says {part.count:,}"]
    if footer.rows and (footer.first, footer.last) != (part.start, part.end - 1):
        return [f"has offsets {footer.first} to {footer.last}, its name says {part.start} to {part.end - 1}"]
    return []
