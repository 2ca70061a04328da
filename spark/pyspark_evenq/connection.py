"""gRPC calls with encoded bytes, from processes that Spark forks.

Called by `cluster`. A channel does not survive a fork, so channels are made on first use and kept per process id; a
worker that Spark reuses keeps them over tasks and batches. Failures come out as `evenq.errors`: ConnectionFailed
(nobody answered), RequestTimeout, Unauthorized, PayloadTooLarge or InternalError. grpc is imported by the first call,
never by the module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from evenq import __version__, errors
from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import BROKER_HEADER, meant_broker

if TYPE_CHECKING:
    import grpc

    from evenq.wire.credentials import Credentials
    from evenq.wire.signed_net import Signer
    from evenq.wire.tls import Tls
    from evenq.wire.tls_channels import TlsChannels

__all__ = ["CLIENT_ID", "client_id", "secure_with", "sign_with", "stream", "unary"]

CLIENT_ID = "x-mq-client-id"
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a block may hold one message of any size
    ("grpc.http2.lookahead_bytes", 4 << 20),  # a block is on its way while the last one is worked on
    ("grpc.http2.max_frame_size", 4 << 20),  # and comes in one frame instead of 70
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a broker that restarts is found within a second
    ("grpc.enable_http_proxy", 0),
)
_METADATA = (
    ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"), ("x-mq-client-version", __version__),
)  # fmt: skip
_READS = ("x-evenq-role", "reader")

_channels: dict[tuple[int, str, Tls | None, int], grpc.Channel] = {}
"""By process, address, how TLS is spoken (None: not at all) and version of its files."""
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
    be told as if it were there.
    """
    import grpc

    endpoint, broker_name = meant_broker(endpoint)
    call = _channel(endpoint).unary_unary(method, None, None)
    try:
        answer: bytes = call(request, timeout=timeout_ms / 1000, metadata=_metadata(broker_name, writes=writes))
    except grpc.RpcError as failure:
        _raise(endpoint, failure)
    return answer


def stream(endpoint: str, method: str, request: bytes, *, timeout_ms: int, ahead: bool = False) -> Iterator[bytes]:
    """One request, many answers. With `ahead` the next one is fetched while the caller works on the last; that takes a
    thread, so it is for many answers. Closing the iterator cancels the call.
    """
    import grpc

    endpoint, broker_name = meant_broker(endpoint)
    opener, metadata = _channel(endpoint).unary_stream(method, None, None), _metadata(broker_name)
    call = opener(request, timeout=timeout_ms / 1000, metadata=metadata)
    try:
        yield from _Ahead(call) if ahead else call
    except grpc.RpcError as failure:
        _raise(endpoint, failure)
    finally:
        call.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it out


class _Ahead:
    """One answer ahead of who takes them. The thread ends with the call, or soon after the taker took its last."""

    def __init__(self, call: Iterable[bytes]) -> None:
        self._call = call
        self._over = False
        self._room = threading.Semaphore(2)  # one that is taken and one that waits
        self._fetched: SimpleQueue[bytes | Exception | None] = SimpleQueue()

    def __iter__(self) -> Iterator[bytes]:
        threading.Thread(target=self._fetch, name="evenq-fetch", daemon=True).start()
        try:
            while (answer := self._fetched.get()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                yield answer
                self._room.release()
        finally:
            self._over = True  # the call may have more answers before it is cancelled
            self._room.release()

    def _fetch(self) -> None:
        try:
            for answer in self._call:
                self._fetched.put(answer)
                self._room.acquire()
                if self._over:
                    return
            self._fetched.put(None)
        except Exception as failure:  # noqa: BLE001  the taker raises it
            self._fetched.put(failure)


def _metadata(broker_name: str = "", *, writes: bool = False) -> tuple[tuple[str, str], ...]:
    signer = _signer
    signed = () if signer is None else tuple(signer.headers().items())
    meant = ((BROKER_HEADER, broker_name),) if broker_name else ()
    role = () if writes else (_READS,)
    return ((CLIENT_ID, client_id("writer" if writes else "reader")), *_METADATA, *role, *meant, *signed)


def _channel(endpoint: str) -> grpc.Channel:
    import grpc

    from evenq.wire.addresses import target_of

    target, scheme = target_of(endpoint)
    with _lock:
        tls = _secure() if scheme or (scheme is None and _tls is not None) else None
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
                    raise errors.ConnectionFailed(
                        f"no certificate can be fetched from {target}: {error}; is a broker running there, with TLS?"
                    ) from error
                channel = grpc.secure_channel(target, credentials, options=[*_OPTIONS, *more])
            _channels[key] = channel
        return channel


def _secure() -> TlsChannels:
    if _tls is None:
        from evenq.wire.tls import Tls

        secure_with(Tls())
    assert _tls is not None
    return _tls


def _trouble(endpoint: str, reason: str) -> str:
    """What is wrong with TLS at the endpoint; empty if nothing is."""
    from evenq.wire.addresses import target_of
    from evenq.wire.tls_diagnosis import explain, worth_asking
    from pyspark_evenq.options import HINTS

    target, scheme = target_of(endpoint)
    if not worth_asking(reason, target):
        return ""
    tls = _tls if scheme is not False else None
    if tls is not None and tls.tls.insecure:  # the server may show another certificate than the one that is pinned
        tls.forget(target)
        with _lock:
            _channels.pop((os.getpid(), endpoint, tls.tls, tls.version), None)
    return explain(target, None if tls is None else tls.files, HINTS)


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
    if kind is errors.ConnectionFailed and (trouble := _trouble(endpoint, failure.details() or "")):
        raise errors.TlsFailed(trouble) from failure
    hint = "; is a broker running there?" if kind is errors.ConnectionFailed else ""
    raise kind(text + hint) from failure
