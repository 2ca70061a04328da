"""JSON bodies that pydantic checks: models, dataclasses, TypedDicts, and every other type that it knows.

Needs the package pydantic (2.10 or newer), which is imported when a codec is created.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from evenq.errors import BadRequest, InvalidBody, Unsupported

Value = TypeVar("Value")


class PydanticCodec(Generic[Value]):
    """Codec of one type, for example `PydanticCodec(Order)` or `PydanticCodec(list[Order])`."""

    def __init__(self, kind: type[Value]) -> None:
        """Raises Unsupported without pydantic, BadRequest for a type that pydantic does not support."""
        try:
            from pydantic import TypeAdapter
            from pydantic.errors import PydanticUserError
        except ModuleNotFoundError as error:
            raise Unsupported("PydanticCodec needs the package pydantic: pip install pydantic") from error
        try:
            self._adapter = TypeAdapter(kind)
        except PydanticUserError as error:
            raise BadRequest(f"pydantic does not support {kind!r:.80}: {error.message}") from error
        self._name = getattr(kind, "__name__", repr(kind))

    def encode(self, value: Value, topic: str) -> bytes:
        """Returns the body, by alias. Raises BadRequest for a value that does not fit the type."""
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            checked = self._adapter.validate_python(value)
            return self._adapter.dump_json(checked, by_alias=True)
        except ValidationError as error:
            raise BadRequest(f"the value for {topic} is not a valid {self._name}: {_text(error)}") from error
        except PydanticSerializationError as error:
            raise BadRequest(f"the value for {topic} cannot be written as JSON: {error}") from error

    def decode(self, body: bytes, topic: str) -> Value:
        """Returns the value. Raises InvalidBody for a body that does not fit the type."""
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            raise InvalidBody(f"a body of {topic} is not a valid {self._name}: {_text(error)}") from error


def _text(error: object) -> str:
    """Returns place and problem of the first errors, without values: they may be secrets."""
    from pydantic import ValidationError

    assert isinstance(error, ValidationError)
    found = error.errors(include_url=False, include_input=False)
    texts = [f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}" for one in found[:3]]
    return "; ".join(texts) + (f" (and {len(found) - 3} more)" if len(found) > 3 else "")
