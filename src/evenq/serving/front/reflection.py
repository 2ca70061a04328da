"""Server reflection (`grpc.reflection.v1` and `v1alpha`, which are equal on the wire), for grpcurl and similar tools.

It lists the services of the server and answers with descriptors from our private pool. Hand-written, because the
published package supports only the default pool and v1alpha. Descriptors need no credentials: they are public.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

from evenq.errors import BadRequest
from evenq.serving.fields import read_fields, write_bytes, write_varint
from evenq.serving.rpc import Access, Action, Bidi, CallKind, MessagePieces, Resource, Rpc, RpcContext
from evenq.wire.stubs.grpc.health.v1 import health_pb2 as _health_pb2  # noqa: F401  imported into the pool
from evenq.wire.stubs.pool import POOL

NOT_FOUND = 5  # gRPC codes, as in the reflection protocol
INVALID_ARGUMENT = 3
UNIMPLEMENTED = 12

FILE_BY_FILENAME = 3  # fields of ServerReflectionRequest
FILE_CONTAINING_SYMBOL = 4
LIST_SERVICES = 7

REQUEST_BYTES_MAX = 4 << 10
"""Longest request that is answered, because the answer repeats it; names of symbols are far shorter."""


def rpcs(methods: Sequence[str]) -> list[Rpc]:
    """Returns the reflection calls of a server that serves `methods`."""
    services = sorted({method.split("/")[1] for method in methods} | {"grpc.health.v1.Health"})
    return [
        Rpc(
            method=f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            kind=CallKind.BIDI,
            handler=_handler(services),
            response=bytes,
            access=Access(resource=Resource.NONE, action=Action.DESCRIBE),
            anybody=True,
        )
        for version in ("v1", "v1alpha")
    ]


def _handler(services: Sequence[str]) -> Bidi:
    listed = _listed(services)

    def info(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[MessagePieces]:
        return _Answers(requests, listed)

    return info


class _Answers:
    """Answers to a stream of requests. Thousands of them may wait, and a generator is twice as large."""

    __slots__ = ("_listed", "_requests")

    def __init__(self, requests: AsyncIterator[bytes], listed: bytes) -> None:
        self._requests, self._listed = requests, listed

    def __aiter__(self) -> AsyncIterator[MessagePieces]:
        return self

    async def __anext__(self) -> MessagePieces:
        return answer(await anext(self._requests), self._listed)


def _listed(services: Sequence[str]) -> bytes:
    return write_bytes(6, b"".join(write_bytes(1, write_bytes(1, name.encode())) for name in services))


def answer(request: bytes, listed: bytes) -> MessagePieces:
    """Returns the encoded ServerReflectionResponse to an encoded ServerReflectionRequest.

    `listed`: the answer to a request for all services. All answers share the descriptors, which have tens of kilobytes.
    """
    if len(request) > REQUEST_BYTES_MAX:
        text = f"the request has {len(request)} bytes, more than {REQUEST_BYTES_MAX}; send one name at a time"
        return MessagePieces([_error(INVALID_ARGUMENT, text)])
    host, result = b"", b""
    try:
        for number, value in read_fields(request):
            if not isinstance(value, bytes):
                continue
            if number == 1:
                host = value
            elif number == FILE_BY_FILENAME:
                result = _files(POOL.FindFileByName(value.decode()).name)
            elif number == FILE_CONTAINING_SYMBOL:
                result = _files(_file_with(value.decode()).name)
            elif number == LIST_SERVICES:
                result = listed
    except KeyError as error:
        result = _error(NOT_FOUND, f"unknown here: {error}")
    except (BadRequest, UnicodeDecodeError) as error:
        result = _error(INVALID_ARGUMENT, str(error))
    begin = write_bytes(1, host) + write_bytes(2, request)
    return MessagePieces([begin, result or _error(UNIMPLEMENTED, "extensions are not supported")])


def _file_with(symbol: str) -> Any:
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, _method = symbol.rpartition(".")  # the pool has no methods by name
        return POOL.FindFileContainingSymbol(service)


@cache  # one entry per file of our pool, about 700 KB in total
def _files(name: str) -> bytes:
    """Returns the file, then all its imports, each once: some clients take the first file for the requested one."""
    files = {name: POOL.FindFileByName(name)}
    unread = [name]
    while unread:
        for needed in files[unread.pop()].dependencies:
            if needed.name not in files:
                files[needed.name] = needed
                unread.append(needed.name)
    return write_bytes(4, b"".join(write_bytes(1, file.serialized_pb) for file in files.values()))


def _error(code: int, message: str) -> bytes:
    return write_bytes(7, write_varint(1, code) + write_bytes(2, message.encode()))
