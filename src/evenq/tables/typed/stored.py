"""Schemas of a table's typed columns, kept with the table: `TOPIC/_schema/000001.json`, 000002, ...

A file is written once. The newest one counts, for every exporter and query. A later one has all columns of the one
before: columns may be added, and fields of structs, but nothing is removed or gets another type, because engines unite
the files of a table by the names of columns.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenq.columns.arrow_schema import arrow_schema
from evenq.errors import SettingsError
from evenq.tables.files import COLUMNS
from evenq.tables.folder import TableTarget, place_bytes
from evenq.tables.layout import TableChanged
from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.columns import TypedColumn, TypedSchema
from evenq.tables.typed.descriptors import protobuf_schema
from evenq.tables.typed.json_schema import json_schema

FOLDER: Final = "_schema"
ATTEMPTS: Final = 8
FILE_BYTES_MAX: Final = 4 << 20
CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""In each descriptor set, also in one that begins like JSON, with a line break and a length of 123; never in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    number: int
    """From 1 on."""
    path: str
    schema: TypedSchema

    def bodies(self) -> TypedBodies:
        return TypedBodies(self.schema, arrow_schema(COLUMNS), self.path)


def read_schema(path: Path, message: str) -> TypedSchema:
    """Returns the columns of a JSON Schema, or of a message in a descriptor set. Raises SettingsError."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"--table-schema {path} cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"--table-schema {path} is larger than {FILE_BYTES_MAX >> 20} MiB")
    if not data.removeprefix(BOM_UTF8).lstrip().startswith(b"{") or CONTROLS.search(data):
        return protobuf_schema(data, message, str(path))
    if message:
        raise SettingsError(f"{path} is a JSON Schema, which has no messages: leave --table-message out")
    return json_schema(data.decode("utf-8-sig", "replace"), str(path))


def newest_schema(target: TableTarget, topic: str) -> StoredSchema | None:
    """Returns the schema that counts; None for a table without typed columns. Raises SettingsError, StoreError."""
    numbers = _numbers(target, topic)
    return _stored(target, topic, numbers[-1]) if numbers else None


def all_schemas(target: TableTarget, topic: str) -> dict[int, StoredSchema]:
    """Returns the schemas by number."""
    return {number: _stored(target, topic, number) for number in _numbers(target, topic)}


def keep_schema(target: TableTarget, topic: str, given: TypedSchema) -> StoredSchema:
    """Returns the stored schema with these columns, which is written if it is new or has more columns. Raises
    TableChanged if the table has other ones.
    """
    for _ in range(ATTEMPTS):
        known = newest_schema(target, topic)
        if known is not None:
            if known.schema.same_as(given):
                return known
            _must_extend(known.schema, given, f"the table of {topic} in {target.url}")
        number = known.number + 1 if known is not None else 1
        place_bytes(target, _path(topic, number), given.encode(), lambda _: None)  # False: another exporter was faster
    raise TableChanged(f"other exporters change the typed columns of {topic} in {target.url} meanwhile; run it again")


def _path(topic: str, number: int) -> str:
    return f"{topic}/{FOLDER}/{number:06d}.json"


def _numbers(target: TableTarget, topic: str) -> list[int]:
    names = [path.rpartition("/")[2] for path in target.files(f"{topic}/{FOLDER}")]
    return sorted(int(name[:6]) for name in names if len(name) == 11 and name[:6].isdecimal() and name[6:] == ".json")


def _stored(target: TableTarget, topic: str, number: int) -> StoredSchema:
    path = _path(topic, number)
    schema = TypedSchema.decode(target.read(path), target.path(path))
    return StoredSchema(number=number, path=target.path(path), schema=schema)


def _must_extend(known: TypedSchema, given: TypedSchema, table: str) -> None:
    if known.message != given.message:
        kinds = [f"the message {one.message}" if one.message else "JSON bodies" for one in (known, given)]
        raise TableChanged(f"{table} has typed columns of {kinds[0]}, not of {kinds[1]}: export to another folder")
    _must_have(known.columns, given.columns, table, "")


def _must_have(known: Iterable[TypedColumn], given: Iterable[TypedColumn], table: str, outer: str) -> None:
    """Raises TableChanged if a column is missing or has another meaning."""
    there = {column.name: column for column in given}
    for column in known:
        name, new = outer + column.name, there.get(column.name)
        if new is None:
            raise TableChanged(
                f"{table} has the typed column {name}, which --table-schema lacks: add it, or leave --table-schema out"
            )
        if (column.type, column.reads, column.path) != (new.type, new.reads, new.path):
            raise TableChanged(
                f"{table} has the typed column {name} as {_meaning(column)}, not as {_meaning(new)}, and a column "
                'cannot change: give the new one another name ("x-column": "NAME" in a JSON Schema), or export to '
                "another folder"
            )
        _must_have(column.parts, new.parts, table, f"{name}.")


def _meaning(column: TypedColumn) -> str:
    reads = f" ({column.reads})" if column.reads else ""
    return f"{column.text}{reads}{' from ' + '.'.join(column.path) if column.path else ''}"
