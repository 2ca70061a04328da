"""Batches of messages with typed columns: the plain columns as they are, then the values of the bodies.

Problem: bodies come from anyone. One may not fit, may be built to take memory or time, and must not stop the export,
nor change what is written for its neighbours: a repeat and a second exporter cut blocks elsewhere and write the same.

Idea: each body is parsed alone, with bounds that follow from the body alone, and appended to the builders of the
columns. pyarrow's own reader of JSON is slower than that (2.5 x for a body of 800 bytes), and its results depend on
neighbours: it reads a text of lines, in which one wrong body ends the block, and two values on a line are two rows.

Invariants:
- A row has either all of its values, or null in each typed column and a reason in `bodyError`. The body stays.
- Memory beside the batch is that of one piece: at most PIECE_BYTES of bodies, or one body, and 2 x CELLS_MAX values.

Example: for the columns total float64 and customer string, the body {"total": "7"} gives (null, null, "type:total").
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from evenq.tables.typed.builders import CELLS_MAX, Budget, Builder
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.values import Misfit

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES: Final = 1 << 20
PIECE_CELLS: Final = CELLS_MAX // 2


class Parser(Protocol):
    """Interface of `JsonBodies` and `ProtobufBodies`."""

    def builders(self, schema: TypedSchema, budget: Budget) -> list[Builder]:
        """Returns a builder for each column."""
        ...

    def values(self, body: memoryview) -> list[Any]:
        """Returns the value of each column. Raises Misfit."""
        ...


def parser_of(schema: TypedSchema, where: str) -> Parser:
    if schema.message:
        from evenq.tables.typed.protobuf_bodies import ProtobufBodies

        return ProtobufBodies(schema, where)
    from evenq.tables.typed.json_bodies import JsonBodies

    return JsonBodies(schema)


class TypedBodies:
    """The converter of one schema."""

    def __init__(self, schema: TypedSchema, plain: pa.Schema, where: str = "the schema") -> None:
        """`plain`: schema of the batches, which have a column `body`. `where`: place of `schema`, for error texts."""
        import pyarrow as pa

        self.typed, self._parser, self._budget = schema, parser_of(schema, where), Budget()
        self._builders = self._parser.builders(schema, self._budget)
        self.schema = pa.schema([*plain, *schema.fields()])
        """Of the batches: plain and typed columns."""

    def batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a batch with typed columns, in pieces."""
        import pyarrow as pa

        start, count, leaves = 0, batch.num_rows, self.typed.leaves
        bodies = _bodies(batch.column("body"))
        while start < count:
            errors: list[str | None] = []
            size = cells = 0
            while start + len(errors) < count and size < PIECE_BYTES and cells < PIECE_CELLS:
                body = next(bodies)
                size += len(body)
                errors.append(self._append(body, len(errors)))
                cells += CELLS_MAX - self._budget.left + leaves
            arrays = [builder.array() for builder in self._builders]
            plain = batch.slice(start, len(errors)).columns
            yield pa.RecordBatch.from_arrays([*plain, *arrays, pa.array(errors, pa.string())], schema=self.schema)
            start += len(errors)

    def _append(self, body: memoryview, row: int) -> str | None:
        """Appends a body as a row; returns the reason if it does not fit."""
        self._budget.left = CELLS_MAX
        try:
            for builder, value in zip(self._builders, self._parser.values(body), strict=True):
                builder.append(value)
        except Misfit as misfit:
            reason = misfit.reason
        except (ArithmeticError, ValueError, TypeError):  # no body ends the export, also if a converter has a bug
            reason = "type"
        else:
            return None
        for builder in self._builders:
            builder.cut(row)
            builder.append(None)
        return reason


def _bodies(column: pa.BinaryArray) -> Iterator[memoryview]:
    """Yields the bodies of a column, without copies."""
    _, ends, data = column.buffers()
    places = np.frombuffer(ends, np.int32, len(column) + 1, column.offset * 4).tolist()
    view = memoryview(data if data is not None else b"")
    for start, end in pairwise(places):
        yield view[start:end]
