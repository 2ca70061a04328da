"""The check of rows before any delivery, the same for `transactional`, `idempotent` and `atLeastOnce`.

Called by tasks for each Arrow batch. Checks whole columns, and single rows only in a column with an invalid value.
Obvious mistakes are errors with the row's number, because a changed or omitted row would be lost silently:

| column                | null           | empty | an error                                            |
|-----------------------|----------------|-------|-----------------------------------------------------|
| body (value)          | an error       | error |                                                     |
| tag, messageGroup     | none           | none  |                                                     |
| keys                  | none; one: left out | left out |                                             |
| key                   | none           | none  | not UTF-8                                           |
| properties            | none; a value: empty | none |                                                |
| headers               | none; a value: empty | none | no name, the same name twice, a value not UTF-8 |
| deliveryTimestamp     | immediately    |       | 1970 or before                                      |
| priority              | none           |       | below 0                                             |
| queueId (partition)   | the broker chooses |   | below 0, without brokerName; `publishing`: 0 if delayed |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from pyspark_evenq.sink.blocks import COLUMN_NAMES, Columns

if TYPE_CHECKING:
    import pyarrow as pa


def checked(batch: pa.RecordBatch, *, first_row: int) -> pa.RecordBatch:
    """Returns the rows without empty keys. `first_row`: its number in the task, for errors. Raises SettingsError."""
    names = {COLUMN_NAMES[name]: name for name in batch.schema.names}
    check = _Check(names, first_row)
    columns = Columns.of(batch)
    check.body(columns.body)
    for of, column in (("priority", columns.priority), ("queue_id", columns.queue_id)):
        check.at_least(of, column, 0, "0 or more, or null for none")
    if columns.delivery_timestamp is not None:
        check.at_least("delivery_timestamp", columns.delivery_timestamp.cast("int64"), 1, "a time after 1970, or null")
    check.queues(columns)
    if columns.headers is not None:
        check.headers(columns.headers)
    of, before = ("keys", columns.keys) if columns.keys is not None else ("key", columns.key)
    if before is None:
        return batch
    after = _without_nothing(before) if of == "keys" else check.key(before)
    return batch if after is before else batch.set_column(batch.schema.get_field_index(names[of]), names[of], after)


class _Check:
    def __init__(self, names: dict[str, str], first_row: int) -> None:
        self._names, self._first_row = names, first_row

    def body(self, column: Any) -> None:
        import pyarrow.compute as pc

        if column.null_count or (pc.min(pc.binary_length(column)).as_py() or 0) == 0:
            self._refuse("body", column, lambda value: not value, "give it a text, or leave such rows out")

    def at_least(self, of: str, column: Any, low: int, right: str) -> None:
        import pyarrow.compute as pc

        if column is None:
            return
        least = pc.min(column).as_py()
        if least is not None and least < low:
            self._refuse(of, column, lambda value: value is not None and value < low, f"give {right}")

    def queues(self, columns: Columns) -> None:
        if columns.queue_id is None or columns.broker_name is None:
            return
        for at, (queue_id, broker) in enumerate(
            zip(columns.queue_id.to_pylist(), columns.broker_name.to_pylist(), strict=True)
        ):
            if queue_id is not None and not broker:
                raise self._error(at, "queue_id", queue_id, "name its broker in brokerName: a queue is one of a broker")

    def headers(self, column: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        pairs = column.flatten()
        if not len(pairs):
            return
        names, values = pairs.field(0), pairs.field(1)
        rows, codes = pc.list_parent_indices(column), names.dictionary_encode()
        places = pc.add(pc.multiply(rows.cast(pa.int64()), len(codes.dictionary) + 1), codes.indices.cast(pa.int64()))
        odd = pairs.null_count or names.null_count or pc.count_distinct(places).as_py() < len(places)
        if odd or not _is_text(values) or pc.min(pc.binary_length(names)).as_py() == 0:
            self._refuse(
                "headers", column, _is_odd, "each header needs a name, once in its row, and a value that is UTF-8"
            )

    def key(self, column: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not _is_text(column):
            self._refuse("key", column, lambda value: _text(value) is None, "its bytes must be UTF-8: a key is a text")
        if pc.min(pc.binary_length(column)).as_py() != 0:
            return column
        return pc.if_else(pc.equal(pc.binary_length(column), 0), pa.scalar(None, column.type), column)

    def _refuse(self, of: str, column: Any, is_odd: Callable[[Any], bool], right: str) -> None:
        for at, value in enumerate(column.to_pylist()):
            if is_odd(value):
                raise self._error(at, of, value, right)

    def _error(self, at: int, of: str, value: object, right: str) -> SettingsError:
        return SettingsError(
            f"row {self._first_row + at} of the task: {self._names[of]} is {str(value)[:200]}; {right}"
        )


def _without_nothing(lists: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = lists.flatten()
    if not values.null_count and (pc.min(pc.binary_length(values)).as_py() or 0) > 0:
        return lists
    rows = [None if row is None else [one for one in row if one] for row in lists.to_pylist()]
    return pa.array(rows, lists.type)


def _is_odd(headers: list[dict[str, Any] | None] | None) -> bool:
    names = [header["key"] if header else None for header in headers or ()]
    values = [header["value"] for header in headers or () if header]
    return not all(names) or len(set(names)) < len(names) or any(_text(value) is None for value in values)


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _text(value: str | bytes | None) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else value or ""
    except UnicodeDecodeError:
        return None
