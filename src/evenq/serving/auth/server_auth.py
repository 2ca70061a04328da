"""Authentication of one server: its settings, the users file and its reload, the guard, the signed net.

A program makes an `Auth` from its settings, wraps its `Rpc`s and its net with it, and starts and closes it with its
gRPC servers. If authentication is off, both are returned unchanged, so calls cost nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from evenq.errors import SettingsError
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.private_files import read_secret
from evenq.runtime.tasks import spawn
from evenq.serving.auth.guard import Guard
from evenq.serving.auth.users import Users
from evenq.serving.rpc import Rpc
from evenq.wire.signed_net import SignedNet, Signer

log = logging.getLogger(__name__)

FILE_BYTES_MAX = 4 << 20
CLOCK_SKEW_MS = 60_000
"""Without TLS, recorded headers can be used again: this time around their date, in each quarter of an hour (guard)."""


class AuthSettings(BaseModel, frozen=True, extra="forbid"):
    """Authentication of callers."""

    enabled: bool = Field(default=False, description="Accept only calls that are signed by a user of the users file.")
    users: Path | None = Field(
        default=None, description="TOML file with users, secrets and grants; changes take effect without a restart."
    )
    reload_ms: int = Field(
        default=2_000, ge=100, le=60_000, description="How often the users file is checked for changes, ms."
    )
    clock_skew_ms: int = Field(
        default=-1,
        ge=-1,
        le=420_000,
        description="How far x-mq-date-time may be from the server's clock, ms, beside a time zone of "
        f"whole quarters of an hour; 0 = not looked at, -1 = {CLOCK_SKEW_MS} with a port without TLS, else 0.",
    )
    cache_max: int = Field(
        default=10_000, ge=2, le=1_000_000, description="Most verified signatures that are remembered."
    )

    user_clients_max: int = Field(
        default=50_000,
        ge=1,
        le=10_000_000,
        description="Most live client ids of one user at this server: the client called within 120 s and did not "
        "terminate. Further ones are answered TooManyRequests, so that no user leaves others without clients.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.enabled and self.users is None:
            raise ValueError("auth.enabled is set without auth.users; give the users file")
        return self


class Auth:
    """Authentication, on or off. Belongs to one loop."""

    def __init__(self, settings: AuthSettings, *, clock: Clock, plain: bool = True) -> None:
        """`plain`: the server has a port without TLS. Raises SettingsError for a users file that is not valid."""
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[Any] | None = None
        self._guard: Guard | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called after users or grants changed: waiting calls were allowed by the previous ones."""
        self._digest = b""
        if not settings.enabled:
            return
        content = self._read()
        users = Users.parse(content)
        self._digest = hashlib.sha256(content).digest()
        skew_ms = settings.clock_skew_ms if settings.clock_skew_ms >= 0 else CLOCK_SKEW_MS if plain else 0
        self._guard = Guard(
            users,
            clock=clock,
            clock_skew_ms=skew_ms,
            cache_max=settings.cache_max,
            user_clients_max=settings.user_clients_max,
        )
        self._signer = Signer(users.internal.name, users.internal.secrets[0], clock=clock)

    def rpcs(self, rpcs: Sequence[Rpc]) -> list[Rpc]:
        """Returns the calls to serve, guarded if authentication is on."""
        return list(rpcs) if self._guard is None else [self._guard.guarded(rpc) for rpc in rpcs]

    def net(self, net: Net) -> Net:
        """Returns the net for calls to other servers, signed by the internal user if authentication is on."""
        return net if self._guard is None else SignedNet(net, self._signer)

    def users(self) -> Users | None:
        """Returns the users in force; None: authentication is off."""
        return self._guard.users if self._guard is not None else None

    def start(self) -> None:
        """Starts to watch the users file."""
        if self._guard is not None:
            self._task = spawn(self._watch(), name="users file")

    async def close(self) -> None:
        """Stops watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reload(self) -> bool:
        """Reads the file; True if it changed and is in force. An invalid file changes nothing."""
        assert self._guard is not None
        try:
            content = await asyncio.to_thread(self._read)
            digest = hashlib.sha256(content).digest()
            if digest == self._digest:
                return False
            users = Users.parse(content)
        except SettingsError as error:
            log.warning("users file rejected, keeping the previous users", extra={"error": str(error)})
            return False
        self._digest = digest
        self._signer.change(users.internal.name, users.internal.secrets[0])
        self._guard.change(users)
        self.on_change()
        log.info("users file loaded", extra={"users": len(users)})
        return True

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep_ms(self._settings.reload_ms)
            await self.reload()

    def _read(self) -> bytes:
        path = self._settings.users
        assert path is not None
        try:
            content = read_secret(path, bytes_max=FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SettingsError(f"auth.users cannot be read: {error}; give a readable file") from error
        if len(content) > FILE_BYTES_MAX:
            raise SettingsError(f"auth.users has more bytes than allowed, the limit is {FILE_BYTES_MAX}")
        return content
