"""Header fields, classified once when they arrive, so that an indexed field costs one look-up.

Always true: a field of kind MALFORMED makes the request malformed (RFC 9113, section 8.2). It has upper case, an
invalid character or pseudo-header, or is a header of the connection.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, NamedTuple

FIELD_OVERHEAD = 32
"""Bytes that a field counts in addition to its name and value (RFC 7541, section 4.1)."""

_NAME_OK = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z").match
_VALUE_BAD = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]").search


class FieldKind(IntEnum):
    """Use of a field by a gRPC server."""

    METADATA = 0
    BINARY = 1
    METHOD = 2
    SCHEME = 3
    PATH = 4
    AUTHORITY = 5
    CONTENT_TYPE = 6
    TIMEOUT = 7
    ENCODING = 8
    CONTENT_LENGTH = 9
    HIDDEN = 10
    MALFORMED = 11


class Field(NamedTuple):
    pair: tuple[str, str]
    """Name and value; bytes above 127 as Latin-1."""
    kind: int
    size: int
    """Bytes as counted by tables and lists."""
    name: bytes


_KINDS = {
    b":method": FieldKind.METHOD,
    b":scheme": FieldKind.SCHEME,
    b":path": FieldKind.PATH,
    b":authority": FieldKind.AUTHORITY,
    b"content-type": FieldKind.CONTENT_TYPE,
    b"content-length": FieldKind.CONTENT_LENGTH,
    b"grpc-timeout": FieldKind.TIMEOUT,
    b"grpc-encoding": FieldKind.ENCODING,
    b"grpc-accept-encoding": FieldKind.HIDDEN,
    b"connection": FieldKind.MALFORMED,
    b"keep-alive": FieldKind.MALFORMED,
    b"proxy-connection": FieldKind.MALFORMED,
    b"transfer-encoding": FieldKind.MALFORMED,
    b"upgrade": FieldKind.MALFORMED,
}


_new = tuple.__new__


class HeaderBlock:
    """One decoded header block."""

    __slots__ = ("changing", "common", "fields", "request", "size")

    def __init__(self, fields: list[Field], size: int) -> None:
        self.fields = fields
        self.common: HeaderBlock | None = None
        """Fields shared with previous blocks, all but `changing`. None: the block was read field by field."""
        self.changing: list[Field] = []  # fields that differ; not in `fields` then
        self.size = size  # bytes as SETTINGS_MAX_HEADER_LIST_SIZE counts them
        self.request: Any = None  # the result of the layer above for the fields; kept with a repeated block


def field(name: bytes, value: bytes) -> Field:
    """Classifies a field. A malformed one is returned too: the peer's table contains it, so ours must."""
    kind = _KINDS.get(name)
    if kind is None:
        kind = FieldKind.METADATA
        if not _NAME_OK(name):
            kind = FieldKind.MALFORMED
        elif name.endswith(b"-bin"):
            kind = FieldKind.BINARY
        # RFC 9113, 8.2.2: `te` is allowed with this value only.
        elif name == b"te":
            kind = FieldKind.HIDDEN if value == b"trailers" else FieldKind.MALFORMED
    text = value.decode("latin-1")
    if not text.isprintable() and _VALUE_BAD(value):
        kind = FieldKind.MALFORMED
    # `tuple.__new__` without the named tuple's own `__new__`: this runs for each field of each call.
    return _new(Field, ((name.decode("latin-1"), text), int(kind), len(name) + len(value) + FIELD_OVERHEAD, name))


def another(known: Field, value: bytes) -> Field:
    """Returns the field with this name and another value."""
    pair, kind, _, name = known
    text = value.decode("latin-1")
    if kind >= _HIDDEN or not text.isprintable():
        return field(name, value)
    return _new(Field, ((pair[0], text), kind, len(name) + len(value) + FIELD_OVERHEAD, name))


_HIDDEN = int(FieldKind.HIDDEN)
