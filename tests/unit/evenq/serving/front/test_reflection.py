"""Reflection, read back with the published messages: ours are written by hand."""

import asyncio
import gc
import tracemalloc

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from evenq.errors import BadRequest
from evenq.runtime.clock import SystemClock
from evenq.serving.fields import read_fields, write_bytes, write_varint
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.front.reflection import REQUEST_BYTES_MAX, _listed, answer
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.http2.protocol import Http2Protocol
from evenq.wire.http2 import frames as f
from evenq.wire.http2.hpack import encode
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as _service_pb2  # noqa: F401  the pool knows what was imported
from evenq.wire.stubs.evenq.v1 import registry_pb2 as _registry_pb2  # noqa: F401

SERVICES = ["evenq.v1.Registry", "grpc.health.v1.Health"]


def ask(**fields: str) -> reflection_pb2.ServerReflectionResponse:
    request = reflection_pb2.ServerReflectionRequest(host="h", **fields)
    answered = answer(request.SerializeToString(), _listed(SERVICES)).whole()
    response = reflection_pb2.ServerReflectionResponse.FromString(answered)
    assert response.original_request == request
    assert response.valid_host == "h"
    return response


def files(response: reflection_pb2.ServerReflectionResponse) -> list[descriptor_pb2.FileDescriptorProto]:
    data = response.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(one) for one in data]


def test_services_are_listed() -> None:
    assert [service.name for service in ask(list_services="*").list_services_response.service] == SERVICES


@pytest.mark.parametrize("symbol", ["evenq.v1.Registry", "evenq.v1.Registry.Register", "evenq.v1.RouteEvent"])
def test_a_symbol_brings_its_file_first_and_all_that_it_imports(symbol: str) -> None:
    found = files(ask(file_containing_symbol=symbol))
    names = [file.name for file in found]
    assert names[0] == "evenq/v1/registry.proto"
    assert len(set(names)) == len(names)
    for file in found:
        assert set(file.dependency) <= set(names)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_that_is_listed_is_described(service: str) -> None:
    [file, *_] = files(ask(file_containing_symbol=service))
    assert service in [f"{file.package}.{one.name}" for one in file.service]


def test_a_file_is_found_by_its_name() -> None:
    result = files(ask(file_by_filename="apache/rocketmq/v2/service.proto"))
    assert result[0].name == "apache/rocketmq/v2/service.proto"


def test_answers_share_what_they_have_in_common() -> None:
    one, other = (answer(write_bytes(field, name), b"") for field, name in (
        (3, b"evenq/v1/registry.proto"), (4, b"evenq.v1.Registry")
    ))  # fmt: skip
    assert one.parts[1] is other.parts[1]
    assert len(one.parts[1]) > 100 * len(one.parts[0])


def test_a_request_that_is_too_long_to_be_repeated_is_refused() -> None:
    refused = answer(write_bytes(3, bytes(REQUEST_BYTES_MAX)), b"").whole()
    error = reflection_pb2.ServerReflectionResponse.FromString(refused).error_response
    assert error.error_code == 3
    assert f"more than {REQUEST_BYTES_MAX}" in error.error_message


def test_what_is_not_known_is_told() -> None:
    assert ask(file_containing_symbol="no.Such").error_response.error_code == 5
    assert ask(all_extension_numbers_of_type="evenq.v1.RouteEvent").error_response.error_code == 12


def test_fields_are_read_as_written_and_rubbish_is_refused() -> None:
    data = write_varint(1, 300) + write_bytes(2, b"x" * 200) + b"\x1d\0\0\0\0"
    assert list(read_fields(data)) == [(1, 300), (2, b"x" * 200)]
    for rubbish in (b"\x0a\x05ab", b"\xff", b"\xff" * 20, b"\x0b"):
        with pytest.raises(BadRequest):
            list(read_fields(rubbish))


class Transport:
    """Takes everything; as much of one as is used."""

    def get_extra_info(self, name: str) -> object:
        return ("10.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...
    def writelines(self, pieces: list[bytes]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


IDLE_BYTES_MAX = 2_300
"""CPython 3.11 takes 1,950."""


async def test_a_stream_that_asks_nothing_costs_little() -> None:
    """Anybody may open thousands of them, and they are not ended."""
    block = encode([
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"h"),
        (b":path", b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ])  # fmt: skip
    count = 2_000
    server = Http2GrpcServer([], clock=SystemClock(), options=GrpcServerOptions())
    await server.start("127.0.0.1", 0)
    protocol = Http2Protocol(server._server)
    loop = asyncio.get_running_loop()

    def begin() -> None:  # as a loop calls protocols, in no task
        protocol.connection_made(Transport())  # type: ignore[arg-type]
        protocol.data_received(f.PREFACE + f.settings({}))

    def fill() -> None:
        for number in range(1, 2 * count, 2):
            protocol.data_received(f.frame(f.HEADERS, f.END_HEADERS, number, block))

    loop.call_soon(begin)
    await SystemClock().sleep_ms(0)
    gc.collect()
    tracemalloc.start()
    try:
        loop.call_soon(fill)
        async with asyncio.timeout(60):
            while server.running < count:
                await SystemClock().sleep_ms(1)
        each = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert len(protocol.core.streams) == count
    protocol.connection_lost(None)
    await server.stop()
    assert each < IDLE_BYTES_MAX
