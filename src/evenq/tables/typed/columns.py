"""Typed columns of a table: their names, types and places in a body, as JSON and as Arrow fields.

A `TypedSchema` is made from a JSON Schema (`json_schema`) or from protobuf descriptors (`descriptors`), and stored with
the table (`stored`). Names follow one rule: a name that evenq or a folder of the table has gets the prefix `body_`, so
no column hides another one in any engine. Engines compare names without case.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from evenq.columns.arrow_schema import SYSTEM_TYPES, TYPES
from evenq.errors import SettingsError

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
ERROR: Final = "bodyError"
"""Column with the reason why a body does not fit; null: it fits."""
RESERVED: Final = frozenset(name.lower() for name in (*TYPES, *SYSTEM_TYPES, ERROR, "uid", "broker", "queue"))
PREFIX: Final = "body_"
LEAVES_MAX: Final = 500
DEPTH_MAX: Final = 16
NAME_MAX: Final = 255
SCALARS: Final = frozenset({"string", "int32", "int64", "float32", "float64", "bool", "timestamp", "date", "binary"})
DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s?(\d{1,2})\)")
DIGITS_MAX: Final = 38
WITHOUT_STATISTICS: Final = frozenset({"binary"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedColumn:
    """A column, a field of a struct, the element of a list, or key and value of a map."""

    name: str
    type: str
    """One of SCALARS, decimal(p,s), list, struct or map."""
    path: tuple[str, ...]
    """Names of the fields in the body, from the outside in; empty: the element of a list, key or value of a map."""
    reads: str = ""
    """How the value is written in the body, where the type allows several: epoch-ms, enum, ..."""
    parts: tuple[TypedColumn, ...] = ()

    @property
    def leaves(self) -> int:
        return sum(part.leaves for part in self.parts) if self.parts else 1

    @property
    def depth(self) -> int:
        return 1 + max((part.depth for part in self.parts), default=0)

    @property
    def text(self) -> str:
        """The type for people: list<struct<sku: string, price: float64>>."""
        match self.type:
            case "struct":
                return f"struct<{', '.join(f'{part.name}: {part.text}' for part in self.parts)}>"
            case "list" | "map":
                return f"{self.type}<{', '.join(part.text for part in self.parts)}>"
        return self.type

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        if found := DECIMAL.fullmatch(self.type):
            return pa.decimal128(int(found[1]), int(found[2]))
        match self.type:
            case "struct":
                return pa.struct([pa.field(part.name, part.arrow()) for part in self.parts])
            case "list":
                return pa.list_(pa.field("element", self.parts[0].arrow()))
            case "map":
                return pa.map_(self.parts[0].arrow(), pa.field("value", self.parts[1].arrow()))
            case "bool":
                return pa.bool_()
            case "timestamp":
                return pa.timestamp("us", tz="UTC")
            case "date":
                return pa.date32()
        made: pa.DataType = getattr(pa, self.type)()
        return made

    def leaf_paths(self) -> Iterator[tuple[str, str]]:
        """Yields the path of each leaf in a Parquet file, and its type."""
        between = {"list": (".list.element",), "map": (".key_value.key", ".key_value.value")}.get(self.type, ())
        if not self.parts:
            yield self.name, self.type
        for number, part in enumerate(self.parts):
            for path, kind in part.leaf_paths():
                inner = path.removeprefix(part.name)
                yield f"{self.name}{between[number] if between else '.' + part.name}{inner}", kind

    def meaning(self) -> tuple[Any, ...]:
        """Returns what makes two columns the same; the order of fields does not."""
        return (self.name, self.type, self.reads, self.path, frozenset(part.meaning() for part in self.parts))

    def as_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"name": self.name, "type": self.type, "path": list(self.path)}
        if self.reads:
            values["reads"] = self.reads
        if self.parts:
            values["parts"] = [part.as_json() for part in self.parts]
        return values

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError and ValueError for anything that `as_json` does not write."""
        kind = str(values["type"])
        if kind not in SCALARS | {"list", "struct", "map"} and not DECIMAL.fullmatch(kind):
            raise ValueError(f"the type {kind}")
        return cls(
            name=str(values["name"]),
            type=kind,
            path=tuple(map(str, values["path"])),
            reads=str(values.get("reads", "")),
            parts=tuple(cls.of_json(part) for part in values.get("parts", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSchema:
    """All typed columns of a table, and what reads them from a body."""

    columns: tuple[TypedColumn, ...]
    message: str = ""
    """Full name of the protobuf message; empty: bodies are JSON."""
    descriptors: bytes = b""
    """FileDescriptorSet of the message with its imports."""

    @property
    def leaves(self) -> int:
        return sum(column.leaves for column in self.columns)

    def fields(self) -> list[pa.Field]:
        """Returns the Arrow fields: the columns, and the reason for nulls."""
        import pyarrow as pa

        return [pa.field(column.name, column.arrow()) for column in self.columns] + [pa.field(ERROR, pa.string())]

    def searched(self) -> list[str]:
        """Returns the paths of leaves in a Parquet file that get statistics."""
        leaves = [leaf for column in self.columns for leaf in column.leaf_paths()]
        return [path for path, kind in leaves if kind not in WITHOUT_STATISTICS] + [ERROR]

    def repeating(self) -> list[str]:
        """Returns the paths of leaves that may have few different values."""
        leaves = [leaf for column in self.columns for leaf in column.leaf_paths()]
        return [path for path, kind in leaves if kind in {"string", "int32", "int64", "date"}] + [ERROR]

    def same_as(self, other: TypedSchema) -> bool:
        """Returns whether both give the same columns, in any order; descriptors may differ in what is not read."""
        mine, others = ({column.meaning() for column in one.columns} for one in (self, other))
        return mine == others and self.message == other.message

    def encode(self) -> bytes:
        values: dict[str, Any] = {"version": VERSION}
        if self.message:
            values |= {"message": self.message, "descriptors": base64.b64encode(self.descriptors).decode()}
        values["columns"] = [column.as_json() for column in self.columns]
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        """Raises SettingsError for a file that is damaged or of a newer version."""
        try:
            values = json.loads(data)
            version = values["version"]
            if version == VERSION:
                return cls(
                    columns=tuple(map(TypedColumn.of_json, values["columns"])),
                    message=str(values.get("message", "")),
                    descriptors=base64.b64decode(values.get("descriptors", ""), validate=True),
                )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SettingsError(
                f"{where} does not hold the typed columns of a table ({error}); restore it, or export to another folder"
            ) from error
        raise SettingsError(f"{where} is of version {version}, this evenq reads version {VERSION}: use a newer evenq")


def column_name(name: str) -> str:
    """Returns the name of the column for a field of the body."""
    return f"{PREFIX}{name}" if name.lower() in RESERVED else name


def must_be_columns(columns: Iterable[TypedColumn], where: str, rename: str) -> tuple[TypedColumn, ...]:
    """Returns the columns. Raises SettingsError if a table cannot have them. `rename`: how to change a name."""
    made = tuple(columns)
    if not made:
        raise SettingsError(f"{where} has no field that can be a column")
    leaves, depth = sum(column.leaves for column in made), max(column.depth for column in made)
    if leaves > LEAVES_MAX:
        raise SettingsError(f"{where} has {leaves:,} columns, structs and lists taken apart; the limit is {LEAVES_MAX}")
    if depth > DEPTH_MAX:
        raise SettingsError(f"{where} has columns of {depth} levels; the limit is {DEPTH_MAX}")
    _must_have_names(made, where, rename)
    return made


def _must_have_names(columns: tuple[TypedColumn, ...], where: str, rename: str) -> None:
    known: dict[str, TypedColumn] = {}
    for column in columns:
        name = column.name
        if not 0 < len(name) <= NAME_MAX or "." in name or not name.isprintable():
            raise SettingsError(
                f"{where}: {name[:NAME_MAX]!r} cannot be the name of a column; names have 1 to {NAME_MAX} printable "
                f"characters without a period: {rename}"
            )
        other = known.setdefault(name.lower(), column)
        if other is not column:
            raise SettingsError(
                f"{where}: {'.'.join(other.path)} and {'.'.join(column.path)} would both be the column {name}; engines "
                f"compare names without case: {rename}"
            )
        if column.type == "struct":
            _must_have_names(column.parts, where, rename)
        for part in column.parts:
            if column.type != "struct" and part.type == "struct":
                _must_have_names(part.parts, where, rename)
