"""JSON bodies, UTF-8, for values of dicts, lists, texts, numbers, booleans and None."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from evenq.errors import BadRequest, InvalidBody


class JsonCodec:
    """Codec of JSON. `decode` returns what `json.loads` returns; NaN and Infinity, which JSON lacks, are refused."""

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
