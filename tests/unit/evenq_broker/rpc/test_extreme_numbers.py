"""No number or time that a caller can write into a request leads to an internal error.

Requests come from the descriptors: each integer and each time of each call is set to the ends of its range, the rest is
as a usual caller writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from evenq_proofs.v2_requests import send_request
from google.protobuf.descriptor import FieldDescriptor as Fd
from google.protobuf.message_factory import GetMessageClass

from evenq.errors import Error
from evenq.serving.rpc import CallKind, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2 as own_admin_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, dead_letters_pb2, diagnosis_pb2, groups_pb2, staging_pb2

_WIDE = {Fd.TYPE_INT64, Fd.TYPE_SINT64, Fd.TYPE_SFIXED64}
_NARROW = {Fd.TYPE_INT32, Fd.TYPE_SINT32, Fd.TYPE_SFIXED32}
_FILES = (
    admin_pb2, service_pb2, own_admin_pb2, data_pb2, dead_letters_pb2, diagnosis_pb2, groups_pb2, staging_pb2,
)  # fmt: skip
_TEXTS = {"group": "g", "topic": "t", "client_id": "c", "name": "t", "broker_name": "a"}


def calls() -> dict[str, Any]:
    """The request class of each call, by its full name."""
    found: dict[str, Any] = {}
    for module in _FILES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                found[f"/{service.full_name}/{method.name}"] = GetMessageClass(method.input_type)
    return found


def usual(request: Any, depth: int = 0) -> Any:
    """The request as callers write it: names that exist, each message field present, one of each list."""
    for field in request.DESCRIPTOR.fields:
        value = _TEXTS.get(field.name)
        if field.containing_oneof is not None and field.containing_oneof.fields[0] is not field:
            continue
        if field.message_type is not None and not field.message_type.GetOptions().map_entry and depth < 3:
            inner = getattr(request, field.name)
            usual(inner.add() if field.is_repeated else inner, depth + 1)
            if not field.is_repeated:
                inner.SetInParent()
        elif field.type == Fd.TYPE_STRING and not field.is_repeated and value:
            setattr(request, field.name, "g" if request.DESCRIPTOR.name == "Resource" and depth else value)
    for name, text in (("group", "g"), ("topic", "t")):
        inner = getattr(request, name, None)
        if hasattr(inner, "resource_namespace"):
            inner.name = text
    return request


def extremes(request: Any) -> Iterator[tuple[str, Any]]:
    """Copies of the request, each with one number at an end of its range, and what was set."""

    def walk(message: Any, path: tuple[tuple[str, int], ...]) -> Iterator[tuple[tuple[tuple[str, int], ...], str, int]]:
        for field in message.DESCRIPTOR.fields:
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                inner = getattr(message, field.name)
                if field.is_repeated:
                    for at, one in enumerate(inner):
                        yield from walk(one, (*path, (field.name, at)))
                elif message.HasField(field.name):
                    yield from walk(inner, (*path, (field.name, -1)))
            elif field.type in _WIDE | _NARROW and not field.is_repeated:
                bits = 63 if field.type in _WIDE else 31
                for value in (-1, -(1 << bits), (1 << bits) - 1, 1 << (bits - 1)):
                    yield path, field.name, value

    for path, name, value in list(walk(request, ())):
        made = type(request)()
        made.CopyFrom(request)
        inner = made
        for step, at in path:
            inner = getattr(inner, step)
            inner = inner[at] if at >= 0 else inner
        setattr(inner, name, value)
        yield f"{'.'.join(step for step, _ in path)}.{name}={value}", made


@pytest.mark.parametrize("method", sorted(calls()))
async def test_an_extreme_number_is_refused_or_taken(stage: Any, method: str) -> None:
    broker = await stage.broker(default_start_from="FIRST", default_queues=2)
    send = send_request("t", "id", message_type=definition_pb2.NORMAL)
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    await stage.during(broker.catalog.ensure_group("g"))
    rpcs = {one.method: one for one in broker.rpcs()}
    if method not in rpcs or rpcs[method].kind is CallKind.BIDI:
        return
    rpc = rpcs[method]
    for what, request in extremes(usual(calls()[method]())):
        context = RpcContext(method, [("x-mq-client-id", "c"), ("x-mq-language", "JAVA")], "127.0.0.1:1", 200)
        answer = rpc.handler(request.SerializeToString(), context)

        async def finish(answer: Any = answer) -> None:
            if rpc.kind is CallKind.UNARY:
                await answer
            else:
                async for _ in answer:
                    pass

        try:
            await stage.during(finish())
        except Exception as error:
            if not isinstance(error, Error) or error.code == Error.code:
                raise AssertionError(f"{method} {what}: {error!r}") from error
