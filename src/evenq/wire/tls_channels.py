"""What connections with TLS are made with, from a `Tls` and again when its files change: gRPC's credentials for
channels, contexts of Python's `ssl` for sockets.

Used by `wire.net`, `wire.blocking_net` and by the Spark source. gRPC cannot be asked to trust any certificate, so
`Tls.insecure` fetches the one that the server shows and trusts exactly that one ("pins" it) until `forget` is called.
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

__all__ = ["Secure", "SecureSocket", "TlsChannels", "client_context", "handshake", "names_of"]

LOOK_MS = 2_000
FETCH_MS = 3_000
PINNED_MAX = 1_024


class Secure(NamedTuple):
    """What a channel to one address is made with."""

    credentials: grpc.ChannelCredentials
    options: Sequence[tuple[str, str]]
    version: int
    """Of the files; `TlsChannels.version` is another one when they have changed."""


class SecureSocket(NamedTuple):
    """What a socket to one address is secured with."""

    context: ssl.SSLContext
    server_name: str
    version: int
    """As of `Secure`."""


class TlsChannels:
    """Makes credentials and contexts. Thread-safe."""

    def __init__(self, tls: Tls, *, now_ms: Callable[[], int]) -> None:
        """`now_ms`: a monotonic clock. Raises SettingsError for files that make no sense."""
        self.tls = tls
        self.files = TlsFiles(tls)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._version = 0
        self._looked_ms = now_ms()
        self._pinned: dict[str, tuple[bytes, str]] = {}
        self._contexts: dict[str, tuple[bytes, SecureSocket]] = {}
        """By address if its certificate is pinned, else one; with the authorities that each trusts."""

    @property
    def version(self) -> int:
        """Grows when the files change; they are looked at every 2 s at most."""
        now_ms = self._now_ms()
        if now_ms - self._looked_ms >= LOOK_MS:
            self.look(now_ms)
        return self._version

    def look(self, now_ms: int) -> None:
        """Look at the files now."""
        self._looked_ms = now_ms
        with self._lock:
            if self.files.refresh():
                self._version += 1

    def secure(self, address: str) -> Secure:
        """For a channel to `host:port`. Blocks with `insecure`, at the first time; then it raises TlsFailed and
        OSError if no certificate can be fetched.
        """
        import grpc  # sockets do without

        version = self.version  # first: it may read the files again, and no version may stand for older ones
        pem, name = self.files.pem, self.tls.server_name
        authorities = pem.ca
        if self.tls.insecure:
            authorities, name = self._pin(address)
        options = [("grpc.ssl_target_name_override", name)] if name else []
        return Secure(grpc.ssl_channel_credentials(authorities, pem.key, pem.certificate), options, version)

    def secure_socket(self, address: str) -> SecureSocket:
        """For a socket to `host:port`; blocks and raises as `secure`."""
        version, name = self.version, self.tls.server_name or host_and_port(address)[0]
        key, authorities = "", b""
        if self.tls.insecure:
            key = address
            authorities, name = self._pin(address)
        known = self._contexts.get(key)
        if known is None or known[0] != authorities or known[1].version != version:
            try:
                context = client_context(self.files, verify=True, authorities=authorities.decode("ascii", "ignore"))
            except OSError as error:  # the files change this very moment
                if known is None or known[0] != authorities:
                    raise TlsFailed(f"the TLS files of this side cannot be used: {error}; write them once") from error
                context = known[1].context
            context.check_hostname = not self.tls.insecure  # exactly this certificate is trusted, whatever its name
            if len(self._contexts) >= PINNED_MAX:
                self._contexts.clear()
            known = self._contexts[key] = authorities, SecureSocket(context, name, version)
        return SecureSocket(known[1].context, name, version)

    def forget(self, address: str) -> None:
        """The pinned certificate does not help: fetch the server's again for the next channel."""
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
    """The same trust for Python's `ssl`, whose errors say more than gRPC's. `authorities`: PEM instead of the files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: who is trusted need not be a root
        trusted = authorities or (files.pem.ca or b"").decode("ascii", "ignore")
        if trusted:
            context.load_verify_locations(cadata=trusted)
        else:
            context.load_default_certs()
    if files.pem.key:
        context.load_cert_chain(files.tls.certificate, files.tls.key, password=lambda: "")
    return context


def names_of(certificate: object) -> list[str]:
    """The names in a certificate as `SSLSocket.getpeercert` tells it."""
    fields = certificate if isinstance(certificate, dict) else {}
    names = [str(name) for kind, name in fields.get("subjectAltName", ()) if kind in {"DNS", "IP Address"}]
    common = [value for part in fields.get("subject", ()) for key, value in part if key == "commonName"]
    return names or common


def _fetch(address: str, files: TlsFiles) -> tuple[bytes, str]:
    shown, _ = _handshake(address, client_context(files, verify=False))
    pem = ssl.DER_cert_to_PEM_cert(shown)
    try:
        # `getpeercert` tells names only of a verified certificate, and an expired one is found here.
        _, verified = _handshake(address, client_context(files, verify=True, authorities=pem))
    except ssl.SSLCertVerificationError as error:
        raise TlsFailed(
            f"the certificate of {address} cannot be trusted, not even as it is: {error.verify_message}; renew it"
        ) from error
    names = names_of(verified)
    if not names:
        raise TlsFailed(f"the certificate of {address} names no host; make it again with a subject alternative name")
    return pem.encode(), next((name for name in names if "*" not in name), names[0].replace("*", "any", 1))


def _handshake(target: str, context: ssl.SSLContext) -> tuple[bytes, object]:
    with handshake(target, context, timeout_ms=FETCH_MS) as secured:
        return secured.getpeercert(binary_form=True) or b"", secured.getpeercert()


@contextmanager
def handshake(target: str, context: ssl.SSLContext, *, timeout_ms: int, name: str = "") -> Iterator[ssl.SSLSocket]:
    """A connection to `host:port` by Python's `ssl`; `name`: expected instead of the host. Raises OSError."""
    host, port = host_and_port(target)
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_ms / 1000) as plain,
            context.wrap_socket(plain, server_hostname=name or host) as secured,
        ):
            yield secured
    except OSError:  # SSLCertVerificationError, which is a ValueError as well, among them
        raise
    except ValueError as error:  # of a name that cannot be one, also UnicodeError
        raise OSError(f"{name or host!r} cannot be the name of a host: {error}") from error
