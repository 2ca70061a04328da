"""The columns of the sink and their types, and the check of a DataFrame's columns.

Called on the driver when a query is planned, so that a wrong frame fails before any task runs. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evenq.errors import SettingsError
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import SchemaStyle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")
_EVENQ: Mapping[str, tuple[str, ...]] = {
    "body": _TEXT,
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("array<string>",),
    "properties": ("map<string,string>",),
    "messageGroup": ("string",),
    "deliveryTimestamp": ("timestamp",),
    "priority": ("int",),
    "brokerName": ("string",),
    "queueId": ("int",),
}
_KAFKA: Mapping[str, tuple[str, ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "brokerName": ("string",),
}


def check_columns(schema: StructType, options: WriteOptions) -> tuple[str, ...]:
    """Returns the names of the columns. Raises SettingsError, with advice, for a frame that cannot be written."""
    style = options.style
    known, body, queue = (_KAFKA, "value", "partition") if style is SchemaStyle.KAFKA else (_EVENQ, "body", "queueId")
    names = [field.name for field in schema.fields]
    listed = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in known.items())
    extra = [name for name in names if name not in known]
    if extra:
        hint = ""
        if style is SchemaStyle.EVENQ and "value" in extra:
            hint = "; option schemaStyle=kafka takes key, value, headers and partition"
        raise SettingsError(
            f"the evenq sink does not write {_quoted(extra)}; drop {'them' if len(extra) > 1 else 'it'}, or rename "
            f"{'them' if len(extra) > 1 else 'it'} to one of its columns: {listed}{hint}"
        )
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind not in known[field.name]:
            expected = " or ".join(known[field.name])
            raise SettingsError(f"column {field.name} must be {expected}, not {kind}; cast it before writing")
    if body not in names:
        raise SettingsError(f"the column {body} is missing; the columns of the evenq sink are: {listed}")
    if not options.topic and "topic" not in names:
        raise SettingsError("no topic: give the option topic, or a column topic")
    if options.topic and "topic" in names and style is not SchemaStyle.KAFKA:  # Kafka's sink lets the option win
        raise SettingsError(f"option topic is {options.topic!r} and there is a column topic; leave out one of the two")
    if queue in names and "brokerName" not in names:
        raise SettingsError(f"column {queue} needs the column brokerName: a queue is one of a broker; or drop {queue}")
    return tuple(names)


def no_overwrite(overwrite: bool, *, streaming: bool) -> None:
    """Raises SettingsError if the query would remove earlier output."""
    if not overwrite:
        return
    if streaming:
        raise SettingsError(
            "output mode complete rewrites its result, and messages cannot be taken back: use outputMode('append') or "
            "outputMode('update')"
        )
    raise SettingsError(
        "mode overwrite is not possible, messages cannot be taken back: use mode('append'), or empty the topic first "
        "with `evenq topic delete` and `evenq topic create`"
    )


def _quoted(names: list[str]) -> str:
    return ("columns " if len(names) > 1 else "column ") + ", ".join(repr(name) for name in names)
