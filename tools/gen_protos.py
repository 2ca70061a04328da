"""Writes the Python stubs of every contract under `protos/` to `src/evenq/wire/stubs/`.

    python tools/gen_protos.py            write them
    python tools/gen_protos.py --check    write nothing; exit 1 if a stub is missing, left over or out of date

Run it after a change of a contract; CI runs --check. protoc (from grpcio-tools) only parses the contracts. This script
writes the modules and their types, so that

- they do not depend on the version of grpcio-tools, and load on any protobuf runtime that the project allows (modules
  of protoc refuse older runtimes),
- all messages go into our private descriptor pool (reason: `stubs/pool.py`),
- the types are strict: `HasField("tpoic")` or a plain int for an enum does not pass mypy.
"""

import argparse
import importlib.resources
import keyword
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
PROTOS = ROOT / "protos"
STUBS = ROOT / "src" / "evenq" / "wire" / "stubs"
PACKAGE = "evenq.wire.stubs"
BY_HAND = {"pool.py"}
IN_POOL = {"google/protobuf/timestamp.proto", "google/protobuf/duration.proto"}
"""Standard files that pool.py loads; a contract may import no other."""

WIDTH = 120
F = FieldDescriptorProto
SCALARS = {
    F.TYPE_DOUBLE: "float",
    F.TYPE_FLOAT: "float",
    F.TYPE_INT64: "int",
    F.TYPE_UINT64: "int",
    F.TYPE_INT32: "int",
    F.TYPE_FIXED64: "int",
    F.TYPE_FIXED32: "int",
    F.TYPE_BOOL: "bool",
    F.TYPE_STRING: "str",
    F.TYPE_BYTES: "bytes",
    F.TYPE_UINT32: "int",
    F.TYPE_SFIXED32: "int",
    F.TYPE_SFIXED64: "int",
    F.TYPE_SINT32: "int",
    F.TYPE_SINT64: "int",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the Python stubs of the contracts.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if the stubs are not up to date")
    parser.add_argument("--protos", type=Path, default=PROTOS, help="folder of the contracts")
    parser.add_argument("--stubs", type=Path, default=STUBS, help="folder of the stubs")
    options = parser.parse_args(arguments)

    rendered = render(options.protos)
    present = {
        path.relative_to(options.stubs).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(options.stubs.rglob("*.py*"))
        if path.suffix in {".py", ".pyi"} and path.relative_to(options.stubs).as_posix() not in BY_HAND
    }
    stale = sorted(name for name in rendered.keys() | present.keys() if rendered.get(name) != present.get(name))
    if options.check:
        for name in stale:
            print(f"stale: {name}")
        if stale:
            print("run: python tools/gen_protos.py")
        return 1 if stale else 0
    for name in stale:
        path = options.stubs / name
        if name in rendered:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rendered[name], encoding="utf-8")
        else:
            path.unlink()
        print(f"{'wrote' if name in rendered else 'removed'}: {name}")
    return 0


def render(protos: Path) -> dict[str, str]:
    """All stub files that should exist, as path below the stubs' folder -> text."""
    files = compile_all(protos)
    types = TypeNames(files)
    texts = {"__init__.py": f'"""Stubs of the contracts in protos/.\n\n{_header()[2:]}\n"""\n'}
    for file in files:
        path = Path(_module_path(file.name))
        for folder in path.parents[:-1]:
            texts[(folder / "__init__.py").as_posix()] = _header() + "\n"
        texts[f"{path.as_posix()}.py"] = render_module(file)
        texts[f"{path.as_posix()}.pyi"] = "\n".join(TypesWriter(file, types).lines()) + "\n"
    return texts


def compile_all(protos: Path) -> list[FileDescriptorProto]:
    """Returns the descriptors of the contracts, sorted by name, without comments and source positions."""
    names = sorted(path.relative_to(protos).as_posix() for path in protos.rglob("*.proto"))
    standard = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "descriptors"
        code = protoc.main(["protoc", f"-I{protos}", f"-I{standard}", f"--descriptor_set_out={out}", *names])
        if code != 0:
            raise SystemExit(f"protoc failed with exit code {code}")
        files = sorted(FileDescriptorSet.FromString(out.read_bytes()).file, key=lambda file: file.name)
    for file in files:
        foreign = set(file.dependency) - set(names) - IN_POOL
        if foreign:
            raise SystemExit(f"{file.name} imports {sorted(foreign)}: neither under protos/ nor in pool.py")
        for message in file.message_type:
            _drop_json_names(message)
    return files


def _drop_json_names(message: DescriptorProto) -> None:
    # protoc writes the default names too; protobuf derives them again.
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _drop_json_names(nested)


# --- modules ----------------------------------------------------------------------------------------------------------


def render_module(file: FileDescriptorProto) -> str:
    """The .py file: the encoded descriptor, and a call that builds the classes from it."""
    needed = [f"{PACKAGE}.{_module(name)}" for name in file.dependency if name not in IN_POOL]
    lines = [
        _header(file.name),
        "",
        f"from {PACKAGE} import pool as _pool",
        *(f"import {name}" for name in sorted(needed)),
        "",
        "_FILE = (",
        *(f"    {chunk}" for chunk in _chunks(file.SerializeToString(deterministic=True))),
        ")",
        "",
        "DESCRIPTOR = _pool.load(_FILE, __name__, globals())",
    ]
    return "\n".join(lines) + "\n"


def _chunks(data: bytes) -> Iterator[str]:
    start = 0
    while start < len(data):
        end = min(start + WIDTH, len(data))
        while len(repr(data[start:end])) > WIDTH - 4:
            end -= 1
        yield repr(data[start:end])
        start = end


# --- types ------------------------------------------------------------------------------------------------------------


class TypeNames:
    """Full proto name of a message or enum (".a.b.C.D") -> the file it is declared in and its Python name there."""

    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        self._declared: dict[str, tuple[str, str]] = {}
        self._entries: dict[str, DescriptorProto] = {}
        for file in files:
            for enum in file.enum_type:
                self._declared[f".{file.package}.{enum.name}"] = (file.name, enum.name)
            for message in file.message_type:
                self._collect(file, message, outer="")

    def _collect(self, file: FileDescriptorProto, message: DescriptorProto, *, outer: str) -> None:
        name = outer + message.name
        self._declared[f".{file.package}.{name}"] = (file.name, name)
        if message.options.map_entry:
            self._entries[f".{file.package}.{name}"] = message
        for enum in message.enum_type:
            self._declared[f".{file.package}.{name}.{enum.name}"] = (file.name, f"{name}.{enum.name}")
        for nested in message.nested_type:
            self._collect(file, nested, outer=f"{name}.")

    def python(self, field: FieldDescriptorProto, *, seen_from: str) -> str:
        """The type of one value of a field, written for the file `seen_from`."""
        if field.type in SCALARS:
            return f"builtins.{SCALARS[field.type]}"
        if field.type_name in {".google.protobuf.Timestamp", ".google.protobuf.Duration"}:
            return f"_pool.{field.type_name.rpartition('.')[2]}"
        file, name = self._declared[field.type_name]
        if file != seen_from:
            name = f"{_alias(file)}.{name}"
        return f"{name}.ValueType" if field.type == F.TYPE_ENUM else name

    def entry(self, field: FieldDescriptorProto) -> DescriptorProto | None:
        """The key and value of a map field; None for any other."""
        return self._entries.get(field.type_name)


class TypesWriter:
    """The .pyi file of one contract."""

    def __init__(self, file: FileDescriptorProto, types: TypeNames) -> None:
        self._file = file
        self._types = types

    def lines(self) -> Iterator[str]:
        yield _header(self._file.name)
        yield from (
            "",
            "import builtins",
            "from collections.abc import Iterable, Mapping",
            "from typing import Any, Literal, NewType, overload",
            "",
            "from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor",
            "from google.protobuf.internal import containers as _containers",
            "from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper",
            "from google.protobuf.message import Message as _Message",
            "",
            f"from {PACKAGE} import pool as _pool",
        )
        for name in sorted(set(self._file.dependency) - IN_POOL):
            folder, _, module = f"{PACKAGE}.{_module(name)}".rpartition(".")
            yield f"from {folder} import {module} as {_alias(name)}"
        yield from ("", "DESCRIPTOR: FileDescriptor")
        for enum in self._file.enum_type:
            yield ""
            yield from self._enum(enum, outer="")
        for message in self._file.message_type:
            yield ""
            yield from self._message(message, outer="")

    def _enum(self, enum: EnumDescriptorProto, *, outer: str) -> Iterator[str]:
        # `Code` is protobuf's enum wrapper, `Code.ValueType` the type of one value: int at run time, a distinct type
        # for mypy. The names with an underscore exist only here.
        wrapper, value_type = f"_{enum.name}Wrapper", f"{outer}_{enum.name}.ValueType"
        yield f"class _{enum.name}:"
        yield '    ValueType = NewType("ValueType", builtins.int)'
        yield ""
        yield f"class {wrapper}(_EnumTypeWrapper[{value_type}]):"
        yield "    DESCRIPTOR: EnumDescriptor"
        yield from (f"    {value.name}: {value_type}" for value in enum.value)
        yield ""
        yield f"class {enum.name}(_{enum.name}, metaclass={wrapper}): ..."
        yield ""
        yield from (f"{value.name}: {enum.name}.ValueType" for value in enum.value)

    def _message(self, message: DescriptorProto, *, outer: str) -> Iterator[str]:
        yield f"class {message.name}(_Message):"
        yield from (f"    {line}" if line else "" for line in self._body(message, inner=f"{outer}{message.name}."))

    def _body(self, message: DescriptorProto, *, inner: str) -> Iterator[str]:
        yield "DESCRIPTOR: Descriptor"
        for enum in message.enum_type:
            yield ""
            yield from self._enum(enum, outer=inner)
        for nested in message.nested_type:
            if not nested.options.map_entry:
                yield ""
                yield from self._message(nested, outer=inner)
        if message.field:
            yield ""
        plain = [field for field in message.field if not keyword.iskeyword(field.name)]
        for field in plain:
            yield from self._field(field)
        yield ""
        yield from self._init(message, plain)
        yield from self._presence(message)

    def _field(self, field: FieldDescriptorProto) -> Iterator[str]:
        if field.label != F.LABEL_REPEATED and field.type != F.TYPE_MESSAGE:
            yield f"{field.name}: {self._value(field)}"
            return
        # Such fields are changed in place or with CopyFrom, never assigned.
        yield "@builtins.property"
        yield f"def {field.name}(self) -> {self._held(field)}: ..."

    def _value(self, field: FieldDescriptorProto) -> str:
        return self._types.python(field, seen_from=self._file.name)

    def _held(self, field: FieldDescriptorProto) -> str:
        entry = self._types.entry(field)
        if entry is not None:
            key, value = entry.field
            kind = "MessageMap" if value.type == F.TYPE_MESSAGE else "ScalarMap"
            return f"_containers.{kind}[{self._value(key)}, {self._value(value)}]"
        if field.label == F.LABEL_REPEATED:
            kind = "RepeatedCompositeFieldContainer" if field.type == F.TYPE_MESSAGE else "RepeatedScalarFieldContainer"
            return f"_containers.{kind}[{self._value(field)}]"
        return self._value(field)

    def _given(self, field: FieldDescriptorProto) -> str:
        entry = self._types.entry(field)
        if entry is not None:
            key, value = entry.field
            return f"Mapping[{self._value(key)}, {self._value(value)}]"
        return f"Iterable[{self._value(field)}]" if field.label == F.LABEL_REPEATED else self._value(field)

    def _init(self, message: DescriptorProto, plain: list[FieldDescriptorProto]) -> Iterator[str]:
        yield "def __init__("
        yield "    self,"
        if plain:
            yield "    *,"
        yield from (f"    {field.name}: {self._given(field)} | None = ...," for field in plain)
        if len(plain) < len(message.field):
            yield "    **named_like_a_keyword: Any,"
        yield ") -> None: ..."

    def _presence(self, message: DescriptorProto) -> Iterator[str]:
        oneofs: dict[str, list[str]] = {}
        for field in message.field:
            if field.HasField("oneof_index") and not field.proto3_optional:
                oneofs.setdefault(message.oneof_decl[field.oneof_index].name, []).append(field.name)
        present = [
            field.name
            for field in message.field
            if field.label != F.LABEL_REPEATED and (field.type == F.TYPE_MESSAGE or field.HasField("oneof_index"))
        ]
        if present or oneofs:
            yield f"def HasField(self, field_name: {_literal([*present, *oneofs])}) -> builtins.bool: ..."
        if message.field:
            every = [field.name for field in message.field]
            yield f"def ClearField(self, field_name: {_literal([*every, *oneofs])}) -> None: ..."
        for name, members in oneofs.items():
            if len(oneofs) > 1:
                yield "@overload"
            yield f"def WhichOneof(self, oneof_group: {_literal([name])}) -> {_literal(members)} | None: ..."


def _literal(names: list[str]) -> str:
    quoted = (f'"{name}"' for name in names)
    return f"Literal[{', '.join(quoted)}]"


# --- names ------------------------------------------------------------------------------------------------------------


def _header(source: str = "") -> str:
    return "# generated by tools/gen_protos.py, do not edit" + (f" (from protos/{source})" if source else "")


def _module_path(proto: str) -> str:
    return proto.removesuffix(".proto") + "_pb2"


def _module(proto: str) -> str:
    return _module_path(proto).replace("/", ".")


def _alias(proto: str) -> str:
    return "_" + proto.removesuffix(".proto").replace("/", "_")


if __name__ == "__main__":
    sys.exit(main())
