"""The schema of a table: kept with it, extended, and never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evenq.errors import SettingsError
from evenq.tables.folder import FolderTables, TableTarget, table_target
from evenq.tables.layout import TableChanged
from evenq.tables.typed import stored as module
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.descriptors import protobuf_schema
from evenq.tables.typed.stored import all_schemas, keep_schema, newest_schema, read_schema
from tests.unit.evenq.tables.typed.conversion import descriptor_set, schema_of

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
FIRST = schema_of(a=TEXT, s={"properties": {"x": TEXT}})
MORE = schema_of(a=TEXT, s={"properties": {"x": TEXT, "y": NUMBER}}, b=NUMBER)


@pytest.fixture(params=["folder", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    return table_target(str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}")


def test_the_first_schema_is_kept_and_columns_are_added(target: TableTarget) -> None:
    assert newest_schema(target, "orders") is None
    first = keep_schema(target, "orders", FIRST)
    assert (first.number, first.schema) == (1, FIRST)
    assert keep_schema(target, "orders", FIRST) == first
    more = keep_schema(target, "orders", MORE)
    assert (more.number, more.schema) == (2, MORE)
    assert newest_schema(target, "orders") == more
    assert {number: one.schema for number, one in all_schemas(target, "orders").items()} == {1: FIRST, 2: MORE}
    assert newest_schema(target, "others") is None


def test_the_order_of_columns_and_of_fields_does_not_matter(target: TableTarget) -> None:
    keep_schema(target, "orders", MORE)
    turned = schema_of(b=NUMBER, s={"properties": {"y": NUMBER, "x": TEXT}}, a=TEXT)
    assert keep_schema(target, "orders", turned).number == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (schema_of(a=TEXT), "has the typed column s, which --table-schema lacks: add it, or leave --table-schema out"),
        (schema_of(a=NUMBER, s={"properties": {"x": TEXT}}),
         r'column a as string from a, not as float64 from a, .*"x-column": "NAME".* or export to another folder'),
        (schema_of(a={"type": "string", "format": "date-time"}, s={"properties": {"x": TEXT}}), r"not as timestamp \(iso\) from a"),
        (schema_of(z=TEXT | {"x-column": "a"}, s={"properties": {"x": TEXT}}), "as string from a, not as string from z"),
        (schema_of(a=TEXT, s={"properties": {"x": NUMBER}}), r"column s\.x as string from x, not as float64"),
        (schema_of(a=TEXT, s={"properties": {"y": TEXT}}), r"column s\.x, which --table-schema lacks"),
        (schema_of(a=TEXT, s={"items": TEXT}), "column s as struct<x: string> from s, not as list<string>"),
    ],
)  # fmt: skip
def test_another_schema_is_refused(target: TableTarget, given: TypedSchema, text: str) -> None:
    keep_schema(target, "orders", FIRST)
    with pytest.raises(TableChanged, match=text):
        keep_schema(target, "orders", given)
    assert newest_schema(target, "orders").number == 1  # type: ignore[union-attr]


def test_another_message_is_refused(target: TableTarget) -> None:
    data = descriptor_set(Order=[("a", "TYPE_STRING", {})], Other=[("a", "TYPE_STRING", {})])
    keep_schema(target, "orders", protobuf_schema(data, "shop.Order", "f"))
    with pytest.raises(
        TableChanged, match=r"of the message shop\.Order, not of the message shop\.Other: export to another folder"
    ):
        keep_schema(target, "orders", protobuf_schema(data, "shop.Other", "f"))
    with pytest.raises(TableChanged, match=r"of the message shop\.Order, not of JSON bodies"):
        keep_schema(target, "orders", schema_of(a=TEXT))
    more = descriptor_set(Order=[("a", "TYPE_STRING", {}), ("b", "TYPE_BOOL", {})])
    assert keep_schema(target, "orders", protobuf_schema(more, "shop.Order", "f")).number == 2


def test_of_two_exporters_with_different_schemas_the_second_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    target = FolderTables(tmp_path)
    original = module.place_bytes

    def raced(*arguments: Any) -> bool:
        monkeypatch.setattr(module, "place_bytes", original)
        keep_schema(target, "orders", FIRST)
        return original(*arguments)

    monkeypatch.setattr(module, "place_bytes", raced)
    with pytest.raises(TableChanged, match="has the typed column s"):
        keep_schema(target, "orders", schema_of(a=TEXT))
    monkeypatch.setattr(module, "place_bytes", lambda *_: False)
    with pytest.raises(TableChanged, match="run it again"):
        keep_schema(target, "orders", MORE)


def test_a_damaged_schema_stops_the_export_with_its_name(target: TableTarget) -> None:
    module.place_bytes(target, "orders/_schema/000001.json", b"{}", lambda _: None)
    with pytest.raises(SettingsError, match=r"orders/_schema/000001\.json does not hold"):
        newest_schema(target, "orders")


def test_files_are_told_apart_by_their_content(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for data in (
        b'{"properties": {"a": {"type": "string"}}}',
        b'\xef\xbb\xbf \n{"properties": {"a": {"type": "string"}}}',
    ):
        file.write_bytes(data)
        assert read_schema(file, "").columns[0].name == "a"
        with pytest.raises(SettingsError, match="leave --table-message out"):
            read_schema(file, "shop.Order")
    for length in range(1, 120):  # one of these sets begins with a line break and an opening brace
        file.write_bytes(descriptor_set(**{"O" * length: [("a", "TYPE_STRING", {})]}))
        assert read_schema(file, "shop." + "O" * length).message
        braces = file.read_bytes().startswith(b"\n{")
        if braces:
            break
    assert braces


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, text in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(SettingsError, match=f"--table-schema {path} cannot be read: {text}"):
            read_schema(path, "")
    (tmp_path / "big").write_bytes(b"{" + b" " * (4 << 20))
    with pytest.raises(SettingsError, match="larger than 4 MiB"):
        read_schema(tmp_path / "big", "")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="neither a JSON Schema nor a descriptor set"):
        read_schema(tmp_path / "binary", "shop.Order")
