"""Calls with encoded bytes, from processes that Spark forks.

Called by `cluster`. Single calls use grpc: a channel does not survive a fork, so channels are created on first use and
kept per process id. Streams, the usual calls of workers, use plain sockets. The socket of an ended stream serves the
next call of its task, of either kind, and is closed with the task. Failures are raised as `evenq.errors` (`_error`).
Only the first call that needs grpc imports it.
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

CLIENT_ID = "x-mq-client-id"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # limit of one attempt: handshakes with busy or distant brokers take time
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a broker that restarts is found within a second
    ("grpc.enable_http_proxy", 0),
)
_METADATA = (("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), ("x-mq-client-version", __version__))
_READS = ("x-evenq-role", "reader")
CLOCKS_DIFFER_MS = 50
_monotonic_ms = SystemClock().monotonic_ms

_channels: dict[tuple[int, str, Tls | None, int], grpc.Channel] = {}
"""(process id, address, TLS or None for plain text, version of its files) -> channel."""
_idle: dict[str, tuple[int, StreamSocket]] = {}
"""Address -> (process id, connection) between two calls of a task: at most one for each address."""
_tls: TlsChannels | None = None
_lock = threading.Lock()
_signer: Signer | None = None


def client_id(role: str) -> str:
    """Returns the name of this process in the brokers' logs and lists."""
    return f"{os.uname().nodename}@{os.getpid()}@spark-{role}"


def sign_with(credentials: Credentials | None) -> None:
    """Signs the calls of this process from now on, or not. Each task and stream calls it first."""
    global _signer  # noqa: PLW0603  one per process, as the channels are
    if credentials is None:
        _signer = None
        return
    from evenq.wire.signed_net import Signer

    _signer = Signer.of(credentials, SystemClock())


def secure_with(tls: Tls | None) -> None:
    """Uses TLS from now on, or plain text; called as `sign_with`. Raises SettingsError for files that are not valid."""
    global _tls  # noqa: PLW0603  as above
    if tls is None:
        _tls = None
    elif _tls is None or _tls.tls != tls:
        from evenq.wire.tls_channels import TlsChannels

        _tls = TlsChannels(tls, now_ms=SystemClock().monotonic_ms)


def unary(endpoint: str, method: str, request: bytes, *, timeout_ms: int, writes: bool = False) -> bytes:
    """Sends one request (`/package.Service/Rpc`). `writes`: routes contain topics that the first message creates."""
    # A worker that reads already has a socket; one more call over it avoids the import of grpc.
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
    """Sends one request and yields answers; each view is valid until the next one is requested. Closing the iterator
    ends the call. A socket needs no thread and a third of the CPU of grpc (decision 49).
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
    """Closes the connections of ended streams; called at the end of a task. Until then, other calls reuse them."""
    with _lock:
        idle = list(_idle.values())
        _idle.clear()
    for _, connection in idle:
        connection.close()


def _keep(endpoint: str, connection: StreamSocket) -> bool:
    """Keeps a connection for the next call of the task; False: the address already has one."""
    with _lock:
        return _idle.setdefault(endpoint, (os.getpid(), connection))[1] is connection


def _kept(endpoint: str) -> StreamSocket | None:
    """Returns the kept connection if it is open and equal to a new one: same process, same version of TLS files."""
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
    except OSError as error:  # with tlsInsecure it fetches the server's certificate
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
        method,
        scheme="https" if encrypted else "http",
        authority=target_of(alone).target,
        timeout_ms=timeout_ms,
        metadata=_metadata(broker_name),
    )


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
                del _channels[stale]  # of the parent process, which closes it
            if tls is None:
                channel = grpc.insecure_channel(target, options=_OPTIONS)
            else:
                for stale in [known for known in _channels if known[1:3] == key[1:3] and known[3] < key[3] - 1]:
                    del _channels[stale]  # two versions of the files ago: its calls ended long ago
                try:
                    credentials, more, _ = tls.secure(target)
                except OSError as error:  # with tlsInsecure it fetches the server's certificate
                    raise _no_certificate(target, error) from error
                channel = grpc.secure_channel(target, credentials, options=[*_OPTIONS, *more])
            _channels[key] = channel
        return channel


def _tls_for(endpoint: str) -> TlsChannels | None:
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
    """Returns what is wrong with TLS at an endpoint where a server listens; empty if nothing is."""
    from evenq.wire.addresses import target_of
    from evenq.wire.tls_diagnosis import explain
    from pyspark_evenq.options.source import HINTS

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
        kind = errors.ConnectionFailed  # an error of the transport, not of the handler
    if kind is errors.ConnectionFailed:
        return _unreachable(endpoint, details or name)
    return kind(f"{endpoint}: {details or name}")
