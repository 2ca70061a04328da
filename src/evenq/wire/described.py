"""Protobuf bodies as text, by a descriptor set that a user gives. Pure; called in a worker thread.

Both inputs are hostile. A few bytes of either become many objects, so their sizes are bounded, and the text ends at its
limit while it is written. Nothing is kept: the descriptors are in a pool of their own.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from evenq.errors import BadRequest

DESCRIPTORS_BYTES_MAX = 1 << 20
DESCRIBED_BYTES_MAX = 512 << 10
NAMES_MAX = 20


def described(body: bytes, descriptors: bytes, name: str, *, characters_max: int) -> tuple[str, bool]:
    """Returns the body as text format, at most `characters_max`, and whether that is all of it.

    `descriptors` is a FileDescriptorSet, `name` the full name of a message in it. Raises BadRequest.
    """
    for what, value, most in (
        ("descriptor set", descriptors, DESCRIPTORS_BYTES_MAX),
        ("body", body, DESCRIBED_BYTES_MAX),
    ):
        if len(value) > most:
            raise BadRequest(f"the {what} has {len(value):,} bytes; protobuf is decoded up to {most:,}")
    pool = descriptor_pool.DescriptorPool()
    kind = GetMessageClass(_message_type(pool, descriptors, name.strip().strip(".")))
    try:
        message = kind.FromString(body)
    except (DecodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"the body is not a valid {name}: {error}") from None
    text = _BoundedText(characters_max)
    try:
        text_format.PrintMessage(message, text, as_utf8=True, print_unknown_fields=True, descriptor_pool=pool)
    except _FullError:
        return text.value, False
    except (DecodeError, RecursionError, ValueError, TypeError) as error:
        raise BadRequest(f"the body cannot be shown as {name}: {error}") from None
    return text.value, True


def _message_type(pool: descriptor_pool.DescriptorPool, descriptors: bytes, name: str) -> Any:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except (DecodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"the file is not a FileDescriptorSet: {error}; {_COMMAND}") from None
    if not files:
        raise BadRequest(f"the file is not a FileDescriptorSet: it has no files; {_COMMAND}")
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the descriptor set is not valid: {error}"[:1_000] + f"; {_COMMAND}") from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = [f"{file.package}.{one.name}".strip(".") for file in files for one in file.message_type]
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        raise BadRequest(
            f"the descriptor set has no message {name[:200]!r}; it has {', '.join(names[:NAMES_MAX])[:2_000]}{more}"
        ) from None


_COMMAND = "make it with `protoc --include_imports --descriptor_set_out=FILE`"


class _FullError(Exception):
    pass


class _BoundedText:
    """A text that raises `_FullError` when it is written beyond its limit."""

    def __init__(self, characters_max: int) -> None:
        self._left = characters_max
        self._parts: list[str] = []

    @property
    def value(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        self._parts.append(text[: self._left])
        self._left -= len(text)
        if self._left < 0:
            raise _FullError
