"""Calls and handlers of a server, independent of gRPC.

Handlers take the request's bytes and an `RpcContext`, return (or yield) the response's bytes and raise `evenq.errors`.
The server (`evenq.serving.front.grpc_server`) calls them; another front needs no change in any handler. Each `Rpc` must
have an `Access` row: the field has no default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from evenq.errors import BadRequest
from evenq.model import PLAIN_LISTENER, Listener
from evenq.model.names import text_problem

NAMESPACE = "x-mq-namespace"
ACTS_FOR = "x-evenq-user"  # name of the user whose call a server passes on; accepted from servers only


class Caller(Protocol):
    """A user with grants; `evenq.serving.auth.users.User` is one."""

    @property
    def name(self) -> str:
        """Name in the users file."""

    @property
    def internal(self) -> bool:
        """True for a server of this cluster."""

    def may_topic(self, action: Action, name: str) -> bool:
        """Returns whether the action is allowed on the topic."""


class Plain(Protocol):
    """A request that was read from its bytes, without protobuf. Its reader and its handler share further fields."""

    @property
    def topic(self) -> str:
        """Full name of the one topic that it names; it names nothing else."""


Metadata = Sequence[tuple[str, str | bytes]]


KEPT_HEADERS = frozenset({"x-mq-client-id", "x-mq-language", "x-mq-client-version", ACTS_FOR})
"""Headers that servers keep in their tables as long as the client lives."""


class CallHeaders:
    """Headers in the metadata of a call. A front makes it once for repeated metadata."""

    __slots__ = ("_metadata", "_texts", "namespace", "problem")

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._texts: dict[str, str] | None = None
        self.namespace = self.first(NAMESPACE)
        self.problem = ""  # why the call cannot be served, as a sentence; usually empty
        for key, value in metadata:
            if key in KEPT_HEADERS and isinstance(value, str) and (problem := text_problem(f"the header {key}", value)):
                self.problem = problem

    def first(self, name: str) -> str:
        """Returns `RpcContext.header`."""
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
    """Headers that many calls share, plus those of one call under other names."""

    __slots__ = ("_common",)

    def __init__(self, common: CallHeaders, metadata: Metadata) -> None:
        self._common = common
        super().__init__(metadata)
        self.namespace = common.namespace
        self.problem = self.problem or common.problem

    def first(self, name: str) -> str:
        return super().first(name) or self._common.first(name)

    def _read_texts(self) -> dict[str, str]:
        return {**self._common.texts, **super()._read_texts()}


class RpcContext:
    """Facts about one call beside its request."""

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
    """Set by a stream's handler after its last message, to be notified if its caller did not take the whole answer. It
    is then called once, maybe minutes later, from the loop; never if the connection ends. Only our own HTTP/2 calls it.
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
        self.peer = peer  # `host:port` of the caller, for logs and the member tables
        self.deadline_ms = deadline_ms
        """Monotonic ms (of the server's Clock) at which the caller stops waiting; None: it waits without a limit."""
        self.decoded: tuple[bytes, Any, Any] | None = None
        """A request of this call with full names, the same as a message, and its `Resource`s, for later use
        (`evenq.serving.auth.namespaces`).
        """
        self.plain: Plain | None = None  # the request if `Rpc.plain` could read it; then `decoded` is None
        self.caller: Caller | None = None
        """User whose grants limit the call; None: no user, every name may be shown."""
        self.refused: frozenset[tuple[str, str]] = frozenset()
        """(`topic` or `group`, full name): names in a request that have no grant. Only telemetry, sessions and locks
        get such requests; they answer and leave the names out.
        """
        self.listener = listener  # listener of the call: the caller can reach addresses of the same listener
        self._head = metadata if isinstance(metadata, CallHeaders) else CallHeaders(metadata)

    def must_be_legal(self) -> None:
        """Raises BadRequest for headers that are too long to be kept, or not printable."""
        if self._head.problem:
            raise BadRequest(self._head.problem)

    @property
    def headers(self) -> dict[str, str]:
        """Request metadata with lower-case names, without binary values and the namespace. Must not be changed: other
        calls may share it.
        """
        return self._head.texts

    def header(self, name: str) -> str:
        """Returns one header by its lower-case name, or empty. Cheaper than `headers` if nothing else needs them."""
        return self._head.first(name)

    @property
    def host(self) -> str:
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
        """`x-mq-namespace`, or empty. Only for `evenq.serving.auth.namespaces`: guard and handlers get full names."""
        return self._head.namespace

    def may_topic(self, action: Action, topic: str) -> bool:
        """Returns whether the caller may do this to the topic (full name), for names that no request contained."""
        return self.caller is None or self.caller.may_topic(action, topic)


class CallKind(StrEnum):
    """Directions of streaming."""

    UNARY = "unary"
    SERVER_STREAM = "server_stream"
    BIDI = "bidi"


class Resource(StrEnum):
    """Resource of a call, for the access decision."""

    TOPIC = "topic"
    GROUP = "group"
    TOPIC_AND_GROUP = "topic_and_group"
    CLUSTER = "cluster"
    CLIENT = "client"
    BROKER = "broker"
    NONE = "none"


class Action(StrEnum):
    """Action of a call on its resource."""

    PUBLISH = "publish"
    CONSUME = "consume"
    REPLY = "reply"
    """Read messages of one tag that only its owner has, as clients that wait for replies do."""
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
    audited: bool = False
    """True: an allowed call is in the audit log whatever its action."""


PlainReader = Callable[[bytes], Plain | None]
Unary = Callable[[bytes, RpcContext], Awaitable[bytes]]


class MessagePieces(NamedTuple):
    """One message of an answer in several pieces, which need not be joined."""

    parts: list[bytes | memoryview]
    """Not changed by readers; their maker detects when they are no longer used."""

    def whole(self) -> bytes:
        return b"".join(self.parts)


Frames = bytes | list[bytes] | MessagePieces
"""One message of an answer, or a list of several that leave in one piece: it is taken whole or not at all."""
ServerStream = Callable[[bytes, RpcContext], AsyncIterator[Frames]]
Bidi = Callable[[AsyncIterator[bytes], RpcContext], AsyncIterator[Frames]]


def each_of(frames: Frames) -> Sequence[bytes]:
    """Returns the messages one by one."""
    if isinstance(frames, MessagePieces):
        return (frames.whole(),)
    return (frames,) if isinstance(frames, bytes) else frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """One call of a server."""

    method: str
    """`/package.Service/Rpc`."""
    kind: CallKind
    handler: Unary | ServerStream | Bidi
    response: type[Any]
    """Generated class of the response; its `status` field, if any, carries an `evenq.errors.Error` to the caller."""
    access: Access
    anybody: bool = False
    """True: served without credentials, as health and reflection."""
    plain: PlainReader | None = None
    """Reads usual requests of a unary call without protobuf, if they name one topic in full; None for all others. The
    handler gets the result in its context.
    """
