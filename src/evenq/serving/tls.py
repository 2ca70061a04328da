"""TLS of one server: its settings, the certificate of its listeners, and calls to other servers.

A program makes a `ServerTls` from its settings, opens its listeners with it, and starts and closes it with them. The
files are checked every `reload_ms`. A changed valid pair is used from the next handshake on; open connections keep
theirs. Always true: files that are not valid change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import grpc
from pydantic import BaseModel, Field, model_validator

from evenq.errors import SettingsError
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.wire.tls import SERVER_HINTS, Tls, read_authorities, read_pair, stamp_of

log = logging.getLogger(__name__)


class TlsSettings(BaseModel, frozen=True, extra="forbid"):
    """Encryption of client traffic, and of calls between servers."""

    port: int = Field(default=-1, ge=-1, le=65_535, description="gRPC port with TLS; -1 = off, 0 = any free one.")
    certificate: Path | None = Field(
        default=None, description="PEM file with the certificate chain; changes take effect without a restart."
    )
    key: Path | None = Field(default=None, description="PEM file with the private key, without a password.")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of authorities; if set, TLS clients must present a certificate that one of them signed.",
    )
    peers: bool = Field(
        default=False,
        description="Use TLS for calls to other servers whose address has no scheme; this server's certificate is "
        "presented to them.",
    )
    peer_ca: Path | None = Field(
        default=None,
        description="PEM file of the authorities that sign the certificates of other servers; empty = the system's.",
    )
    peer_server_name: str = Field(
        default="",
        max_length=255,
        description="Name expected in the certificates of other servers, instead of the host that is called.",
    )
    reload_ms: int = Field(
        default=2_000, ge=100, le=60_000, description="How often the files are checked for changes, ms."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate and tls.key belong together; give both or neither")
        if self.port >= 0 and self.certificate is None:
            raise ValueError("tls.port is set without tls.certificate and tls.key; give both PEM files")
        return self

    def for_peers(self) -> Tls:
        """Returns the TLS settings for calls to other servers."""
        return Tls(
            ca=self.peer_ca or "",
            certificate=self.certificate or "",
            key=self.key or "",
            server_name=self.peer_server_name,
            hints=SERVER_HINTS,
        )


class ServerTls:
    """The certificate of all listeners of a server; belongs to one loop."""

    def __init__(self, settings: TlsSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[Any] | None = None
        self._shown: tuple[bytes, bytes, bytes | None] | None = None
        self._context: ssl.SSLContext | None = None
        self._configuration: grpc.ServerCertificateConfiguration | None = None
        self._stamp: tuple[object, ...] = ()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns `GrpcServerOptions.credentials`. Raises SettingsError for files that are not valid."""
        if self._configuration is None:
            self._stamp = self._look()
            self._show(self._read())
        assert self._configuration is not None
        first = self._configuration
        shown: grpc.ServerCertificateConfiguration | None = first

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls this at each handshake, in its own thread. None: unchanged, which costs it nothing.
            nonlocal shown
            if shown is self._configuration:
                return None
            shown = self._configuration
            return shown

        fetcher: Any = fetch  # the published types do not allow None
        return grpc.dynamic_ssl_server_credentials(
            first, fetcher, require_client_authentication=self._settings.client_ca is not None
        )

    def contexts(self) -> Callable[[], ssl.SSLContext]:
        """Returns `GrpcServerOptions.tls`, a function that returns the context in force. Raises SettingsError."""
        self.credentials()
        return self._in_force

    def _in_force(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def start(self) -> None:
        """Starts to watch the files, if a listener uses them."""
        if self._configuration is not None:
            self._task = spawn(self._watch(), name="TLS files")

    async def close(self) -> None:
        """Stops watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reload(self) -> bool:
        """Checks the files; True if they changed and are in force."""
        stamp = await asyncio.to_thread(self._look)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            read = await asyncio.to_thread(self._read)
        except SettingsError as error:
            log.warning("changed TLS files rejected, keeping the previous ones: %s", error)
            return False
        if read == self._shown:
            return False
        try:
            self._show(read)
        except SettingsError as error:
            log.warning("changed TLS files rejected, keeping the previous ones: %s", error)
            # So that they are read again at the next check: they changed between reading and loading.
            self._stamp = ()
            return False
        log.info("TLS certificate changed to that of %s", self._settings.certificate)
        return True

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep_ms(self._settings.reload_ms)
            await self.reload()

    def _read(self) -> tuple[bytes, bytes, bytes | None]:
        settings = self._settings
        if settings.certificate is None or settings.key is None:
            raise SettingsError("a TLS server needs tls.certificate and tls.key; give both PEM files")
        certificate, key = read_pair(settings.certificate, settings.key)
        return certificate, key, read_authorities(settings.client_ca) if settings.client_ca is not None else None

    def _show(self, read: tuple[bytes, bytes, bytes | None]) -> None:
        certificate, key, client_ca = read
        self._context = self._make_context(client_ca)
        self._shown = read
        self._configuration = grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def _make_context(self, client_ca: bytes | None) -> ssl.SSLContext:
        settings = self._settings
        assert settings.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9113, 9.2
        context.set_alpn_protocols(["h2"])
        try:
            context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
        except (OSError, ValueError) as error:  # changed after the read; they are read again
            raise SettingsError(f"certificate {settings.certificate} changed while it was read: {error}") from error
        if client_ca is not None:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _look(self) -> tuple[object, ...]:
        paths = (self._settings.certificate, self._settings.key, self._settings.client_ca)
        return tuple(stamp_of(path) for path in paths if path is not None)
