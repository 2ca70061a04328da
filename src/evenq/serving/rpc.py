"""What a handler is, without any word of gRPC.

Handlers take the request's bytes and an `RpcContext`, return (or yield) the response's bytes and raise `evenq.errors`.
The server (`evenq.serving.front.grpc_server`) calls them; another front could, without a change in any handler. Every
call has an `Access` row from the first day: an `Rpc` cannot be made without one, because the field has no default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from evenq.errors import BadRequest
from evenq.model import PLAIN_LISTENER, Listener
from evenq.model.names import text_problem

__all__ = [
    "ACTS_FOR",
    "KEPT_HEADERS",
    "Access",
    "Action",
    "Bidi",
    "CallHeaders",
    "CallKind",
    "Caller",
    "Frames",
    "MessagePieces",
    "MoreHeaders",
    "Plain",
    "PlainReader",
    "Resource",
    "Rpc",
    "RpcContext",
    "ServerStream",
    "Unary",
    "each_of",
]


NAMESPACE = "x-mq-namespace"
ACTS_FOR = "x-evenq-user"
"""Name of the user whose call a server passes on; believed of servers only."""


class Caller(Protocol):
    """A user with grants; `evenq.serving.auth.users.User` is one."""

    @property
    def name(self) -> str:
        """As in the users file."""

    @property
    def internal(self) -> bool:
        """Is it a server of this cluster?"""

    def may_topic(self, action: Action, name: str) -> bool:
        """Is the action allowed on the topic?"""


class Plain(Protocol):
    """A request that was read from its bytes, without protobuf; what more it holds is between its reader and its
    handler.
    """

    @property
    def topic(self) -> str:
        """The full name of the one topic it names. It names nothing else."""


Metadata = Sequence[tuple[str, str | bytes]]


KEPT_HEADERS = frozenset({"x-mq-client-id", "x-mq-language", "x-mq-client-version", ACTS_FOR})
"""Servers keep these in their tables as long as the client lives."""


class CallHeaders:
    """What the metadata of a call tells. A front that gets the same metadata again makes it once."""

    __slots__ = ("_metadata", "_texts", "namespace", "problem")

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._texts: dict[str, str] | None = None
        self.namespace = self.first(NAMESPACE)
        self.problem = ""
        """Why the call cannot be served, as a sentence; empty for nearly all."""
        for key, value in metadata:
            if key in KEPT_HEADERS and isinstance(value, str) and (problem := text_problem(f"the header {key}", value)):
                self.problem = problem

    def first(self, name: str) -> str:
        """`RpcContext.header`."""
        for key, value in self._metadata:
            if key == name:
                return value if isinstance(value, str) else ""
        return ""

    @property
    def texts(self) -> dict[str, str]:
        """`RpcContext.headers`."""
        if self._texts is None:
            self._texts = self._read_texts()
        return self._texts

    def _read_texts(self) -> dict[str, str]:
        return {key: value for key, value in self._metadata if isinstance(value, str) and key != NAMESPACE}


class MoreHeaders(CallHeaders):
    """What many calls share, and what one of them has beside it, under names of its own."""

    __slots__ = ("_common",)

    def __init__(self, common: CallHeaders, metadata: Metadata) -> None:
        self._common = common
        super().__init__(metadata)
        self.namespace = common.namespace
        self.problem = self.problem or common.problem

    def first(self, name: str) -> str:
        """`RpcContext.header`."""
        return super().first(name) or self._common.first(name)

    def _read_texts(self) -> dict[str, str]:
        return {**self._common.texts, **super()._read_texts()}


class RpcContext:
    """What is known about one call beside its request."""

    __slots__ = (
        "_head",
        "caller",
        "deadline_ms",
        "decoded",
        "listener",
        "method",
        "peer",
        "plain",
        "refused",
        "untaken",
    )

    untaken: Callable[[], None]
    """To be set by the handler of a stream, after its last message, if it wants to know that its caller took nothing of
    the whole answer or not all of it: it is called then, once, maybe minutes later, from the loop; never if the
    caller's connection ends. Of our own HTTP/2 alone; of other fronts it is never called. Else it is not set at all.
    """

    def __init__(
        self,
        method: str,
        metadata: Metadata | CallHeaders,
        peer: str,
        deadline_ms: int | None,
        listener: Listener = PLAIN_LISTENER,
    ) -> None:
        self.method = method
        self.peer = peer
        """`host:port` of the caller, for logs and the member tables."""
        self.deadline_ms = deadline_ms
        """Monotonic ms (of the server's Clock) at which the caller stops waiting; None: it waits for ever."""
        self.decoded: tuple[bytes, Any, Any] | None = None
        """A request of this call, with full names, and the same as a message (`evenq.serving.auth.namespaces`); then
        its `Resource`s, because what is still held is not made again.
        """
        self.plain: Plain | None = None
        """The request, where `Rpc.plain` could read it; then `decoded` is None."""
        self.caller: Caller | None = None
        """Whose rights bind the call; None: of no user, every name may be shown."""
        self.refused: frozenset[tuple[str, str]] = frozenset()
        """(`topic` or `group`, full name): what the request of a stream names without a grant for it. Only telemetry's
        requests get to their handler with such names; it answers and leaves them out.
        """
        self.listener = listener
        """The server that the call came through: the caller can reach addresses of such servers."""
        self._head = metadata if isinstance(metadata, CallHeaders) else CallHeaders(metadata)

    def must_be_legal(self) -> None:
        """Raises BadRequest for headers that are too long to be kept, or cannot be shown."""
        if self._head.problem:
            raise BadRequest(self._head.problem)

    @property
    def headers(self) -> dict[str, str]:
        """Request metadata with lower-case names; binary values and the namespace are left out. Not to be changed:
        other calls may share it.
        """
        return self._head.texts

    def header(self, name: str) -> str:
        """One header by its lower-case name, or empty. Cheaper than `headers` where nothing else needs them."""
        return self._head.first(name)

    @property
    def host(self) -> str:
        """The caller's host without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    @property
    def client_id(self) -> str:
        """`x-mq-client-id`, or empty."""
        return self.headers.get("x-mq-client-id", "")

    @property
    def language(self) -> str:
        """`x-mq-language` in upper case: JAVA, GO, CPP, DOTNET, RUST, PYTHON, HTTP (Node.js), or empty."""
        return self.headers.get("x-mq-language", "").upper()

    @property
    def namespace(self) -> str:
        """`x-mq-namespace`, or empty. For `evenq.serving.auth.namespaces` alone: guard and handlers get full names."""
        return self._head.namespace

    def may_topic(self, action: Action, topic: str) -> bool:
        """May the caller do this to the topic of the full name? For what an answer holds and no request named."""
        return self.caller is None or self.caller.may_topic(action, topic)


class CallKind(StrEnum):
    """Who streams."""

    UNARY = "unary"
    SERVER_STREAM = "server_stream"
    BIDI = "bidi"


class Resource(StrEnum):
    """What a call touches, for the access decision."""

    TOPIC = "topic"
    GROUP = "group"
    TOPIC_AND_GROUP = "topic_and_group"
    CLUSTER = "cluster"
    CLIENT = "client"
    BROKER = "broker"
    NONE = "none"


class Action(StrEnum):
    """What a call does to it."""

    PUBLISH = "publish"
    CONSUME = "consume"
    REPLY = "reply"
    """Read messages of one tag that only its owner knows, as a client does that waits for replies."""
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    OPERATE = "operate"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Access:
    """One row of the access table."""

    resource: Resource
    action: Action


PlainReader = Callable[[bytes], Plain | None]
Unary = Callable[[bytes, RpcContext], Awaitable[bytes]]


class MessagePieces(NamedTuple):
    """One message of an answer that lies in several places, so that it need not be put together."""

    parts: list[bytes | memoryview]
    """They are not changed; their maker finds out when they are no longer used."""

    def whole(self) -> bytes:
        """The message, put together."""
        return b"".join(self.parts)


Frames = bytes | list[bytes] | MessagePieces
"""One message of an answer, or several that leave in one piece: a list is taken whole or not at all."""
ServerStream = Callable[[bytes, RpcContext], AsyncIterator[Frames]]
Bidi = Callable[[AsyncIterator[bytes], RpcContext], AsyncIterator[Frames]]


def each_of(frames: Frames) -> Sequence[bytes]:
    """The messages one by one, for those to whom a piece is nothing."""
    if isinstance(frames, MessagePieces):
        return (frames.whole(),)
    return (frames,) if isinstance(frames, bytes) else frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """One call a server answers."""

    method: str
    """`/package.Service/Rpc`."""
    kind: CallKind
    handler: Unary | ServerStream | Bidi
    response: type[Any]
    """Generated class of the response; its `status` field (if it has one) carries an `evenq.errors.Error` back to the
    caller.
    """
    access: Access
    anybody: bool = False
    """Served without credentials to every caller: health and reflection."""
    plain: PlainReader | None = None
    """Reads the usual requests of a unary call without protobuf, those that name a topic in full; None for all others.
    The handler finds what it gave in its context.
    """
