"""Resolution of names in requests to full names of topics and groups, applied before guard and handler.

A v2 `Resource` may contain a namespace; the header `x-mq-namespace` is the default for the others (wire contract 2.4).
The full name is `NAMESPACE%NAME`. The server (`evenq.serving.front.grpc_server`) wraps every call in `resolved`: the
request is decoded once, each `Resource` gets its full name and no namespace, and guard and handler get that request, as
bytes and as a message. Requests that a call's own reader (`Rpc.plain`) accepts name one topic in full and are not
decoded. Answers use the names of the client, because SDKs compare them.

Always true: guard and handlers see no namespace, so nothing can use the bare name by mistake. A resolved request
without the header resolves to itself, so it may be passed on to another server. Requests of `evenq.v1` have full names
and ignore the header. The positions of `Resource`s in requests and answers come from the descriptors.
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
from evenq.runtime.net import close_frames
from evenq.serving.fields import write_bytes
from evenq.serving.rpc import Bidi, CallKind, Frames, PlainReader, Rpc, RpcContext, ServerStream, Unary, each_of
from evenq.wire.status import DecodeError
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2

NAMESPACE_LENGTH_MAX = 64
_LEGAL = re.compile(rf"[a-zA-Z0-9_-]{{1,{NAMESPACE_LENGTH_MAX}}}\Z")
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)
_RESOURCE = definition_pb2.Resource.DESCRIPTOR.full_name
_OWN = attrgetter("resource_namespace")
_MESSAGE = 2
_MESSAGE_TAG = b"\x12"  # number and first byte of the message in a frame of ReceiveMessage and PullMessage


def full_name(namespace: str, name: str) -> str:
    """Returns the full name of a topic or group; for retry and dead-letter topics by the full name of the group.

    Raises BadRequest for an ambiguous namespace.
    """
    if not namespace or not name:
        return name
    if not _LEGAL.match(namespace):
        raise BadRequest(
            f"the namespace {namespace[:NAMESPACE_LENGTH_MAX]!r} is not 1 to {NAMESPACE_LENGTH_MAX} characters of "
            "letters, digits, '_' and '-'; '%' separates it from the name"
        )
    for prefix in _OF_GROUPS:
        if name.startswith(prefix):
            return f"{prefix}{namespace}%{name[len(prefix) :]}"
    return f"{namespace}%{name}"


class _Resources:
    """Positions of `Resource`s in the messages of one kind."""

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
        """Returns all of them; those that are not set are empty ones."""
        resources: Sequence[Any] = ()
        if self._single is not None:
            resources = self._single(message)
            if self._is_one:
                resources = (resources,)
        for get in self._several:
            resources = [*resources, *get(message)] if resources else get(message)
        return resources


_Path = Sequence[tuple[str, bool]]  # field after field, with whether it is repeated


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
        return [inside(values[0])] if len(values) == 1 else list(map(inside, values))  # usually one is sent

    return get


class _ClientNames:
    """Names of one client, to replace full names in answers."""

    def __init__(self, header: str) -> None:
        self._header = header
        self.namespace = header  # for names in answers that the request did not have
        self.given: dict[str, tuple[str, str]] = {}  # by full name: namespace and name of the request

    def resolve(self, resources: Sequence[Any]) -> bool:
        """Replaces the names by full names; returns whether the request changed. Raises BadRequest."""
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
                # Without a header the first namespace of the request is the client's, also for other names of answers.
                self.namespace = self.namespace or own
                changed = True
        if given:
            self.given = given
        return changed

    def name(self, resource: Any) -> None:
        """Replaces the full name in a `Resource` of an answer by the client's name."""
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
    """Resolver of one call's names."""

    def __init__(self, request: _Resources, response: _Resources) -> None:
        self._request = request
        self._response = response
        self._parse: Callable[[bytes], Any] = request.kind.FromString
        self._find = request.of

    def read(
        self, request: bytes, context: RpcContext, names: _ClientNames | None = None
    ) -> tuple[bytes, _ClientNames | None]:
        """Returns the request with full names, and the client's names if they differ. Raises BadRequest."""
        try:
            message = self._parse(request)
        except DecodeError as error:
            raise BadRequest(
                f"the request of {len(request)} bytes is not a {self._request.kind.__name__}: {error}"
            ) from error
        resources, namespace = self._find(message), context.namespace
        # Most clients use no namespace: their request is passed on unchanged and not encoded again.
        if namespace or any(map(_OWN, resources)):
            names = names or _ClientNames(namespace)
            if names.resolve(resources):
                request = message.SerializeToString()
        context.decoded = request, message, resources
        return request, names

    def unary(self, handler: Unary, plain: PlainReader | None) -> Unary:
        read, answers = self.read, bool(self._response)

        def call(request: bytes, context: RpcContext) -> Awaitable[bytes]:
            # With the header every name in the request changes, so it must be decoded.
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
                await close_frames(response)

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
                await close_frames(responses)

        return frames

    def _named_for(self, response: bytes, names: _ClientNames) -> bytes:
        message = self._response.kind.FromString(response)
        for resource in self._response.of(message):
            names.name(resource)
        encoded: bytes = message.SerializeToString()
        return encoded


def _topic_field(context: RpcContext, names: _ClientNames | None) -> bytes:
    """Returns the field `topic`, with the client's names, for messages of the queue that the request names."""
    if names is None or context.decoded is None:
        return b""
    full = context.decoded[1].message_queue.topic.name
    namespace, name = names.given.get(full, ("", full))
    # Both fields, also an empty one: this follows the stored bytes, and readers use the later value.
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
    """Returns the same call for clients with any namespaces. Calls without a `Resource` stay as they are, after their
    own reader if they have one.
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
