"""gRPC calls with encoded bytes, from processes that Spark forks.

Called by `cluster`. A channel does not survive a fork, so channels are made on first use and kept per process id; a
worker that Spark reuses keeps them over tasks and batches. Failures come out as `evenq.errors`: ConnectionFailed
(nobody answered), RequestTimeout, Unauthorized, PayloadTooLarge or InternalError. grpc is imported by the first call,
never by the module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from evenq import __version__, errors
from evenq.runtime.clock import SystemClock

if TYPE_CHECKING:
    import grpc

    from evenq.wire.credentials import Credentials
    from evenq.wire.signed_net import Signer

__all__ = ["CLIENT_ID", "client_id", "sign_with", "stream", "unary"]

CLIENT_ID = "x-mq-client-id"
_METADATA = (
    ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), ("x-mq-client-version", __version__),
    ("x-evenq-role", "reader"),
)  # fmt: skip

_channels: dict[tuple[int, str], grpc.Channel] = {}
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


def unary(endpoint: str, method: str, request: bytes, *, timeout_ms: int) -> bytes:
    """One request, one answer. `method` is `/package.Service/Rpc`."""
    import grpc

    call = _channel(endpoint).unary_unary(method, None, None)
    try:
        answer: bytes = call(request, timeout=timeout_ms / 1000, metadata=_metadata())
    except grpc.RpcError as failure:
        _raise(endpoint, failure)
    return answer


def stream(endpoint: str, method: str, request: bytes, *, timeout_ms: int) -> Iterator[bytes]:
    """One request, many answers; the next ones are fetched while the caller works on the last. Closing the iterator
    cancels the call.
    """
    import grpc

    call = _channel(endpoint).unary_stream(method, None, None)(request, timeout=timeout_ms / 1000, metadata=_metadata())
    try:
        yield from call
    except grpc.RpcError as failure:
        _raise(endpoint, failure)
    finally:
        call.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it out


def _metadata() -> tuple[tuple[str, str], ...]:
    signer = _signer
    signed = () if signer is None else tuple(signer.headers().items())
    return ((CLIENT_ID, client_id("reader")), *_METADATA, *signed)


def _channel(endpoint: str) -> grpc.Channel:
    import grpc

    key = (os.getpid(), endpoint)
    with _lock:
        channel = _channels.get(key)
        if channel is None:
            for stale in [known for known in _channels if known[0] != key[0]]:
                del _channels[stale]  # the parent's: not ours to close
            channel = _channels[key] = grpc.insecure_channel(
                endpoint,
                options=[
                    ("grpc.max_receive_message_length", -1),  # a block may hold one message of any size
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.min_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 1_000),  # a broker that restarts is found within a second
                    ("grpc.enable_http_proxy", 0),
                ],
            )
        return channel


def _raise(endpoint: str, failure: grpc.RpcError) -> NoReturn:
    import grpc

    code = failure.code()
    text = f"{endpoint}: {failure.details() or code.name}"
    kinds: dict[grpc.StatusCode, type[errors.Error]] = {
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.RequestTimeout,
        grpc.StatusCode.UNAUTHENTICATED: errors.Unauthorized,
        grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
        grpc.StatusCode.UNIMPLEMENTED: errors.NotImplementedYet,
        grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooManyRequests,
        grpc.StatusCode.INTERNAL: errors.InternalError,
        grpc.StatusCode.UNKNOWN: errors.InternalError,
    }
    kind = kinds.get(code, errors.ConnectionFailed)
    hint = "; is a broker running there?" if kind is errors.ConnectionFailed else ""
    raise kind(text + hint) from failure
