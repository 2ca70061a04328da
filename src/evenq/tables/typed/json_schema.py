"""Typed columns from a JSON Schema: the keywords that name types; those that restrict values are not checked.

Read are type, properties, items, additionalProperties, format, contentEncoding, `$ref` within the file, and anyOf or
oneOf with null. Two things are not in the standard, and validators ignore them: the formats epoch-s, epoch-ms,
epoch-us, epoch-ns and decimal(p,s), and the keyword `x-column`. It names the column, and takes a field out of its
object.

    {"type": "object", "properties": {
        "total": {"type": "number", "format": "decimal(12,2)"},
        "customer": {"type": "object", "properties": {"id": {"type": "string", "x-column": "customer_id"}}}}}

Columns: total decimal(12,2) and customer_id string, from `customer.id`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from evenq.errors import SettingsError
from evenq.tables.typed.columns import DECIMAL, DEPTH_MAX, DIGITS_MAX, TypedColumn, TypedSchema, column_name
from evenq.tables.typed.columns import must_be_columns as checked

EPOCH: Final = frozenset({"epoch-s", "epoch-ms", "epoch-us", "epoch-ns"})
TIMES: Final = {"date-time": "timestamp", "date": "date"}
INTEGERS: Final = {"int8": "int32", "int16": "int32", "int32": "int32"}
VALUES: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
KINDS: Final = ("string", "integer", "number", "boolean", "array", "object")
RENAME: Final = 'add "x-column": "NAME" to the property'
Node = dict[str, Any]


def json_schema(text: str, where: str) -> TypedSchema:
    """Returns the columns of a JSON Schema. Raises SettingsError, with the property that cannot be a column."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where} is not JSON: {error}") from error
    if not isinstance(root, dict):
        raise SettingsError(f"{where} is not a JSON Schema: it holds {type(root).__name__}, not an object")
    return TypedSchema(columns=checked(_Reader(root, where).columns(), where, RENAME))


class _Reader:
    def __init__(self, root: Node, where: str) -> None:
        self._root, self._where = root, where
        self._hoisted: list[TypedColumn] = []

    def columns(self) -> list[TypedColumn]:
        root = self._resolved(self._root, ())
        if root.get("type", "object") != "object" or not isinstance(root.get("properties"), dict):
            raise SettingsError(
                f'{self._where} describes no object: columns are made from {{"type": "object", "properties": ...}}'
            )
        made: list[TypedColumn] = []
        for key, node in root["properties"].items():
            found = self._column(node, (key,), nested=False)
            if found is not None:
                made.append(found)
        return made + self._hoisted

    def _column(self, node: Any, trail: tuple[str, ...], *, nested: bool) -> TypedColumn | None:
        """Returns the column of a property; None for an object all of whose fields became columns of their own.
        `nested`: within a list or map, where x-column changes the name only.
        """
        self._must_not_be_deep(trail)
        node = self._resolved(node, trail)
        name = node.get("x-column", trail[-1])
        if not isinstance(name, str):
            raise self._wrong(trail, f"has the x-column {name!r}, which is not a text")
        hoists = "x-column" in node and len(trail) > 1 and not nested
        top = hoists or len(trail) == 1
        kind, reads, parts = self._type(node, trail, nested=nested)
        if kind == "struct" and not parts:
            return None
        path = trail if hoists else trail[-1:]
        made = TypedColumn(name=column_name(name) if top else name, type=kind, path=path, reads=reads, parts=parts)
        if hoists:
            self._hoisted.append(made)
            return None
        return made

    def _type(self, node: Node, trail: tuple[str, ...], *, nested: bool) -> tuple[str, str, tuple[TypedColumn, ...]]:
        style = node.get("format", "")
        if not isinstance(style, str):
            raise self._wrong(trail, f"has the format {style!r}, which is not a text")
        kind = self._kind(node, trail)
        if kind in {"string", "integer", "number"} and (found := DECIMAL.fullmatch(style)):
            digits, scale = int(found[1]), int(found[2])
            if not 1 <= digits <= DIGITS_MAX or scale > digits:
                raise self._wrong(trail, f"has the format {style}; decimal(p,s) has p from 1 to 38 and s from 0 to p")
            return f"decimal({digits},{scale})", "", ()
        match kind:
            case "string" if "base64" in {node.get("contentEncoding"), {"byte": "base64"}.get(style)}:
                return "binary", "base64", ()
            case "string" if style in TIMES:
                return TIMES[style], "iso", ()
            case "string":
                return "string", "", ()
            case "integer" | "number" if style in EPOCH:
                return "timestamp", style, ()
            case "integer":
                return INTEGERS.get(style, "int64"), "", ()
            case "number":
                return "float32" if style == "float" else "float64", "", ()
            case "boolean":
                return "bool", "", ()
            case "array":
                return "list", "", (self._part(node.get("items"), "element", trail),)
        return self._object(node, trail, nested=nested)

    def _object(self, node: Node, trail: tuple[str, ...], *, nested: bool) -> tuple[str, str, tuple[TypedColumn, ...]]:
        properties, others = node.get("properties"), node.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            found = [self._column(one, (*trail, key), nested=nested) for key, one in properties.items()]
            return "struct", "", tuple(part for part in found if part is not None)
        if isinstance(others, dict) and others:
            key = TypedColumn(name="key", type="string", path=())
            return "map", "", (key, self._part(others, "value", trail))
        raise self._wrong(trail, "is an object without properties")

    def _part(self, node: Any, name: str, trail: tuple[str, ...]) -> TypedColumn:
        """Returns the element of a list or the value of a map."""
        trail = (*trail, "[]")
        self._must_not_be_deep(trail)
        kind, reads, parts = self._type(self._resolved(node, trail), trail, nested=True)
        return TypedColumn(name=name, type=kind, path=(), reads=reads, parts=parts)

    def _kind(self, node: Node, trail: tuple[str, ...]) -> str:
        kinds = node.get("type")
        if isinstance(kinds, list):
            kinds = [kind for kind in kinds if kind != "null"]
            kinds = kinds[0] if len(kinds) == 1 else kinds
        if kinds is None:
            kinds = "object" if "properties" in node else "array" if "items" in node else self._of_values(node)
        if not isinstance(kinds, str) or kinds not in KINDS:
            found = f"has the type {json.dumps(kinds)[:100]}" if kinds is not None else "has no type"
            raise self._wrong(trail, f"{found}; a column is one of {', '.join(KINDS)}")
        return kinds

    @staticmethod
    def _of_values(node: Node) -> str | None:
        """Returns the type that all values of `enum` or `const` have."""
        values = node.get("enum", [node["const"]] if "const" in node else [])
        kinds = {type(value) for value in values if value is not None} if isinstance(values, list) else set()
        return VALUES.get(kinds.pop()) if len(kinds) == 1 else None

    def _resolved(self, node: Any, trail: tuple[str, ...]) -> Node:
        """Returns a schema without references and without alternatives to null."""
        for _ in range(32):
            if not isinstance(node, dict):
                raise self._wrong(trail, f"has the schema {json.dumps(node)[:100]}, which names no type")
            inner = {key: value for key, value in node.items() if key not in {"$ref", "anyOf", "oneOf", "allOf"}}
            if "$ref" in node:
                node = {**self._referred(node["$ref"], trail), **inner}
            elif alternatives := next((node[key] for key in ("anyOf", "oneOf", "allOf") if key in node), None):
                known = (
                    [one for one in alternatives if one != {"type": "null"}] if isinstance(alternatives, list) else []
                )
                if len(known) != 1 or not isinstance(known[0], dict):
                    raise self._wrong(trail, "has several alternatives; a column has one type, and may be null")
                node = {**known[0], **inner}
            else:
                return node
        raise self._wrong(trail, "refers to itself")

    def _referred(self, reference: Any, trail: tuple[str, ...]) -> Node:
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise self._wrong(
                trail, f"refers to {reference!r}; only references within the file are read (#/$defs/NAME)"
            )
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise self._wrong(trail, f"refers to {reference}, which the file does not have")
        return found

    def _must_not_be_deep(self, trail: tuple[str, ...]) -> None:
        if len(trail) > DEPTH_MAX:
            raise self._wrong(trail[:3], f"is nested more than {DEPTH_MAX} levels deep, or contains itself")

    def _wrong(self, trail: tuple[str, ...], what: str) -> SettingsError:
        place = ".".join(trail) or "the schema"
        return SettingsError(
            f"{self._where}: {place} {what}. Change it, or leave the property out: its values stay in the body"
        )
