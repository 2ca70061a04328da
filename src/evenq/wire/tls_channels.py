"""Credentials of gRPC's channels and contexts of Python's `ssl`, made from a `Tls` and again when its files change.

Used by `wire.net`, `wire.blocking_net` and the Spark source. gRPC cannot trust any certificate, so `Tls.insecure`
fetches the server's and trusts only that one ("pins" it) until `forget` is called.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from evenq.errors import TlsFailed
from evenq.wire.addresses import host_and_port
from evenq.wire.tls import Tls, TlsFiles

if TYPE_CHECKING:
    import grpc

LOOK_MS = 2_000
FETCH_MS = 3_000
PINNED_MAX = 1_024


class Secure(NamedTuple):
    """Parameters of a channel to one address."""

    credentials: grpc.ChannelCredentials
    options: Sequence[tuple[str, str]]
    version: int
    """Version of the files; `TlsChannels.version` differs after a change."""


class SecureSocket(NamedTuple):
    """Parameters of a socket to one address."""

    context: ssl.SSLContext
    server_name: str
    version: int


class TlsChannels:
    """Maker of credentials and contexts; thread-safe."""

    def __init__(self, tls: Tls, *, now_ms: Callable[[], int]) -> None:
        """`now_ms`: a monotonic clock. Raises SettingsError for files that are not valid."""
        self.tls = tls
        self.files = TlsFiles(tls)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._version = 0
        self._looked_ms = now_ms()
        self._pinned: dict[str, tuple[bytes, str]] = {}
        self._contexts: dict[str, tuple[bytes, SecureSocket]] = {}
        """By address if its certificate is pinned, otherwise one; with the authorities that each trusts."""

    @property
    def version(self) -> int:
        """Version of the files; increases when they change. They are checked every 2 s at most."""
        now_ms = self._now_ms()
        if now_ms - self._looked_ms >= LOOK_MS:
            self.look(now_ms)
        return self._version

    def look(self, now_ms: int) -> None:
        self._looked_ms = now_ms
        with self._lock:
            if self.files.refresh():
                self._version += 1

    def secure(self, address: str) -> Secure:
        """Returns the parameters of a channel to `host:port`. With `insecure` the first call blocks to fetch the
        certificate, and raises TlsFailed or OSError if it cannot.
        """
        import grpc  # not needed for sockets

        version = self.version  # first: it may read the files again, and a version must not stand for older files
        pem, name = self.files.pem, self.tls.server_name
        authorities = pem.ca
        if self.tls.insecure:
            authorities, name = self._pin(address)
        options = [("grpc.ssl_target_name_override", name)] if name else []
        return Secure(grpc.ssl_channel_credentials(authorities, pem.key, pem.certificate), options, version)

    def secure_socket(self, address: str) -> SecureSocket:
        """Returns the parameters of a socket to `host:port`; blocks and raises as `secure`."""
        version, name = self.version, self.tls.server_name or host_and_port(address)[0]
        key, authorities = "", b""
        if self.tls.insecure:
            key = address
            authorities, name = self._pin(address)
        known = self._contexts.get(key)
        if known is None or known[0] != authorities or known[1].version != version:
            try:
                context = client_context(self.files, verify=True, authorities=authorities.decode("ascii", "ignore"))
            except OSError as error:  # the files are being changed
                if known is None or known[0] != authorities:
                    raise TlsFailed(f"the TLS files of this side cannot be used: {error}; write them once") from error
                context = known[1].context
            context.check_hostname = not self.tls.insecure  # a pinned certificate is trusted whatever its name
            if len(self._contexts) >= PINNED_MAX:
                self._contexts.clear()
            known = self._contexts[key] = authorities, SecureSocket(context, name, version)
        return SecureSocket(known[1].context, name, version)

    def forget(self, address: str) -> None:
        """Removes the pinned certificate of an address, so that the next channel fetches it again."""
        with self._lock:
            self._pinned.pop(address, None)

    def _pin(self, address: str) -> tuple[bytes, str]:
        pinned = self._pinned.get(address)
        if pinned is None:
            pinned = _fetch(address, self.files)
            with self._lock:
                while len(self._pinned) >= PINNED_MAX:
                    del self._pinned[next(iter(self._pinned))]
                self._pinned[address] = pinned
        return pinned


def client_context(files: TlsFiles, *, verify: bool, authorities: str | None = None) -> ssl.SSLContext:
    """Returns the same trust for Python's `ssl`, whose errors are precise. `authorities`: PEM instead of the files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: a trusted authority need not be a root
        trusted = authorities or (files.pem.ca or b"").decode("ascii", "ignore")
        if trusted:
            context.load_verify_locations(cadata=trusted)
        else:
            context.load_default_certs()
    if files.pem.key:
        context.load_cert_chain(files.tls.certificate, files.tls.key, password=lambda: "")
    return context


def names_of(certificate: object) -> list[str]:
    """Returns the names in a certificate of `SSLSocket.getpeercert`."""
    fields = certificate if isinstance(certificate, dict) else {}
    names = [str(name) for kind, name in fields.get("subjectAltName", ()) if kind in {"DNS", "IP Address"}]
    common = [value for part in fields.get("subject", ()) for key, value in part if key == "commonName"]
    return names or common


def _fetch(address: str, files: TlsFiles) -> tuple[bytes, str]:
    shown, _ = _handshake(address, client_context(files, verify=False))
    pem = ssl.DER_cert_to_PEM_cert(shown)
    try:
        # `getpeercert` returns names only of a verified certificate; this also rejects an expired one.
        _, verified = _handshake(address, client_context(files, verify=True, authorities=pem))
    except ssl.SSLCertVerificationError as error:
        raise TlsFailed(
            f"the certificate of {address} cannot be trusted, even if pinned: {error.verify_message}; renew it"
        ) from error
    names = names_of(verified)
    if not names:
        raise TlsFailed(f"the certificate of {address} names no host; make one with a subject alternative name")
    return pem.encode(), next((name for name in names if "*" not in name), names[0].replace("*", "any", 1))


def _handshake(target: str, context: ssl.SSLContext) -> tuple[bytes, object]:
    with handshake(target, context, timeout_ms=FETCH_MS) as secured:
        return secured.getpeercert(binary_form=True) or b"", secured.getpeercert()


@contextmanager
def handshake(target: str, context: ssl.SSLContext, *, timeout_ms: int, name: str = "") -> Iterator[ssl.SSLSocket]:
    """Opens a connection to `host:port` by Python's `ssl`; `name`: expected instead of the host. Raises OSError."""
    host, port = host_and_port(target)
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_ms / 1000) as plain,
            context.wrap_socket(plain, server_hostname=name or host) as secured,
        ):
            yield secured
    except OSError:  # includes SSLCertVerificationError, which is also a ValueError
        raise
    except ValueError as error:  # not a valid host name; also UnicodeError
        raise OSError(f"{name or host!r} cannot be the name of a host: {error}") from error
