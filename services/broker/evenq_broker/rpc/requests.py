"""Reading a request: bytes in, a message or a clear refusal out. Used by the handlers of `evenq.v1` and of routing."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from evenq.errors import BadRequest

__all__ = ["read"]

M = TypeVar("M", bound=Message)


def read(kind: type[M], request: bytes) -> M:
    """The request as a message of this kind. Raises BadRequest for bytes that are none."""
    try:
        return kind.FromString(request)
    except DecodeError as error:
        raise BadRequest(f"the request of {len(request)} bytes is no {kind.__name__}: {error}") from error
