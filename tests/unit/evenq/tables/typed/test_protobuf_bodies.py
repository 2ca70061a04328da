"""A protobuf body gives the values of its message, or null and a reason."""

from __future__ import annotations

import math
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import SettingsError
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.descriptors import message_descriptor, protobuf_schema
from tests.unit.evenq.tables.typed.conversion import descriptor_set, reasons, rows

ORDER = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { NEW = 0; PAID = 1; }
message Money { string currency = 1; int64 units = 2; }
message Tree { repeated Tree children = 1; int32 n = 2; }
message Empty {}
message Order {
  string id = 1;
  optional int32 count = 2;
  uint64 big = 3;
  uint32 mid = 4;
  double total = 5;
  float rate = 6;
  bool paid = 7;
  bytes raw = 8;
  State state = 9;
  Money price = 10;
  repeated Money lines = 11;
  repeated int32 numbers = 12;
  map<string, Money> by_name = 13;
  map<int32, bool> flags = 14;
  google.protobuf.Timestamp at = 15;
  google.protobuf.StringValue note = 16;
  Tree tree = 17;
  Empty empty = 18;
  oneof choice { int64 left = 19; string right = 20; }
  message Inner { string tag = 1; }
  Inner inner = 21;
  string tag = 22;
  google.protobuf.UInt64Value wrapped = 23;
  repeated State states = 24;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The descriptor set that protoc writes."""
    folder = tmp_path_factory.mktemp("protos")
    (folder / "order.proto").write_text(ORDER)
    include = str(Path(protoc.__file__).parent / "_proto")
    words = ["protoc", f"-I{folder}", f"-I{include}", "--include_imports", "--include_source_info"]
    assert protoc.main([*words, f"-o{folder}/order.pb", "order.proto"]) == 0
    assert protoc.main(["protoc", f"-I{folder}", f"-I{include}", f"-o{folder}/alone.pb", "order.proto"]) == 0
    return folder


@pytest.fixture(scope="module")
def schema(compiled: Path) -> TypedSchema:
    return protobuf_schema((compiled / "order.pb").read_bytes(), "shop.v1.Order", "order.pb")


def order(schema: TypedSchema) -> Any:
    return GetMessageClass(message_descriptor(schema, "f"))()


def test_types(schema: TypedSchema) -> None:
    assert {column.name: column.text for column in schema.columns} == {
        "id": "string", "count": "int32", "big": "decimal(20,0)", "mid": "int64", "total": "float64", "rate": "float32",
        "paid": "bool", "raw": "binary", "state": "string", "price": "struct<currency: string, units: int64>",
        "lines": "list<struct<currency: string, units: int64>>", "numbers": "list<int32>",
        "by_name": "map<string, struct<currency: string, units: int64>>", "flags": "map<int32, bool>",
        "at": "timestamp", "note": "string", "tree": "struct<children: list<binary>, n: int32>", "empty": "binary",
        "left": "int64", "right": "string", "inner": "struct<tag: string>", "body_tag": "string",
        "wrapped": "decimal(20,0)", "states": "list<string>",
    }  # fmt: skip
    assert TypedSchema.decode(schema.encode(), "f") == schema
    assert b"message Order" not in schema.descriptors
    assert not any(file.HasField("source_code_info") for file in FileDescriptorSet.FromString(schema.descriptors).file)


def test_values(schema: TypedSchema) -> None:
    made = order(schema)
    made.id, made.big, made.mid, made.rate, made.raw, made.state = "ä", 2**64 - 1, 2**32 - 1, 0.5, b"\xff", 1
    made.total = math.inf
    made.price.units = 7
    made.lines.add(currency="EUR")
    made.lines.add(units=-1)
    made.numbers.extend([3, -2])
    for name in ("z", "a", "m"):
        made.by_name[name].units = ord(name)
    made.flags[5] = True
    made.at.seconds, made.at.nanos = 1_700_000_000, 999_999_999
    made.note.value = ""
    made.tree.children.add(n=4)
    made.empty.SetInParent()
    made.right = "r"
    made.inner.tag = "t"
    made.wrapped.value = 9
    made.states.extend([1, 0, 77])
    [row, nothing] = rows(schema, [made.SerializeToString(), b""])
    assert row == {
        "id": "ä", "count": None, "big": Decimal(2**64 - 1), "mid": 2**32 - 1, "total": math.inf, "rate": 0.5, "paid": False,
        "raw": b"\xff", "state": "PAID", "price": {"currency": "", "units": 7},
        "lines": [{"currency": "EUR", "units": 0}, {"currency": "", "units": -1}], "numbers": [3, -2],
        "by_name": [(name, {"currency": "", "units": ord(name)}) for name in "amz"], "flags": [(5, True)],
        "at": datetime(2023, 11, 14, 22, 13, 20, 999999, tzinfo=UTC), "note": "",
        "tree": {"children": [b"\x10\x04"], "n": 0}, "empty": b"", "left": None, "right": "r", "inner": {"tag": "t"},
        "body_tag": "", "wrapped": Decimal(9), "states": ["PAID", "NEW", "77"], "bodyError": None,
    }  # fmt: skip
    unset = {"count", "price", "at", "note", "tree", "empty", "left", "right", "inner", "wrapped", "bodyError"}
    assert {name for name, value in nothing.items() if value is None} == unset
    assert (nothing["id"], nothing["state"], nothing["lines"], nothing["by_name"]) == ("", "NEW", [], [])


def test_bodies_that_do_not_fit_have_a_reason(schema: TypedSchema) -> None:
    late = order(schema)
    late.at.seconds = 253_402_300_800
    deep = order(schema)
    inner = deep.tree
    for _ in range(150):
        inner = inner.children.add()
    assert reasons(
        schema,
        b"\x0a",
        b'{"id": "x"}',
        b"\x0a\x01\xff",
        b"\x0f",
        late.SerializeToString(),
        b"\xff" * 11,
        deep.SerializeToString(),
    ) == ["syntax", "syntax", "syntax", "syntax", "range:at", "syntax", "syntax"]


def test_text_of_proto2_that_is_not_utf8_has_a_reason() -> None:
    file = FileDescriptorProto(name="old.proto", package="shop")
    message = file.message_type.add(name="Old")
    message.field.add(
        name="t", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    made = protobuf_schema(FileDescriptorSet(file=[file]).SerializeToString(), "shop.Old", "f")
    assert rows(made, [b"\x0a\x01a", b"\x0a\x01\xff", b""]) == [
        {"t": "a", "bodyError": None}, {"t": None, "bodyError": "utf8:t"}, {"t": None, "bodyError": None}
    ]  # fmt: skip


@pytest.fixture(scope="module")
def old() -> TypedSchema:
    """A message of proto2 with a map, itself, and a required field."""
    kind = FieldDescriptorProto
    file = FileDescriptorProto(name="old.proto", package="shop")
    message = file.message_type.add(name="Old")
    message.field.add(
        name="m", number=1, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED, type_name=".shop.Old.MEntry"
    )
    message.field.add(name="inner", number=2, type=kind.TYPE_MESSAGE, label=kind.LABEL_OPTIONAL, type_name=".shop.Old")
    message.field.add(name="r", number=3, type=kind.TYPE_INT32, label=kind.LABEL_REQUIRED)
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
    return protobuf_schema(FileDescriptorSet(file=[file]).SerializeToString(), "shop.Old", "f")


KEY, WRONG_KEY = b"\x0a\x05\x0a\x01a\x10\x01", b"\x0a\x05\x0a\x01\xff\x10\x01"


@pytest.mark.parametrize("body", [WRONG_KEY, WRONG_KEY + KEY, KEY + WRONG_KEY])
def test_a_key_of_proto2_that_is_not_utf8_has_a_reason(old: TypedSchema, body: bytes) -> None:
    assert reasons(old, KEY, body, KEY) == [None, "utf8:m", None]


def test_a_message_within_itself_may_lack_its_required_field(old: TypedSchema) -> None:
    [row] = rows(old, [b"\x12\x07" + KEY + b"\x18\x01"])
    assert row == {"m": [], "inner": KEY, "r": 1, "bodyError": None}


WIDE = descriptor_set(
    Order=[
        ("lines", "Line", {"label": FieldDescriptorProto.LABEL_REPEATED}),
        ("numbers", "TYPE_INT32", {"label": FieldDescriptorProto.LABEL_REPEATED}),
        ("text", "TYPE_STRING", {}),
        ("n", "TYPE_INT32", {}),
    ],
    Line=[(f"c{number}", "TYPE_INT64", {}) for number in range(100)],
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x0a\x00" * (2 << 20), "size"),
        (b"\x0a\x00" * 100_000, "size"),
        (b"\x0a\x00" * 5_001, "size:lines"),
        (b"\x0a\x00" * 4_000, None),
        (b"\x12\x80\x80\x80\x02" + b"\x01" * (4 << 20), "size"),
        (b"\x12\xc0\x84\x3d" + b"\x01" * 1_000_000, "size:numbers"),
        (b"\x20\x07" * (2 << 20), "size"),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (4 << 20), None),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (3 << 20), "syntax"),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (4 << 20) + b"\x80", "syntax"),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (4 << 20) + b"\x83\x01", "size"),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (4 << 20) + b"\x86\x01", "syntax"),
        (b"\x1a\x80\x80\x80\x02" + b"x" * (4 << 20) + b"\x21\x00", "syntax"),
        (b"\x7a\x80\x80\x80\x02" + b"x" * (4 << 20) + b"\x20\x05", None),
    ],
    ids=range(14),
)  # fmt: skip
def test_hostile_bodies_cost_bounded_memory_and_get_a_reason(body: bytes, reason: str | None) -> None:
    """The memory of protobuf's parser is not traced: the walk must refuse a body before that."""
    made = protobuf_schema(WIDE, "shop.Order", "f")
    tracemalloc.start()
    try:
        assert reasons(made, body) == [reason]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20, f"{peak >> 20} MiB"


@pytest.mark.parametrize(
    ("data", "message", "text"),
    [
        (b"", "shop.Order", "neither a JSON Schema nor a descriptor set"),
        (b"name: orders\n", "", "protoc --include_imports -o FILE"),
        (WIDE, "", r"name its message: add --table-message NAME, one of shop\.Line, shop\.Order"),
        (WIDE, "Order", r"has no message Order: add --table-message NAME, one of shop\.Line"),
        (descriptor_set(Order=[]), "shop.Order", "no field that can be a column"),
        (descriptor_set(Order=[("a", "TYPE_STRING", {}), ("A", "TYPE_STRING", {})]), "shop.Order",
         "a and A would both be the column A.*rename the field in the .proto file"),
    ],
)  # fmt: skip
def test_what_cannot_be_columns_is_named(data: bytes, message: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        protobuf_schema(data, message, "order.pb")


def test_a_set_without_its_imports_names_the_option(compiled: Path) -> None:
    with pytest.raises(SettingsError, match=r"order\.proto cannot be read .*--include_imports"):
        protobuf_schema((compiled / "alone.pb").read_bytes(), "shop.v1.Order", "alone.pb")


KNOWN = [
    descriptor_pb2.FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb)
    for one in (struct_pb2, timestamp_pb2, wrappers_pb2, descriptor_pb2)
]


@pytest.mark.parametrize(
    "name", ["google.protobuf.Struct", "google.protobuf.DescriptorProto", "google.protobuf.FileDescriptorSet"]
)
def test_messages_that_contain_themselves_are_columns_too(name: str) -> None:
    made = protobuf_schema(FileDescriptorSet(file=KNOWN).SerializeToString(), name, "f")
    assert reasons(made, b"") == [None]


NUMBERS = st.integers(-(2**31), 2**31 - 1)


@given(
    st.lists(
        st.tuples(st.text(max_size=5).filter(lambda text: text.isprintable()), NUMBERS, st.lists(NUMBERS, max_size=3)),
        max_size=4,
    ),
    st.binary(max_size=10),
)
def test_each_body_is_read_as_protobuf_reads_it_or_has_a_reason(values: list[Any], noise: bytes) -> None:
    kinds = {"label": FieldDescriptorProto.LABEL_REPEATED}
    data = descriptor_set(
        Order=[("t", "TYPE_STRING", {}), ("n", "TYPE_SINT32", {"proto3_optional": True}), ("l", "TYPE_INT32", kinds)]
    )
    made = protobuf_schema(data, "shop.Order", "f")
    kind = GetMessageClass(message_descriptor(made, "f"))
    bodies = [kind(t=text, n=number, l=numbers).SerializeToString() for text, number, numbers in values]
    for body, row in zip([*bodies, noise], rows(made, [*bodies, noise]), strict=True):
        try:
            parsed: Any = kind.FromString(body)
        except Exception:  # noqa: BLE001  DecodeError
            assert row == {"t": None, "n": None, "l": None, "bodyError": "syntax"}
        else:
            number = parsed.n if parsed.HasField("n") else None
            assert row == {"t": parsed.t, "n": number, "l": list(parsed.l), "bodyError": None}
