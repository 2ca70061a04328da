"""Bodies to rows, as tests need them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from evenq.tables.typed.bodies import TypedBodies
from evenq.tables.typed.columns import TypedSchema
from evenq.tables.typed.json_schema import json_schema

PLAIN = pa.schema([pa.field("body", pa.binary())])


def schema_of(**properties: Any) -> TypedSchema:
    return json_schema(json.dumps({"type": "object", "properties": properties}), "order.json")


def table(schema: TypedSchema, bodies: Sequence[bytes]) -> pa.Table:
    converter = TypedBodies(schema, plain=PLAIN)
    batch = pa.record_batch([pa.array(bodies, pa.binary())], schema=PLAIN)
    made = pa.Table.from_batches(converter.batches(batch), schema=converter.schema)
    made.validate(full=True)
    assert made.column("body").to_pylist() == list(bodies), "bytes stay"
    return made


def rows(schema: TypedSchema, bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """Returns the typed values of each body, and the reason."""
    found: list[dict[str, Any]] = table(schema, bodies).drop_columns(["body"]).to_pylist()
    return found


def reasons(schema: TypedSchema, *bodies: bytes) -> list[str | None]:
    """Returns the reason for each body; all typed columns are null with one."""
    found = rows(schema, bodies)
    for row in found:
        reason = row.pop("bodyError")
        assert reason is None or set(row.values()) == {None}
        row["bodyError"] = reason
    return [row["bodyError"] for row in found]


def descriptor_set(**messages: Sequence[tuple[str, str, dict[str, Any]]]) -> bytes:
    """Returns a set with proto3 messages `shop.NAME`, each with fields (name, type or message, more)."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, more) in enumerate(fields, 1):
            made = message.field.add(name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if kind in FieldDescriptorProto.Type.keys():  # noqa: SIM118  an enum of protobuf
                made.type = FieldDescriptorProto.Type.Value(kind)
            else:
                made.type = FieldDescriptorProto.TYPE_MESSAGE
                made.type_name = f".shop.{kind}"
            for key, value in more.items():
                setattr(made, key, value)
            if more.get("proto3_optional"):
                made.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    return FileDescriptorSet(file=[file]).SerializeToString()
