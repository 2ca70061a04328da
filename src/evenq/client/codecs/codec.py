"""The protocol of a codec, from the value of a program to the body of a message and back; and the codec of JSON.

A producer has one as its `encoder`; `evenq.decoded` uses one for the messages of a listener. A codec has no state that
calls change, apart from caches: threads share it.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, Protocol, TypeVar

from evenq.errors import BadRequest, InvalidBody

Value = TypeVar("Value")


class JsonCodec:
    """Codec of JSON in UTF-8: dicts, lists, texts, numbers, booleans and None. `decode` returns what `json.loads`
    returns; NaN and Infinity, which JSON lacks, are refused.
    """

    def encode(self, value: Any, topic: str) -> bytes:
        """Returns the body without spaces. Raises BadRequest for a value that JSON cannot represent."""
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate is a ValueError
            raise BadRequest(f"the value for {topic} cannot be written as JSON: {error}") from error

    def decode(self, body: bytes, topic: str) -> Any:
        """Returns the value. Raises InvalidBody for a body that is not JSON in UTF-8."""
        try:
            return json.loads(body.decode(), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InvalidBody(f"a body of {topic} is not JSON: {error}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


class Codec(Protocol[Value]):
    """Encoder and decoder of bodies."""

    def encode(self, value: Value, topic: str, /) -> bytes:
        """Returns the body. Raises BadRequest for a value that it cannot represent; never called twice per send."""
        ...

    def decode(self, body: bytes, topic: str, /) -> Value:
        """Returns the value. Raises `evenq.errors.InvalidBody` if the body is wrong, and will be wrong next time.

        Any other exception means that decoding is not possible now (a schema registry does not answer): `decoded`
        passes it on as a failure of the listener, and the message is redelivered.
        """
        ...
