"""One name for each topic and group: what guard and handler see, and what the client gets back."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.rpcs import fake_rpc
from google.protobuf.message_factory import GetMessageClass

from evenq.errors import BadRequest
from evenq.serving.auth.namespaces import full_name, resolved
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
ROOT = Path(__file__).parents[5]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (service_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def resources(message: Any) -> Iterator[Any]:
    """Every `Resource` that is set anywhere in a message."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else [value]:
            if field.message_type.full_name == "apache.rocketmq.v2.Resource":
                yield one
            else:
                yield from resources(one)


def filled(kind: Any, namespace: str, name: str, depth: int = 0) -> Any:
    """A message with a `Resource` of this name wherever it can have one."""
    message = kind() if isinstance(kind, type) else GetMessageClass(kind)()
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.message_type.full_name == "apache.rocketmq.v2.Resource":
            inner: Any = definition_pb2.Resource(resource_namespace=namespace, name=name)
        elif field.message_type.full_name.startswith("apache.rocketmq.v2."):
            inner = filled(field.message_type, namespace, name, depth + 1)
            if not any(resources(inner)):
                continue
        else:
            continue
        target = getattr(message, field.name)
        target.add().CopyFrom(inner) if field.is_repeated else target.CopyFrom(inner)
    return message


def context(header: str, method: str = V2 + "SendMessage") -> RpcContext:
    return RpcContext(method, [("x-mq-client-id", "c"), ("x-mq-namespace", header)], "127.0.0.1:1", None)


def rpc(method: str, handler: Any, kind: CallKind = CallKind.UNARY) -> Rpc:
    access = Access(Resource.NONE, Action.DESCRIBE)
    return resolved(fake_rpc(method, handler, definition_pb2.Status, kind=kind, access=access))


def seen_by_handler(method: str, request: bytes, header: str) -> tuple[bytes, RpcContext]:
    """What stands behind the door for one call."""
    seen: list[tuple[bytes, RpcContext]] = []
    result = context(header, method)

    async def once() -> AsyncIterator[bytes]:
        yield request

    async def unary(request: bytes, context: RpcContext) -> bytes:
        seen.append((request, context))
        return b""

    async def stream(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        seen.append((request, context))
        return
        yield b""

    async def bidi(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        async for one in requests:
            seen.append((one, context))
            yield b""

    async def run() -> None:
        descriptor = METHODS[method]
        if descriptor.client_streaming:
            handler: Any = rpc(method, bidi, CallKind.BIDI).handler
            async for _ in handler(once(), result):
                pass
        elif descriptor.server_streaming:
            handler = rpc(method, stream, CallKind.SERVER_STREAM).handler
            async for _ in handler(request, result):
                pass
        else:
            handler = rpc(method, unary).handler
            await handler(request, result)

    asyncio.run(run())
    return seen[0]


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize(
    ("own", "header", "name", "full"),
    [
        ("", "", "orders", "orders"),
        ("", "", "X%orders", "X%orders"),
        ("", "X", "orders", "X%orders"),
        ("X", "", "orders", "X%orders"),
        ("X", "Y", "orders", "X%orders"),
        ("", "X", "Y%orders", "X%Y%orders"),
        ("", "X", "%DLQ%billing", "%DLQ%X%billing"),
        ("X", "", "%RETRY%billing", "%RETRY%X%billing"),
        ("X", "X", "", ""),
    ],
)
def test_behind_the_door_every_name_of_every_call_is_full_and_no_namespace_is_left(
    method: str, own: str, header: str, name: str, full: str
) -> None:
    kind = GetMessageClass(METHODS[method].input_type)
    request = filled(kind, own, name).SerializeToString()
    behind, result = seen_by_handler(method, request, header)
    named = list(resources(kind.FromString(behind)))
    assert {(one.resource_namespace, one.name) for one in named} <= {("", full)}
    assert bool(named) == any(resources(filled(kind, "", "n")))
    assert "x-mq-namespace" not in result.headers
    if result.decoded is not None:
        assert result.decoded[0] is behind
        assert result.decoded[1] == kind.FromString(behind)
    if not own and not header:
        assert behind is request, "without a namespace the bytes pass as they are"
    again, _ = seen_by_handler(method, behind, "")
    assert again is behind, "what is passed on to another broker keeps its meaning"


def test_an_element_with_a_namespace_of_its_own_says_nothing_of_the_next_one() -> None:
    request = service_pb2.SendMessageRequest()
    request.messages.add().topic.CopyFrom(definition_pb2.Resource(resource_namespace="Y", name="orders"))
    request.messages.add().topic.name = "orders"
    behind, _ = seen_by_handler(V2 + "SendMessage", request.SerializeToString(), "")
    response = service_pb2.SendMessageRequest.FromString(behind)
    assert [one.topic.name for one in response.messages] == ["Y%orders", "orders"]


@pytest.mark.parametrize(
    ("header", "own", "read"), [("", "", True), ("X", "", False), ("", "Y", False), ("", "", False)]
)
def test_only_requests_that_name_a_topic_in_full_are_read_without_protobuf(header: str, own: str, read: bool) -> None:
    class Read:
        topic = "orders"

    asked = service_pb2.SendMessageRequest()
    asked.messages.add().topic.CopyFrom(definition_pb2.Resource(resource_namespace=own, name="orders"))
    seen: list[RpcContext] = []

    async def handler(request: bytes, context: RpcContext) -> bytes:
        seen.append(context)
        return b""

    plain = Read() if read or header else None  # a reader takes none that holds a namespace
    access = Access(Resource.NONE, Action.DESCRIBE)
    row = fake_rpc(V2 + "SendMessage", handler, definition_pb2.Status, access=access)
    call: Any = resolved(replace(row, plain=lambda _: plain)).handler
    asyncio.run(call(asked.SerializeToString(), context(header)))
    assert (seen[0].plain is not None) == read
    assert (seen[0].decoded is None) == read


@pytest.mark.parametrize("header", ["", "X"])
@pytest.mark.parametrize("read", [True, False])
def test_a_call_of_evenq_v1_is_read_without_protobuf_whatever_the_header_says(header: str, read: bool) -> None:
    class Read:
        topic = "orders"

    seen: list[RpcContext] = []

    async def handler(request: bytes, context: RpcContext) -> bytes:
        seen.append(context)
        return request

    plain = Read() if read else None
    row = fake_rpc("/evenq.v1.Data/Publish", handler, definition_pb2.Status, plain=lambda _: plain)
    call: Any = resolved(row).handler
    assert asyncio.run(call(b"never decoded: \xff", context(header))) == b"never decoded: \xff"
    assert seen[0].plain is plain


@pytest.mark.parametrize("namespace", ["X%Y", "%", "team.a", " ", "x" * 65, "ü"])
def test_a_namespace_that_could_be_read_in_two_ways_is_refused(namespace: str) -> None:
    with pytest.raises(BadRequest, match="1 to 64 characters"):
        full_name(namespace, "orders")
    assert full_name(namespace, "") == ""


def test_names_of_evenq_v1_are_full_and_the_header_says_nothing_about_them() -> None:
    async def handler(request: bytes, context: RpcContext) -> bytes:
        return request

    row = fake_rpc(
        "/evenq.v1.Data/Publish", handler, definition_pb2.Status, access=Access(Resource.TOPIC, Action.PUBLISH)
    )
    assert resolved(row) is row


@pytest.mark.parametrize(("own", "header"), [("X", "X"), ("", "X"), ("X", ""), ("X", "Y"), ("", "")])
async def test_answers_name_things_as_the_client_did(own: str, header: str) -> None:
    """Wire contract 2.4: C++ and Java compare the Resources of routes, Java those of assignments."""
    given = definition_pb2.Resource(resource_namespace=own, name="orders")

    async def route(request: bytes, context: RpcContext) -> bytes:
        (name,) = {one.name for one in resources(service_pb2.QueryRouteRequest.FromString(request))}
        response = service_pb2.QueryRouteResponse()
        response.message_queues.add(id=1).topic.name = name
        response.message_queues.add(id=2).topic.name = "stranger"
        return response.SerializeToString()

    handler: Any = rpc(V2 + "QueryRoute", route).handler
    request = service_pb2.QueryRouteRequest(topic=given).SerializeToString()
    response = service_pb2.QueryRouteResponse.FromString(await handler(request, context(header)))
    assert [one.topic for one in response.message_queues] == [given, definition_pb2.Resource(name="stranger")]
    assert [one.id for one in response.message_queues] == [1, 2]


@pytest.mark.parametrize(("own", "header"), [("X", "X"), ("", "X"), ("X", ""), ("", "")])
@pytest.mark.parametrize("stored", [("", "X%orders"), ("X", "orders")])
async def test_delivered_messages_name_the_topic_as_the_receive_did(
    own: str, header: str, stored: tuple[str, str]
) -> None:
    """Java sends what it received: an ack under another name would be lost."""
    name = "orders" if own or header else "X%orders"
    given = definition_pb2.Resource(resource_namespace=own, name=name)
    frames = [
        service_pb2.ReceiveMessageResponse(status=definition_pb2.Status(code=definition_pb2.OK)),
        service_pb2.ReceiveMessageResponse(message=definition_pb2.Message(body=b"b" * 300)),
    ]
    frames[1].message.topic.resource_namespace, frames[1].message.topic.name = stored
    frames[1].message.system_properties.message_id = "1"

    async def receive(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame.SerializeToString()

    handler: Any = rpc(V2 + "ReceiveMessage", receive, CallKind.SERVER_STREAM).handler
    request = service_pb2.ReceiveMessageRequest()
    request.message_queue.topic.CopyFrom(given)
    answer = [frame async for frame in handler(request.SerializeToString(), context(header))]
    assert answer[0] == frames[0].SerializeToString()
    message = service_pb2.ReceiveMessageResponse.FromString(answer[1]).message
    if own or header:
        assert message.topic == given
    message.topic.CopyFrom(frames[1].message.topic)
    assert message == frames[1].message


@pytest.mark.parametrize(("own", "header"), [("X", "X"), ("", "X"), ("X", "")])
async def test_a_stream_speaks_its_clients_words_also_unasked(own: str, header: str) -> None:
    """Settings come back as they were; a half message to be checked is of the topic that EndTransaction will name."""
    settings = service_pb2.TelemetryCommand()
    settings.settings.publishing.topics.add(resource_namespace=own, name="orders")
    check = service_pb2.TelemetryCommand()
    check.recover_orphaned_transaction_command.message.topic.name = "X%payments"
    foreign = service_pb2.TelemetryCommand()
    foreign.recover_orphaned_transaction_command.message.topic.name = "Y%payments"

    async def telemetry(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        async for request in requests:
            assert service_pb2.TelemetryCommand.FromString(request).settings.publishing.topics[0].name == "X%orders"
            yield request
        yield check.SerializeToString()
        yield foreign.SerializeToString()

    async def once() -> AsyncIterator[bytes]:
        yield settings.SerializeToString()

    handler: Any = rpc(V2 + "Telemetry", telemetry, CallKind.BIDI).handler
    response = [service_pb2.TelemetryCommand.FromString(one) async for one in handler(once(), context(header))]
    assert response[0] == settings
    topics = [one.recover_orphaned_transaction_command.message.topic for one in response[1:]]
    assert [(one.resource_namespace, one.name) for one in topics] == [("X", "payments"), ("", "Y%payments")]


async def test_a_stream_that_ends_early_ends_its_handler() -> None:
    ended: list[str] = []

    async def stream(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        try:
            yield b"\x0a\x00"
            yield b"\x0a\x00"
        finally:
            ended.append("stream")

    handler: Any = rpc(V2 + "ReceiveMessage", stream, CallKind.SERVER_STREAM).handler
    frames = handler(b"", context("X"))
    await anext(frames)
    await frames.aclose()
    assert ended == ["stream"]


def test_no_other_module_of_a_server_knows_a_namespace() -> None:
    """One place: what reads the header or a Resource's own namespace elsewhere would be a second rule."""
    allowed = {"namespaces.py", "rpc.py"}
    kubernetes = {"api.py", "leases.py", "lease.py"}  # whose namespaces are others
    result = []
    for file in [*(ROOT / "services").rglob("*.py"), *(ROOT / "src/evenq/serving").rglob("*.py")]:
        if file.name in allowed | kubernetes or "evenq_rebalancer/loops" in str(file):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            attribute = isinstance(node, ast.Attribute) and node.attr in {"namespace", "resource_namespace"}
            text = isinstance(node, ast.Constant) and node.value == "x-mq-namespace"
            if attribute or text:
                result.append(f"{file.name}:{node.lineno}")  # type: ignore[attr-defined]  # both have one
    assert [one for one in result if not one.startswith("validation.py")] == []  # which refuses one
