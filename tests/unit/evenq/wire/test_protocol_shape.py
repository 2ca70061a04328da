"""The stubs against `protocol_shape.txt`: every name, number, type, presence, oneof, enum value and RPC of the public API.

The table is read here and nowhere else, by other code than what made the stubs, so that a slip in a contract or in the
generator shows. Both sides are turned into the same sorted lines; pytest then prints the lines that differ.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

PACKAGE = "apache.rocketmq.v2."
TABLE = Path(__file__).with_name("protocol_shape.txt")
FILES = {file.DESCRIPTOR.name: file.DESCRIPTOR for file in (definition_pb2, service_pb2, admin_pb2)}
KINDS = {
    getattr(FieldDescriptor, f"TYPE_{kind.upper()}"): kind
    for kind in ("double", "float", "int64", "uint64", "int32", "uint32", "sint32", "sint64", "fixed32", "fixed64", "bool",
                 "string", "bytes")
}  # fmt: skip


# --- the table ---


def table() -> dict[str, list[str]]:
    """File name -> its facts, one a line."""
    text = re.sub(r"\n {4}", " ", TABLE.read_text(encoding="utf-8"))
    facts: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("file "):
            current = facts.setdefault(line.removeprefix("file "), [])
        elif line and not line.startswith("#"):
            current.extend(read_line(line))
    return {name: sorted(lines) for name, lines in facts.items()}


def read_line(line: str) -> Iterator[str]:
    head, _, body = line.partition(": ")
    kind, _, name = head.partition(" ")
    if kind == "rpc":
        yield line
    elif kind == "enum":
        yield from (f"enum {name} {value.strip()}" for value in body.split(","))
    else:
        yield f"message {name}"
        for oneof, members in re.findall(r"oneof (\w+) \{ (.*?) \}", body):
            yield from (f"field {name} {member.strip()} in {oneof}" for member in members.split(","))
        outside = re.sub(r"oneof \w+ \{ .*? \}", "", body)
        if outside != "(no fields)":
            yield from (f"field {name} {field.strip()}" for field in outside.split(";") if field.strip())


# --- the descriptors ---


def shown(file: FileDescriptor) -> list[str]:
    facts: list[str] = []
    for enum in file.enum_types_by_name.values():
        facts += enum_facts(enum)
    for message in file.message_types_by_name.values():
        facts += message_facts(message)
    for service in file.services_by_name.values():
        for rpc in service.methods:
            asks = ("stream " if rpc.client_streaming else "") + short(rpc.input_type.full_name)
            answers = ("stream " if rpc.server_streaming else "") + short(rpc.output_type.full_name)
            facts.append(f"rpc {service.name}.{rpc.name}({asks}) -> {answers}")
    return sorted(facts)


def enum_facts(enum: EnumDescriptor) -> Iterator[str]:
    yield from (f"enum {short(enum.full_name)} {value.name}={value.number}" for value in enum.values)


def message_facts(message: Descriptor) -> Iterator[str]:
    if message.GetOptions().map_entry:
        return
    yield f"message {short(message.full_name)}"
    for enum in message.enum_types:
        yield from enum_facts(enum)
    for nested in message.nested_types:
        yield from message_facts(nested)
    for field in message.fields:
        oneof = field.containing_oneof
        synthetic = oneof is not None and oneof.name == f"_{field.name}"
        label = "rep " if field.is_repeated and not is_map(field) else "opt " if synthetic else ""
        where = f" in {oneof.name}" if oneof is not None and not synthetic else ""
        yield f"field {short(message.full_name)} {label}{type_of(field)} {field.name}={field.number}{where}"


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def type_of(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        if is_map(field):
            key, value = field.message_type.fields
            return f"map<{type_of(key)},{type_of(value)}>"
        return short(field.message_type.full_name)
    return short(field.enum_type.full_name) if field.enum_type is not None else KINDS[field.type]


def short(full_name: str) -> str:
    return full_name.removeprefix(PACKAGE).removeprefix("google.protobuf.")


# --- the tests ---


@pytest.mark.parametrize("name", sorted(FILES))
def test_stub_has_the_published_shape(name: str) -> None:
    assert shown(FILES[name]) == table()[name]


def test_table_is_whole() -> None:
    facts = table()
    assert facts.keys() == FILES.keys()
    rpcs = {name: sum(line.startswith("rpc ") for line in lines) for name, lines in facts.items()}
    assert sorted(rpcs.values()) == [0, 16, 17]


def test_package_and_syntax() -> None:
    for file in FILES.values():
        assert file.package == "apache.rocketmq.v2"
        assert all(value.number >= 0 for enum in file.enum_types_by_name.values() for value in enum.values)
        assert all(not message.extensions for message in file.message_types_by_name.values())
