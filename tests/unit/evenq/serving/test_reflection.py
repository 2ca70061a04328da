"""Reflection, read back with the published messages: ours are written by hand."""

import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2

from evenq.errors import BadRequest
from evenq.serving.fields import read_fields, write_bytes, write_varint
from evenq.serving.reflection import answer

SERVICES = ["evenq.v1.Registry", "grpc.health.v1.Health"]


def ask(**fields: str) -> reflection_pb2.ServerReflectionResponse:
    request = reflection_pb2.ServerReflectionRequest(host="h", **fields)
    response = reflection_pb2.ServerReflectionResponse.FromString(answer(request.SerializeToString(), SERVICES))
    assert response.original_request == request
    assert response.valid_host == "h"
    return response


def files(response: reflection_pb2.ServerReflectionResponse) -> list[descriptor_pb2.FileDescriptorProto]:
    data = response.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(one) for one in data]


def test_services_are_listed() -> None:
    assert [service.name for service in ask(list_services="*").list_services_response.service] == SERVICES


@pytest.mark.parametrize("symbol", ["evenq.v1.Registry", "evenq.v1.Registry.Register", "evenq.v1.RouteEvent"])
def test_a_symbol_brings_its_file_and_all_that_it_imports_first(symbol: str) -> None:
    found = files(ask(file_containing_symbol=symbol))
    names = [file.name for file in found]
    assert names[-1] == "evenq/v1/registry.proto"
    assert len(set(names)) == len(names)
    for at, file in enumerate(found):
        assert set(file.dependency) <= set(names[:at])


def test_a_file_is_found_by_its_name() -> None:
    found = files(ask(file_by_filename="apache/rocketmq/v2/service.proto"))
    assert found[-1].name == "apache/rocketmq/v2/service.proto"


def test_what_is_not_known_is_told() -> None:
    assert ask(file_containing_symbol="no.Such").error_response.error_code == 5
    assert ask(all_extension_numbers_of_type="evenq.v1.RouteEvent").error_response.error_code == 12


def test_fields_are_read_as_written_and_rubbish_is_refused() -> None:
    data = write_varint(1, 300) + write_bytes(2, b"x" * 200) + b"\x1d\0\0\0\0"
    assert list(read_fields(data)) == [(1, 300), (2, b"x" * 200)]
    for rubbish in (b"\x0a\x05ab", b"\xff", b"\xff" * 20, b"\x0b"):
        with pytest.raises(BadRequest):
            list(read_fields(rubbish))
