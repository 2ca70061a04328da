"""Protobuf bodies: bounded parsing, and builders that read the fields of a message.

The parser of protobuf makes an object of the whole size of a message for each of its two bytes on the wire. So a large
body is walked first, and refused when its messages and values would take more than `WEIGHT_MAX` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from evenq.tables.typed.builders import Budget, Builder, LeafBuilder, ListBuilder, StructBuilder
from evenq.tables.typed.columns import TypedColumn, TypedSchema
from evenq.tables.typed.descriptors import message_descriptor
from evenq.tables.typed.values import Misfit, must_be_a_year

WEIGHT_MAX: Final = 16 << 20
"""Bytes of memory that a parsed body may take beside its texts."""
LEVELS_MAX: Final = 100
"""As in the parser of protobuf."""
PER_FIELD, PER_MESSAGE = 64, 16
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED: Final = {FIXED64: 8, FIXED32: 4}
TEXTS: Final = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
HIGH_BYTES: Final = bytes(range(0x80, 0x100))


class ProtobufBodies:
    """The parser of one schema."""

    def __init__(self, schema: TypedSchema, where: str) -> None:
        self._descriptor = message_descriptor(schema, where)
        self._class = GetMessageClass(self._descriptor)
        self._take = _fields(self._descriptor, schema.columns)
        self._greatest = max(map(_weight, _messages(self._descriptor)))

    def builders(self, schema: TypedSchema, budget: Budget) -> list[Builder]:
        fields = self._descriptor.fields_by_name
        return [_builder(column, fields[column.path[0]], column.name, budget) for column in schema.columns]

    def values(self, body: memoryview) -> list[Any]:
        """Returns the value of each column. Raises Misfit."""
        data = bytes(body)
        if len(data) // 2 * self._greatest > WEIGHT_MAX:
            _must_be_light(data, self._descriptor)
        try:
            return self._take(self._class.FromString(data))
        except DecodeError:
            raise Misfit("syntax") from None


def _messages(descriptor: Descriptor) -> Iterable[Descriptor]:
    """Returns a message and all messages within it."""
    found, pending = {descriptor.full_name: descriptor}, [descriptor]
    while pending:
        for field in pending.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                pending.append(inner)
    return found.values()


def _weight(descriptor: Descriptor) -> int:
    """Returns an upper bound of the memory of an empty message with its field on the wire."""
    return PER_FIELD + PER_MESSAGE * (1 + len(descriptor.fields))


def _must_be_light(data: bytes, descriptor: Descriptor) -> None:
    """Raises Misfit for a body that would take too much memory. Groups of proto2 count as that: they have no size."""
    weight = 0
    levels = [(0, len(data), descriptor)]  # what is left of each message that is open
    while levels:
        at, end, message = levels.pop()
        while at < end:
            tag, at = _varint(data, at)
            weight += PER_FIELD
            number, kind = tag >> 3, tag & 7
            if kind == VARINT:
                _, at = _varint(data, at)
            elif kind in FIXED:
                at += FIXED[kind]
            elif kind == LENGTH:
                size, at = _varint(data, at)
                field = message.fields_by_number.get(number)
                if size > end - at:
                    raise Misfit("syntax")
                if field is not None and field.message_type is not None:
                    if len(levels) >= LEVELS_MAX:
                        raise Misfit("depth")
                    levels.append((at + size, end, message))
                    message, end = field.message_type, at + size
                    weight += _weight(message)
                    size = 0
                elif field is not None and field.is_repeated and field.type not in TEXTS:
                    weight += 8 * len(data[at : at + size].translate(None, HIGH_BYTES))
                at += size
            else:
                raise Misfit("size" if kind in {3, 4} else "syntax")
            if weight > WEIGHT_MAX:
                raise Misfit("size")
        if at > end:
            raise Misfit("syntax")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the place behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Misfit("syntax")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(descriptor: Descriptor, columns: Iterable[TypedColumn]) -> Callable[[Any], list[Any]]:
    """Returns the function that reads the fields of a message."""
    fields = [descriptor.fields_by_name[column.path[0]] for column in columns]
    wanted = [(field.name, field.has_presence) for field in fields]

    def take(message: Message) -> list[Any]:
        return [
            None if may_lack and not message.HasField(name) else getattr(message, name) for name, may_lack in wanted
        ]

    return take


def _builder(column: TypedColumn, field: FieldDescriptor, place: str, budget: Budget) -> Builder:
    """`field`: that of the column, also for its elements."""
    message = field.message_type
    match column.type:
        case "struct" if message is not None:
            fields = message.fields_by_name
            parts = [_builder(part, fields[part.path[0]], f"{place}.{part.name}", budget) for part in column.parts]
            return StructBuilder(column, parts, _fields(message, column.parts))
        case "list":
            return ListBuilder(column, [_builder(column.parts[0], field, place, budget)], _elements, budget, place)
        case "map" if message is not None:
            fields = message.fields_by_name
            parts = [_builder(part, fields[part.name], place, budget) for part in column.parts]
            return ListBuilder(column, parts, _pairs(place), budget, place)
    return LeafBuilder(column, _converter(column, field, place))


def _elements(values: Any) -> Any:
    return values


def _pairs(place: str) -> Callable[[Any], list[tuple[Any, Any]]]:
    def take(values: Any) -> list[tuple[Any, Any]]:
        """Returns the pairs of a map in the order of their keys: a map has none, and a repeat must write the same
        file.
        """
        if any(type(key) is bytes for key in values):  # a key that is not UTF-8, in a message of proto2
            raise Misfit("utf8", place)
        return [(key, values[key]) for key in sorted(values)]

    return take


def _converter(column: TypedColumn, field: FieldDescriptor, place: str) -> Callable[[Any], Any]:
    match column.reads:
        case "enum" if field.enum_type is not None:
            return _enum(field.enum_type)
        case "wrapper" if field.message_type is not None:
            plain = TypedColumn(name=column.name, type=column.type, path=())
            inner = _converter(plain, field.message_type.fields_by_name["value"], place)
            return lambda message: inner(message.value)
        case "message" if column.type == "timestamp":
            return lambda moment: must_be_a_year(moment.seconds * 1_000_000 + moment.nanos // 1_000, place)
        case "message":
            return _serialized
    if column.type == "string":
        return _text(place)
    return Decimal if column.type.startswith("decimal") else _same


def _enum(kind: EnumDescriptor) -> Callable[[int], str]:
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda number: names.get(number) or str(number)


def _text(place: str) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if type(value) is not str:  # bytes that are not UTF-8, in a message of proto2
            raise Misfit("utf8", place)
        return value

    return convert


def _serialized(message: Message) -> bytes:
    return message.SerializePartialToString(deterministic=True)  # without required fields, too


def _same(value: Any) -> Any:
    return value
