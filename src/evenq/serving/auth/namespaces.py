"""The one rule that turns what a call names into names of topics and groups, applied before guard and handler.

A v2 `Resource` may carry a namespace, the header `x-mq-namespace` gives one to those that do not (wire contract 2.4),
and the full name is `NAMESPACE%NAME`. The server (`evenq.serving.front.grpc_server`) wraps every call in `resolved`:
the request is decoded once, each `Resource` is replaced by one without a namespace whose name is the full name, and
guard and handler get that request, as bytes and as a message. Requests that a call's own reader (`Rpc.plain`) takes
name one topic in full, and are not decoded. What goes out names things as the client did, because SDKs compare.

Always true: nothing behind the server sees a namespace, so nothing can fall back to the bare name; a resolved request
without the header resolves to itself, so it may be passed on to another server. Requests of `evenq.v1` hold full names
and the header says nothing about them. Where `Resource`s are, in requests and answers, is read from the descriptors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

from google.protobuf.message_factory import GetMessageClass

from evenq.errors import BadRequest
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.fields import write_bytes
from evenq.serving.rpc import Bidi, CallKind, Frames, PlainReader, Rpc, RpcContext, ServerStream, Unary, each_of
from evenq.wire.status import DecodeError
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

__all__ = ["full_name", "resolved"]

NAMESPACE_LENGTH_MAX = 64
_LEGAL = re.compile(rf"[a-zA-Z0-9_-]{{1,{NAMESPACE_LENGTH_MAX}}}\Z")
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)
_RESOURCE = definition_pb2.Resource.DESCRIPTOR.full_name
_OWN = attrgetter("resource_namespace")
_MESSAGE = 2
_MESSAGE_TAG = b"\x12"
"""Number and first byte of the message in a frame of ReceiveMessage and PullMessage."""


def full_name(namespace: str, name: str) -> str:
    """The name by which servers know a topic or group; retry and dead-letter topics are those of the group's full name.

    Raises BadRequest for a namespace that could be read in two ways.
    """
    if not namespace or not name:
        return name
    if not _LEGAL.match(namespace):
        raise BadRequest(
            f"the namespace {namespace[:NAMESPACE_LENGTH_MAX]!r} is not 1 to {NAMESPACE_LENGTH_MAX} characters of "
            "letters, digits, '_' and '-'; '%' parts it from the name"
        )
    for prefix in _OF_GROUPS:
        if name.startswith(prefix):
            return f"{prefix}{namespace}%{name[len(prefix) :]}"
    return f"{namespace}%{name}"


class _Resources:
    """Where the messages of one kind hold `Resource`s."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        paths = list(_paths(kind.DESCRIPTOR))
        single = [".".join(name for name, _ in path) for path in paths if not any(repeated for _, repeated in path)]
        self._single = attrgetter(*single) if single else None
        self._is_one = len(single) == 1
        self._several = [_getter(path) for path in paths if any(repeated for _, repeated in path)]

    def __bool__(self) -> bool:
        return self._single is not None or bool(self._several)

    def of(self, message: Any) -> Sequence[Any]:
        """All of them, those that are not set as empty ones."""
        resources: Sequence[Any] = ()
        if self._single is not None:
            resources = self._single(message)
            if self._is_one:
                resources = (resources,)
        for get in self._several:
            resources = [*resources, *get(message)] if resources else get(message)
        return resources


_Path = Sequence[tuple[str, bool]]
"""Field after field, and which of them are repeated."""


def _paths(descriptor: Any) -> Iterator[_Path]:
    for field in descriptor.fields:
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            continue
        step = field.name, field.is_repeated
        if inner.full_name == _RESOURCE:
            yield (step,)
        else:
            for rest in _paths(inner):
                yield (step, *rest)


def _getter(path: _Path) -> Callable[[Any], list[Any]]:
    at = [repeated for _, repeated in path].index(True) + 1
    each = attrgetter(".".join(name for name, _ in path[:at]))
    rest = path[at:]
    if not rest:
        return lambda message: list(each(message))
    if any(repeated for _, repeated in rest):
        deeper = _getter(rest)
        return lambda message: [resource for one in each(message) for resource in deeper(one)]
    inside = attrgetter(".".join(name for name, _ in rest))

    def get(message: Any) -> list[Any]:
        values = each(message)
        return [inside(values[0])] if len(values) == 1 else list(map(inside, values))  # one is what is sent mostly

    return get


class _ClientNames:
    """How one client names things: full names back into its words."""

    def __init__(self, header: str) -> None:
        self._header = header
        self.namespace = header
        """The one of answers that name what the request did not."""
        self.given: dict[str, tuple[str, str]] = {}
        """Full name -> namespace and name of the request."""

    def resolve(self, resources: Sequence[Any]) -> bool:
        """Make the names full; True if the request is not what it was. Raises BadRequest."""
        changed = False
        given: dict[str, tuple[str, str]] = {}
        for resource in resources:
            own, name = resource.resource_namespace, resource.name
            namespace = own or self._header
            if namespace and name:
                full = resource.name = full_name(namespace, name)
                given[full] = own, name
                changed = True
            if own:
                resource.ClearField("resource_namespace")
                # Without a header the first namespace of the request is the client's; answers that name more are put
                # in its words.
                self.namespace = self.namespace or own
                changed = True
        if given:
            self.given = given
        return changed

    def name(self, resource: Any) -> None:
        """Let a `Resource` of an answer say what the client says."""
        name = resource.name
        if not name or not self.namespace:
            return
        given = self.given.get(name)
        if given is None:
            group = next((prefix for prefix in _OF_GROUPS if name.startswith(prefix)), "")
            inside = f"{group}{self.namespace}%"
            if not name.startswith(inside):
                return
            given = self.namespace, group + name[len(inside) :]
        resource.resource_namespace, resource.name = given


class _Resolver:
    """The names of one call."""

    def __init__(self, request: _Resources, response: _Resources) -> None:
        self._request = request
        self._response = response
        self._parse: Callable[[bytes], Any] = request.kind.FromString
        self._find = request.of

    def read(
        self, request: bytes, context: RpcContext, names: _ClientNames | None = None
    ) -> tuple[bytes, _ClientNames | None]:
        """The request with full names, and the client's words if they are others. Raises BadRequest."""
        try:
            message = self._parse(request)
        except DecodeError as error:
            raise BadRequest(
                f"the request of {len(request)} bytes is no {self._request.kind.__name__}: {error}"
            ) from error
        resources, namespace = self._find(message), context.namespace
        # Most clients use no namespace: their request is handed on as it came, and not encoded again.
        if namespace or any(map(_OWN, resources)):
            names = names or _ClientNames(namespace)
            if names.resolve(resources):
                request = message.SerializeToString()
        context.decoded = request, message, resources
        return request, names

    def unary(self, handler: Unary, plain: PlainReader | None) -> Unary:
        read, answers = self.read, bool(self._response)

        def call(request: bytes, context: RpcContext) -> Awaitable[bytes]:
            # With the header every name in the request is another one, which only the decoded message can tell.
            if plain is not None and not context.namespace:
                context.plain = plain(request)
                if context.plain is not None:
                    return handler(request, context)
            request, names = read(request, context)
            if names is None or not answers:
                return handler(request, context)
            return named(names, request, context)

        async def named(names: _ClientNames, request: bytes, context: RpcContext) -> bytes:
            return self._named_for(await handler(request, context), names)

        return call

    def server_stream(self, handler: ServerStream) -> ServerStream:
        async def frames(request: bytes, context: RpcContext) -> AsyncIterator[Frames]:
            request, names = self.read(request, context)
            topic = _topic_field(context, names)
            response = handler(request, context)
            try:
                async for frame in response:
                    if not topic:
                        yield frame
                    elif isinstance(frame, list):
                        yield [_renamed(one, topic) for one in frame]
                    else:
                        yield _renamed(each_of(frame)[0], topic)
            finally:
                close = getattr(response, "aclose", None)
                if close is not None:
                    await close()

        return frames

    def bidi(self, handler: Bidi) -> Bidi:
        async def frames(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[Frames]:
            names = _ClientNames(context.namespace)

            async def each() -> AsyncIterator[bytes]:
                async for request in requests:
                    yield self.read(request, context, names)[0]

            responses = handler(each(), context)
            try:
                async for frame in responses:
                    yield self._named_for(each_of(frame)[0], names) if names.namespace else frame
            finally:
                close = getattr(responses, "aclose", None)
                if close is not None:
                    await close()

        return frames

    def _named_for(self, response: bytes, names: _ClientNames) -> bytes:
        message = self._response.kind.FromString(response)
        for resource in self._response.of(message):
            names.name(resource)
        encoded: bytes = message.SerializeToString()
        return encoded


def _topic_field(context: RpcContext, names: _ClientNames | None) -> bytes:
    """The field `topic` of messages that come out of the queue the request names, in the client's words."""
    if names is None or context.decoded is None:
        return b""
    full = context.decoded[1].message_queue.topic.name
    namespace, name = names.given.get(full, ("", full))
    # Both fields, also an empty one: this stands behind what is stored, and readers take the later one.
    return write_bytes(1, write_bytes(1, namespace.encode()) + write_bytes(2, name.encode()))


def _renamed(frame: bytes, topic: bytes) -> bytes:
    if not frame.startswith(_MESSAGE_TAG):
        return frame
    start = 1
    while frame[start] > 0x7F:
        start += 1
    return write_bytes(_MESSAGE, frame[start + 1 :] + topic)


def _table() -> Mapping[str, _Resolver]:
    resolvers: dict[str, _Resolver] = {}
    for module in (service_pb2, admin_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                request = _Resources(GetMessageClass(method.input_type))
                response = _Resources(GetMessageClass(method.output_type))
                if request:
                    resolvers[f"/{service.full_name}/{method.name}"] = _Resolver(request, response)
    return resolvers


_RESOLVERS = _table()


def _read_first(handler: Unary, plain: PlainReader) -> Unary:
    def call(request: bytes, context: RpcContext) -> Awaitable[bytes]:
        context.plain = plain(request)
        return handler(request, context)

    return call


def resolved(rpc: Rpc) -> Rpc:
    """The same call for clients that name things in any way; calls without a `Resource` as they are, behind their
    reader if they have one.
    """
    resolver = _RESOLVERS.get(rpc.method)
    if resolver is None:
        return rpc if rpc.plain is None else replace(rpc, handler=_read_first(cast("Unary", rpc.handler), rpc.plain))
    match rpc.kind:
        case CallKind.UNARY:
            return replace(rpc, handler=resolver.unary(cast("Unary", rpc.handler), rpc.plain))
        case CallKind.SERVER_STREAM:
            return replace(rpc, handler=resolver.server_stream(cast("ServerStream", rpc.handler)))
        case CallKind.BIDI:
            return replace(rpc, handler=resolver.bidi(cast("Bidi", rpc.handler)))
