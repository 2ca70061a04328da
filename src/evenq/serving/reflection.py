"""Server reflection (`grpc.reflection.v1` and `v1alpha`, which are equal on the wire), so that grpcurl and others can
call us.

It lists the services that the server serves and answers with descriptors from our private pool. Written by hand: the
published package knows only the default pool and only v1alpha. Access: descriptors are public, they are in our
repository.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from evenq.errors import BadRequest
from evenq.serving.fields import read_fields, write_bytes, write_varint
from evenq.serving.rpc import Access, Action, Bidi, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.pool import POOL

__all__ = ["rpcs"]

NOT_FOUND = 5  # gRPC codes, as the reflection protocol wants them
INVALID_ARGUMENT = 3
UNIMPLEMENTED = 12

FILE_BY_FILENAME = 3  # fields of ServerReflectionRequest
FILE_CONTAINING_SYMBOL = 4
LIST_SERVICES = 7


def rpcs(methods: Sequence[str]) -> list[Rpc]:
    """The reflection calls of a server that serves `methods`."""
    services = sorted({method.split("/")[1] for method in methods} | {"grpc.health.v1.Health"})
    return [
        Rpc(
            method=f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            kind=CallKind.BIDI,
            handler=_handler(services),
            response=bytes,
            access=Access(resource=Resource.NONE, action=Action.DESCRIBE),
        )
        for version in ("v1", "v1alpha")
    ]


def _handler(services: Sequence[str]) -> Bidi:
    async def info(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
        async for request in requests:
            yield answer(request, services)

    return info


def answer(request: bytes, services: Sequence[str]) -> bytes:
    """The encoded ServerReflectionResponse to an encoded ServerReflectionRequest."""
    host, result = b"", b""
    try:
        for number, value in read_fields(request):
            if not isinstance(value, bytes):
                continue
            if number == 1:
                host = value
            elif number == FILE_BY_FILENAME:
                result = _files(POOL.FindFileByName(value.decode()))
            elif number == FILE_CONTAINING_SYMBOL:
                result = _files(_file_with(value.decode()))
            elif number == LIST_SERVICES:
                result = write_bytes(6, b"".join(write_bytes(1, write_bytes(1, name.encode())) for name in services))
    except KeyError as error:
        result = _error(NOT_FOUND, f"not known here: {error}")
    except (BadRequest, UnicodeDecodeError) as error:
        result = _error(INVALID_ARGUMENT, str(error))
    return write_bytes(1, host) + write_bytes(2, request) + (result or _error(UNIMPLEMENTED, "we have no extensions"))


def _file_with(symbol: str) -> Any:
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, _method = symbol.rpartition(".")  # the pool does not know methods by name
        return POOL.FindFileContainingSymbol(service)


def _files(descriptor: Any) -> bytes:
    """The file and all that it imports, each once, imports first."""
    files: dict[str, bytes] = {}

    def add(file: Any) -> None:
        if file.name not in files:
            for needed in file.dependencies:
                add(needed)
            files[file.name] = file.serialized_pb

    add(descriptor)
    return write_bytes(4, b"".join(write_bytes(1, data) for data in files.values()))


def _error(code: int, message: str) -> bytes:
    return write_bytes(7, write_varint(1, code) + write_bytes(2, message.encode()))
