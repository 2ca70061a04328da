"""Typed columns from a protobuf message: a FileDescriptorSet of `protoc`, and the full name of the message.

A field has the column type that holds all of its values: uint32 is int64, and uint64 decimal(20,0). A field whose
message contains itself, or has no fields, is a binary column with the serialized message. Fields with presence are null
when they are not set; others have their default value, as in every language.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from evenq.errors import SettingsError
from evenq.tables.typed.columns import DEPTH_MAX, TypedColumn, TypedSchema, column_name, must_be_columns

SCALARS: Final = {
    FieldDescriptor.TYPE_DOUBLE: "float64",
    FieldDescriptor.TYPE_FLOAT: "float32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "decimal(20,0)",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_FIXED64: "decimal(20,0)",
    FieldDescriptor.TYPE_FIXED32: "int64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "binary",
    FieldDescriptor.TYPE_UINT32: "int64",
    FieldDescriptor.TYPE_ENUM: "string",
    FieldDescriptor.TYPE_SFIXED32: "int32",
    FieldDescriptor.TYPE_SFIXED64: "int64",
    FieldDescriptor.TYPE_SINT32: "int32",
    FieldDescriptor.TYPE_SINT64: "int64",
}
TIMESTAMP: Final = "google.protobuf.Timestamp"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
RENAME: Final = "rename the field in the .proto file"


def protobuf_schema(data: bytes, message: str, where: str) -> TypedSchema:
    """Returns the columns of a message. Raises SettingsError for data that does not describe it."""
    pool, names = _pool(data, where)
    if message not in names:
        known = ", ".join(sorted(names)[:20]) or "none"
        given = f"{where} has no message {message}" if message else f"{where} is a descriptor set: name its message"
        raise SettingsError(f"{given}: add --table-message NAME, one of {known}")
    descriptor = pool.FindMessageTypeByName(message)
    columns = must_be_columns(_fields(descriptor, (), top=True), f"{where}: {message}", RENAME)
    return TypedSchema(columns=columns, message=message, descriptors=_only(descriptor.file))


def message_descriptor(schema: TypedSchema, where: str) -> Descriptor:
    """Returns the descriptor of the message of a stored schema."""
    pool, _ = _pool(schema.descriptors, where)
    return pool.FindMessageTypeByName(schema.message)


def _pool(data: bytes, where: str) -> tuple[DescriptorPool, set[str]]:
    """Returns a pool of the files, and the full names of their messages."""
    try:
        files = list(FileDescriptorSet.FromString(data).file)
    except DecodeError:
        files = []
    if not files or not all(file.name for file in files):
        raise SettingsError(
            f"{where} is neither a JSON Schema nor a descriptor set; write it: protoc --include_imports -o FILE A.proto"
        )
    pool, names = DescriptorPool(), set[str]()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise SettingsError(
                f"{where}: {file.name} cannot be read ({str(error).strip()[:300]}); write the file with protoc "
                "--include_imports"
            ) from error
        names |= {_joined(file.package, one.name) for one in file.message_type}
        pending = [(_joined(file.package, one.name), one) for one in file.message_type]
        while pending:
            name, one = pending.pop()
            names.add(name)
            pending += [(f"{name}.{inner.name}", inner) for inner in one.nested_type if not inner.options.map_entry]
    return pool, names


def _joined(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name


def _only(file: FileDescriptor) -> bytes:
    """Returns a set of a file and its imports, in the order in which a pool takes them."""
    made, seen = FileDescriptorSet(), set[str]()

    def add(one: FileDescriptor) -> None:
        if one.name not in seen:
            seen.add(one.name)
            for needed in one.dependencies:
                add(needed)
            made.file.add().MergeFromString(one.serialized_pb)

    add(file)
    for one in made.file:
        one.ClearField("source_code_info")
    return made.SerializeToString(deterministic=True)


def _fields(descriptor: Descriptor, outer: tuple[str, ...], *, top: bool = False) -> Iterator[TypedColumn]:
    """Yields the columns of a message's fields. `outer`: names of the messages around it."""
    for field in descriptor.fields:
        yield _column(field, (*outer, descriptor.full_name), column_name(field.name) if top else field.name)


def _column(field: FieldDescriptor, outer: tuple[str, ...], name: str) -> TypedColumn:
    path, message = (field.name,), field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (_single(message.fields_by_name[part], outer, part, ()) for part in ("key", "value"))
        return TypedColumn(name=name, type="map", path=path, parts=(key, value))
    if field.is_repeated:
        return TypedColumn(name=name, type="list", path=path, parts=(_single(field, outer, "element", ()),))
    return _single(field, outer, name, path)


def _single(field: FieldDescriptor, outer: tuple[str, ...], name: str, path: tuple[str, ...]) -> TypedColumn:
    """Returns the column of one value of a field."""
    message = field.message_type
    if message is None:
        reads = "enum" if field.enum_type is not None else ""
        return TypedColumn(name=name, type=SCALARS[field.type], path=path, reads=reads)
    if message.full_name == TIMESTAMP:
        return TypedColumn(name=name, type="timestamp", path=path, reads="message")
    if message.full_name in WRAPPERS:
        return TypedColumn(name=name, type=SCALARS[message.fields_by_name["value"].type], path=path, reads="wrapper")
    if message.full_name in outer or not message.fields or len(outer) >= DEPTH_MAX // 2:
        return TypedColumn(name=name, type="binary", path=path, reads="message")
    return TypedColumn(name=name, type="struct", path=path, parts=tuple(_fields(message, outer)))
