"""Avro bodies with the id of their schema, in the wire format of the Confluent schema registry.

    byte 0       0, the format
    bytes 1-4    id of the schema that the body was written with, big-endian
    from 5 on    the value, in Avro's binary encoding

The codec calls no registry. The program passes `lookup`, a function from an id to a schema, and the codec keeps what it
returns: the schema of an id never changes. Needs the package fastavro, which is imported when a codec is created.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any

from evenq.errors import BadRequest, InvalidBody, Unsupported
from evenq.runtime.extras import missing

Schema = str | dict[str, Any] | list[Any]
"""A schema as JSON text, or as what `json.loads` makes of it."""
PREFIX = struct.Struct(">bI")
MAGIC = 0
SCHEMAS_MAX = 1_000
"""Schemas that a codec keeps; above, it forgets the oldest one."""
_UNREADABLE = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, MemoryError, RecursionError, struct.error)
"""Raised by fastavro for bytes that do not fit the schema: which of them depends on the place of the damage."""


class AvroCodec:
    """Codec of Avro. Values are dicts, lists, texts, numbers ... as fastavro has them."""

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        schema_id: int | None = None,
        lookup: Callable[[int], Schema | None] | None = None,
    ) -> None:
        """`schema` is that of the program: values are written with it, and returned in its form. None: values are
        returned in the form of the schema that they were written with, and the codec only decodes. `schema_id` is its
        id in the registry, 0 .. 4,294,967,295; needed to encode.

        `lookup` returns the schema of another id, or None if there is none. Its exceptions are not caught: they mean
        that the registry does not answer now. Without it, only `schema_id` is known.

        Raises Unsupported without fastavro, BadRequest for an invalid schema or id.
        """
        try:
            import fastavro
        except ModuleNotFoundError as error:
            raise Unsupported(missing("AvroCodec", "fastavro")) from error
        self._avro = fastavro
        if schema_id is not None and (not isinstance(schema_id, int) or not 0 <= schema_id < 1 << 32):
            raise BadRequest(f"schema_id is {schema_id!r:.80}; give the number of the registry, 0 to {(1 << 32) - 1}")
        if (schema is None and schema_id is not None) or (schema_id is None and lookup is None):
            raise BadRequest("an AvroCodec needs a schema with its schema_id, or a lookup, or both")
        self._lookup = lookup
        self._id = schema_id
        self._schema = None if schema is None else self._parsed(schema)
        self._kept: dict[int, Any] = {} if schema_id is None else {schema_id: self._schema}

    def encode(self, value: Any, topic: str) -> bytes:
        """Returns the prefix and the value. Raises BadRequest for a value that does not fit the schema."""
        if self._schema is None or self._id is None:
            raise BadRequest(f"this AvroCodec only decodes; to send to {topic}, create it with schema and schema_id")
        body = io.BytesIO(PREFIX.pack(MAGIC, self._id))
        body.seek(PREFIX.size)
        try:
            self._avro.schemaless_writer(body, self._schema, value, strict=True)
        except (*_UNREADABLE, AttributeError) as error:
            raise BadRequest(f"the value for {topic} does not fit the Avro schema {self._id}: {error}") from error
        return body.getvalue()

    def decode(self, body: bytes, topic: str) -> Any:
        """Returns the value. Raises InvalidBody for a body without the prefix, with an id that `lookup` does not
        return, or with bytes that do not fit the schema; and what `lookup` raises.
        """
        if len(body) < PREFIX.size or body[0] != MAGIC:
            raise InvalidBody(
                f"a body of {topic} begins with {body[: PREFIX.size].hex() or 'nothing'}, not with the byte 0 and the "
                "4 bytes of a schema id: it was written without a schema registry"
            )
        _, schema_id = PREFIX.unpack_from(body)
        writer = self._writer(schema_id, topic)
        data = io.BytesIO(body)
        data.seek(PREFIX.size)
        try:
            value = self._avro.schemaless_reader(data, writer, self._schema)
        except (*_UNREADABLE, self._avro.read.SchemaResolutionError) as error:
            raise InvalidBody(f"a body of {topic} does not fit its Avro schema {schema_id}: {error!r:.200}") from error
        if data.tell() != len(body):
            raise InvalidBody(
                f"a body of {topic} has {len(body) - data.tell()} bytes after the value of its Avro schema {schema_id}"
            )
        return value

    def _writer(self, schema_id: int, topic: str) -> Any:
        if schema_id in self._kept:
            return self._kept[schema_id]
        schema = None if self._lookup is None else self._lookup(schema_id)
        if schema is None:
            hint = "no lookup was given" if self._lookup is None else "the lookup does not return it"
            raise InvalidBody(f"a body of {topic} names the Avro schema {schema_id}, which is unknown: {hint}")
        parsed = self._parsed(schema)
        while len(self._kept) >= SCHEMAS_MAX:
            self._kept.pop(next(iter(self._kept)), None)  # other threads may do the same
        self._kept[schema_id] = parsed
        return parsed

    def _parsed(self, schema: Schema) -> Any:
        try:
            return self._avro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
        except (ValueError, self._avro.schema.SchemaParseException, self._avro.schema.UnknownType) as error:
            raise BadRequest(f"the Avro schema {str(schema)!r:.80} is not valid: {error}") from error
