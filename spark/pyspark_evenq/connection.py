"""Calls with encoded bytes, from processes that Spark forks.

Called by `cluster`. Single calls go over grpc: a channel does not survive a fork, so channels are made on first use and
kept per process id. Streams, which are what workers do all day, go over sockets of our own; one that is over serves the
next call of its task, of either kind, and ends with the task. Failures come out as `evenq.errors`: ConnectionFailed
(no broker answered), RequestTimeout, Unauthorized, PayloadTooLarge or InternalError. grpc is imported by the first call
that needs it, never by the module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, NoReturn

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.runtime.version import __version__
from evenq.wire.addresses import BROKER_HEADER, meant_broker

if TYPE_CHECKING:
    import grpc

    from evenq.wire.blocking_stream import StreamSocket
    from evenq.wire.credentials import Credentials
    from evenq.wire.http2.frames import EncodedHeaders
    from evenq.wire.signed_net import Signer
    from evenq.wire.tls import Tls
    from evenq.wire.tls_channels import TlsChannels

__all__ = ["CLIENT_ID", "client_id", "end_streams", "secure_with", "sign_with", "stream", "unary"]

CLIENT_ID = "x-mq-client-id"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a broker that restarts is found within a second
    ("grpc.enable_http_proxy", 0),
)
_METADATA = (
    ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), ("x-mq-client-version", __version__),
)  # fmt: skip
_READS = ("x-evenq-role", "reader")
CLOCKS_DIFFER_MS = 50
_monotonic_ms = SystemClock().monotonic_ms

_channels: dict[tuple[int, str, Tls | None, int], grpc.Channel] = {}
"""By process, address, how TLS is spoken (None: not at all) and version of its files."""
_idle: dict[str, tuple[int, StreamSocket]] = {}
"""Connections of streams between two calls of a task, by address, each with its process: one for each."""
_tls: TlsChannels | None = None
_lock = threading.Lock()
_signer: Signer | None = None


def client_id(role: str) -> str:
    """The name under which this process shows up in the brokers' logs and lists."""
    return f"{os.uname().nodename}@{os.getpid()}@spark-{role}"


def sign_with(credentials: Credentials | None) -> None:
    """Sign the calls of this process from now on, or do not. Spark gives a process one task or one stream at a time,
    so each says at its beginning who it is.
    """
    global _signer  # noqa: PLW0603  one per process, as the channels are
    if credentials is None:
        _signer = None
        return
    from evenq.wire.signed_net import Signer

    _signer = Signer.of(credentials, SystemClock())


def secure_with(tls: Tls | None) -> None:
    """Speak TLS from now on, or plain text; used as `sign_with`. Raises SettingsError for files that make no sense."""
    global _tls  # noqa: PLW0603  as above
    if tls is None:
        _tls = None
    elif _tls is None or _tls.tls != tls:
        from evenq.wire.tls_channels import TlsChannels

        _tls = TlsChannels(tls, now_ms=SystemClock().monotonic_ms)


def unary(endpoint: str, method: str, request: bytes, *, timeout_ms: int, writes: bool = False) -> bytes:
    """One request, one answer. `method` is `/package.Service/Rpc`. `writes`: a topic that its first message makes may
    be reported as if it were there.
    """
    # A worker that reads has a socket already; one more call over it spares the process grpc.
    kept = None if writes else _kept(endpoint)
    if kept is not None:
        _keep(endpoint, kept)
        return b"".join(bytes(response) for response in stream(endpoint, method, request, timeout_ms=timeout_ms))
    import grpc

    endpoint, broker_name = meant_broker(endpoint)
    call = _channel(endpoint).unary_unary(method, None, None)
    try:
        response: bytes = call(request, timeout=timeout_ms / 1000, metadata=_metadata(broker_name, writes=writes))
    except grpc.RpcError as failure:
        _raise(endpoint, failure)
    return response


def stream(endpoint: str, method: str, request: bytes, *, timeout_ms: int) -> Generator[memoryview, None, None]:
    """One request, many answers, each to be looked at until the next one is asked for. Closing the iterator ends the
    call. Over a socket, not over grpc: no thread of its own, and a third of the CPU (decision 49).
    """
    from evenq.wire.blocking_socket import Lost
    from evenq.wire.http2.codes import ConnectionFault

    connection, until_ms = _stream_socket(endpoint, timeout_ms), _monotonic_ms() + timeout_ms
    headers = _headers(endpoint, method, timeout_ms, encrypted=connection.version >= 0)
    try:
        yield from connection.messages(headers, request, timeout_ms=timeout_ms, until_ms=until_ms)
    except TimeoutError:
        raise errors.RequestTimeout(f"{endpoint}: no answer to {method} within {timeout_ms} ms") from None
    except (Lost, ConnectionFault) as failure:
        raise _unreachable(endpoint, failure) from failure
    finally:
        core = connection.core
        if core.running or core.status or core.leaving or not _keep(endpoint, connection):
            connection.give_up()
    if core.status:
        raise _error(endpoint, core.status, core.details, is_late=_monotonic_ms() >= until_ms - CLOCKS_DIFFER_MS)


def end_streams() -> None:
    """Close the connections of streams that are over; to be called at the end of a task. What is called in between at
    the same address goes over them.
    """
    with _lock:
        idle = list(_idle.values())
        _idle.clear()
    for _, connection in idle:
        connection.close()


def _keep(endpoint: str, connection: StreamSocket) -> bool:
    """For the next call of the task; False: there is one already."""
    with _lock:
        return _idle.setdefault(endpoint, (os.getpid(), connection))[1] is connection


def _kept(endpoint: str) -> StreamSocket | None:
    """One that stands and is as a new one would be."""
    alone, _ = meant_broker(endpoint)
    tls = _tls_for(alone)
    with _lock:
        pid, connection = _idle.pop(endpoint, (0, None))
    if connection is None or pid != os.getpid():
        return None
    if connection.version == (-1 if tls is None else tls.version) and connection.is_fresh():
        return connection
    connection.close()
    return None


def _stream_socket(endpoint: str, timeout_ms: int) -> StreamSocket:
    from evenq.wire.addresses import target_of
    from evenq.wire.blocking_socket import Unreachable
    from evenq.wire.blocking_stream import StreamSocket

    kept = _kept(endpoint)
    if kept is not None:
        return kept
    alone, _ = meant_broker(endpoint)
    target, tls = target_of(alone).target, _tls_for(alone)
    try:
        secure = None if tls is None else tls.secure_socket(target)
    except OSError as error:  # with tlsInsecure it asks the server for its certificate
        raise _no_certificate(target, error) from error
    try:
        return StreamSocket.open(target, secure, until_ms=_monotonic_ms() + timeout_ms)
    except Unreachable as failure:
        if failure.listens and (trouble := _explained(alone)):
            raise errors.TlsFailed(trouble) from failure
        raise _unreachable(alone, failure) from failure


def _headers(endpoint: str, method: str, timeout_ms: int, *, encrypted: bool) -> EncodedHeaders:
    from evenq.wire.addresses import target_of
    from evenq.wire.http2.answers import request_headers

    alone, broker_name = meant_broker(endpoint)
    return request_headers(
        method, scheme="https" if encrypted else "http", authority=target_of(alone).target, timeout_ms=timeout_ms,
        metadata=_metadata(broker_name),
    )  # fmt: skip


def _metadata(broker_name: str = "", *, writes: bool = False) -> tuple[tuple[str, str], ...]:
    signer = _signer
    signed = () if signer is None else tuple(signer.headers().items())
    meant = ((BROKER_HEADER, broker_name),) if broker_name else ()
    role = () if writes else (_READS,)
    return ((CLIENT_ID, client_id("writer" if writes else "reader")), *_METADATA, *role, *meant, *signed)


def _channel(endpoint: str) -> grpc.Channel:
    import grpc

    from evenq.wire.addresses import target_of

    target, _ = target_of(endpoint)
    with _lock:
        tls = _tls_for(endpoint)
        key = (os.getpid(), endpoint, None if tls is None else tls.tls, 0 if tls is None else tls.version)
        channel = _channels.get(key)
        if channel is None:
            for stale in [known for known in _channels if known[0] != key[0]]:
                del _channels[stale]  # the parent's: not ours to close
            if tls is None:
                channel = grpc.insecure_channel(target, options=_OPTIONS)
            else:
                for stale in [known for known in _channels if known[1:3] == key[1:3] and known[3] < key[3] - 1]:
                    del _channels[stale]  # of files before those before; what ran over it has long ended
                try:
                    credentials, more, _ = tls.secure(target)
                except OSError as error:  # with tlsInsecure it asks the server for its certificate
                    raise _no_certificate(target, error) from error
                channel = grpc.secure_channel(target, credentials, options=[*_OPTIONS, *more])
            _channels[key] = channel
        return channel


def _tls_for(endpoint: str) -> TlsChannels | None:
    """How TLS is spoken with an endpoint; None: it is not."""
    from evenq.wire.addresses import target_of

    scheme = target_of(endpoint).tls
    if not (scheme or (scheme is None and _tls is not None)):
        return None
    if _tls is None:
        from evenq.wire.tls import Tls

        secure_with(Tls())
    return _tls


def _unreachable(endpoint: str, failure: object) -> errors.ConnectionFailed:
    return errors.ConnectionFailed(f"{endpoint}: {failure}; is a broker running there?")


def _no_certificate(target: str, error: OSError) -> errors.ConnectionFailed:
    return errors.ConnectionFailed(
        f"no certificate can be fetched from {target}: {error}; is a broker running there, with TLS?"
    )


def _explained(endpoint: str) -> str:
    """What is wrong with TLS at the endpoint, where something listens; empty if nothing is."""
    from evenq.wire.addresses import target_of
    from evenq.wire.tls_diagnosis import explain
    from pyspark_evenq.options import HINTS

    target, scheme = target_of(endpoint)
    tls = _tls if scheme is not False else None
    if tls is not None and tls.tls.insecure:  # the server may show another certificate than the one that is pinned
        tls.forget(target)
        with _lock:
            _channels.pop((os.getpid(), endpoint, tls.tls, tls.version), None)
    return explain(target, None if tls is None else tls.files, HINTS)


def _raise(endpoint: str, failure: grpc.RpcError) -> NoReturn:
    from evenq.wire.addresses import target_of
    from evenq.wire.tls_diagnosis import worth_asking

    code, details = failure.code().value[0], failure.details() or ""
    known = _error(endpoint, code, details)
    if isinstance(known, errors.ConnectionFailed) and worth_asking(details, target_of(endpoint).target):
        trouble = _explained(endpoint)
        if trouble:
            raise errors.TlsFailed(trouble) from failure
    raise known from failure


def _error(endpoint: str, code: int, details: str, *, is_late: bool = False) -> errors.Error:
    """What gRPC's status means."""
    from evenq.wire.http2.codes import Status

    name = next((known.name for known in Status if known == code), str(code))
    kinds: dict[int, type[errors.Error]] = {
        Status.DEADLINE_EXCEEDED: errors.RequestTimeout,
        Status.UNAUTHENTICATED: errors.Unauthorized,
        Status.PERMISSION_DENIED: errors.Forbidden,
        Status.UNIMPLEMENTED: errors.NotImplementedYet,
        Status.RESOURCE_EXHAUSTED: errors.TooManyRequests,
        Status.INTERNAL: errors.InternalError,
        Status.UNKNOWN: errors.InternalError,
    }
    if is_late and code == Status.CANCELLED:  # the server's clock was a little faster
        code = Status.DEADLINE_EXCEEDED
    kind = kinds.get(code, errors.ConnectionFailed)
    if kind is errors.InternalError and details.startswith("RST_STREAM"):
        kind = errors.ConnectionFailed  # the transport's, not the handler's
    if kind is errors.ConnectionFailed:
        return _unreachable(endpoint, details or name)
    return kind(f"{endpoint}: {details or name}")
