"""A JSON Schema becomes columns, and what cannot be a column is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenq.errors import SettingsError
from evenq.tables.typed.columns import LEAVES_MAX, TypedSchema
from evenq.tables.typed.json_schema import json_schema
from tests.unit.evenq.tables.typed.conversion import schema_of


def columns(schema: TypedSchema) -> dict[str, str]:
    return {column.name: column.text for column in schema.columns}


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "string", "format": "byte"}, "binary"),
        ({"type": "string", "format": "decimal(38,0)"}, "decimal(38,0)"),
        ({"type": "number", "format": "decimal(12,2)"}, "decimal(12,2)"),
        ({"type": "number"}, "float64"),
        ({"type": "number", "format": "float"}, "float32"),
        ({"type": "number", "format": "epoch-s"}, "timestamp"),
        ({"type": "integer"}, "int64"),
        ({"type": "integer", "format": "int32", "minimum": 1}, "int32"),
        ({"type": "integer", "format": "epoch-ms"}, "timestamp"),
        ({"type": "boolean"}, "bool"),
        ({"enum": ["new", "paid", None]}, "string"),
        ({"const": 3}, "int64"),
        ({"items": {"type": "array", "items": {"type": "integer"}}}, "list<list<int64>>"),
        ({"additionalProperties": {"type": "number"}, "type": "object"}, "map<string, float64>"),
        ({"properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}}, "struct<a: string, b: bool>"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}], "default": None}, "int64"),
        ({"allOf": [{"$ref": "#/$defs/Money"}], "description": "x"}, "struct<sum: decimal(9,2)>"),
        ({"$ref": "#/$defs/Money/properties/sum"}, "decimal(9,2)"),
    ],
)  # fmt: skip
def test_types(node: Any, text: str) -> None:
    money = {"type": "object", "properties": {"sum": {"type": "number", "format": "decimal(9,2)"}}}
    made = json_schema(json.dumps({"$defs": {"Money": money}, "properties": {"it": node}}), "f")
    assert columns(made) == {"it": text}
    assert TypedSchema.decode(made.encode(), "f") == made
    assert made.fields()[0].type == made.columns[0].arrow()


def test_names_of_the_table_get_a_prefix_and_x_column_renames() -> None:
    text = {"type": "string"}
    inner = {"id": text | {"x-column": "customer_id"}, "name": text}
    made = schema_of(
        TAG=text, uid=text, status=text | {"x-column": "state"}, customer={"properties": inner},
        only={"properties": {"a": text | {"x-column": "only_a"}}},
        lines={"items": {"properties": {"tag": text, "n": text | {"x-column": "m"}}}},
    )  # fmt: skip
    assert [(column.name, column.text, ".".join(column.path)) for column in made.columns] == [
        ("body_TAG", "string", "TAG"),
        ("body_uid", "string", "uid"),
        ("state", "string", "status"),
        ("customer", "struct<name: string>", "customer"),
        ("lines", "list<struct<tag: string, m: string>>", "lines"),
        ("customer_id", "string", "customer.id"),
        ("only_a", "string", "only.a"),
    ]
    assert made.columns[4].parts[0].parts[1].path == ("n",)


def test_paths_of_leaves_are_those_of_parquet(tmp_path: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    deep = {"items": {"properties": {"m": {"type": "object", "additionalProperties": {"items": {"type": "integer"}}}}}}
    made = schema_of(
        a=deep, b={"properties": {"c": {"type": "number"}}}, d={"contentEncoding": "base64", "type": "string"}
    )
    pq.write_table(pa.schema(made.fields()).empty_table(), tmp_path / "f.parquet")
    written = pq.read_metadata(tmp_path / "f.parquet").schema
    paths = [written.column(number).path for number in range(len(written))]
    assert [path for column in made.columns for path, _ in column.leaf_paths()] == paths[:-1]
    assert made.searched() == [path for path in paths if path != "d"]


RECURSIVE = {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}}}, "properties": {"t": {"$ref": "#/$defs/T"}}}


def recursive(keyword: str) -> str:
    inner = {"$ref": "#/$defs/A"}
    node = {"type": "array" if keyword == "items" else "object", keyword: inner}
    return json.dumps({"$defs": {"A": node}, "properties": {"a": inner}})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("[]", "it holds list"),
        ("{", "is not JSON"),
        ("{}", "describes no object"),
        ('{"type": "array"}', "describes no object"),
        ('{"properties": {}}', "no field that can be a column"),
        ('{"properties": {"a": {"properties": {"b": true}}}}', r"a\.b has the schema true, which names no type"),
        ('{"properties": {"a": {}}}', "a has no type; a column is one of string"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "string.*integer.*leave the property out"),
        ('{"properties": {"a": {"type": "object"}}}', "a is an object without properties"),
        ('{"properties": {"a": {"type": "array"}}}', r"a\.\[\] has the schema null"),
        ('{"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}', "several alternatives"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "only references within the file"),
        ('{"properties": {"a": {"$ref": "#/$defs/None"}}}', "which the file does not have"),
        ('{"properties": {"a": {"$ref": "#/properties/a"}}}', "refers to itself"),
        (json.dumps(RECURSIVE), r"t\.t\.t is nested more than 16 levels deep, or contains itself"),
        (recursive("items"), r"a\.\[\]\.\[\] is nested more than 16 levels deep, or contains itself"),
        (recursive("additionalProperties"), r"a\.\[\]\.\[\] is nested more than 16 levels deep, or contains itself"),
        ('{"properties": {"a": {"type": "number", "format": "decimal(39,2)"}}}', "p from 1 to 38"),
        ('{"properties": {"a": {"type": "number", "format": "decimal(2,3)"}}}', "s from 0 to p"),
        ('{"properties": {"a": {"type": "number", "format": 3}}}', "a has the format 3"),
        ('{"properties": {"a": {"type": "string", "x-column": 3}}}', "a has the x-column 3"),
        ('{"properties": {"a.b": {"type": "string"}}}', 'a.b.*without a period: add "x-column"'),
        ('{"properties": {"": {"type": "string"}}}', "cannot be the name of a column"),
        ('{"properties": {"id": {"type": "string"}, "ID": {"type": "string"}}}', "id and ID would both be the column ID"),
        ('{"properties": {"uid": {"type": "string"}, "body_uid": {"type": "string"}}}', "both be the column body_uid"),
        ('{"properties": {"l": {"items": {"properties": {"a": {"type": "string"}, "A": {"type": "string"}}}}}}', "a and A"),
        (json.dumps({"properties": {f"c{n}": {"type": "string"} for n in range(LEAVES_MAX + 1)}}), "501 columns.*500"),
    ],
)  # fmt: skip
def test_what_cannot_be_columns_is_named(schema: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        json_schema(schema, "order.json")
    assert caught.value.message.startswith("order.json")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version": 1}', b'{"version": 1, "columns": [{"name": 1}]}', b"[1]",
                                  b'{"version": 1, "columns": [{"name": "a", "type": "blob", "path": []}]}'])  # fmt: skip
def test_a_damaged_schema_of_a_table_is_named(data: bytes) -> None:
    with pytest.raises(SettingsError, match=r"t/_schema/000001\.json does not hold the typed columns .*restore it"):
        TypedSchema.decode(data, "t/_schema/000001.json")


def test_a_schema_of_a_newer_version_is_named() -> None:
    with pytest.raises(SettingsError, match="use a newer evenq"):
        TypedSchema.decode(b'{"version": 2}', "f")
