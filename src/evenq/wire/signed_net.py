"""A `Net` that signs every call of another one.

Clients sign with the user's keys; servers that call each other, with those of the internal user. A signature covers the
time in whole seconds, so one is made per second and not per call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Self

from evenq.runtime.clock import Clock
from evenq.runtime.duplex import Duplex, open_duplex
from evenq.runtime.net import BlockingCalls, Net
from evenq.wire.credentials import Credentials
from evenq.wire.signature import AUTHORIZATION, DATE_TIME, SESSION_TOKEN, Secret, authorization, date_time


class Signer:
    """Maker of the headers of one user's calls."""

    def __init__(self, user: str, secret: Secret, *, clock: Clock, session_token: str = "") -> None:
        self._clock = clock
        self._session_token = session_token
        self.change(user, secret)

    @classmethod
    def of(cls, credentials: Credentials, clock: Clock) -> Self:
        """Returns a signer with a client's keys."""
        secret = Secret(credentials.secret_key)
        return cls(credentials.access_key, secret, clock=clock, session_token=credentials.security_token)

    def change(self, user: str, secret: Secret) -> None:
        self._user, self._secret = user, secret
        self._second = -1
        self._headers: dict[str, str] = {}

    def headers(self) -> Mapping[str, str]:
        """Returns `authorization`, `x-mq-date-time` and, with a token, `x-mq-session-token`."""
        now_ms = self._clock.now_ms()
        if now_ms // 1000 != self._second:
            date = date_time(now_ms)
            headers = {DATE_TIME: date, AUTHORIZATION: authorization(self._user, self._secret, date)}
            if self._session_token:
                headers[SESSION_TOKEN] = self._session_token
            self._headers = headers  # replaced as a whole, because other threads read it
            self._second = now_ms // 1000
        return self._headers


class SignedNet:
    """Another `Net`, with each call signed."""

    def __init__(self, net: Net, signer: Signer) -> None:
        self._net = net
        self._signer = signer

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        headers = {**(metadata or {}), **self._signer.headers()}
        return await self._net.unary(address, method, request, timeout_ms=timeout_ms, metadata=headers)

    def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        """Opens a stream; signed once."""
        headers = {**(metadata or {}), **self._signer.headers()}
        return self._net.stream(address, method, requests, timeout_ms=timeout_ms, metadata=headers)

    def duplex(self, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> Duplex:
        """Returns a call with messages in both directions; signed once, when it is made."""
        headers = {**(metadata or {}), **self._signer.headers()}
        return open_duplex(self._net, address, method, metadata=headers)

    async def connect(self, address: str, *, timeout_ms: int) -> None:
        """Returns once the address has a connection, in a net that has connections."""
        connect = getattr(self._net, "connect", None)
        if connect is not None:
            await connect(address, timeout_ms=timeout_ms)

    async def renew(self, address: str) -> None:
        """Makes the next call to the address use a new connection, in a net that has connections."""
        renew = getattr(self._net, "renew", None)
        if renew is not None:
            await renew(address)

    def blocking(self) -> BlockingCalls | None:
        """Returns the signed net for calls from threads; None: the net below has none."""
        make = getattr(self._net, "blocking", None)
        if make is None:
            return None
        net: BlockingCalls = make()
        net.sign = self._signer.headers
        return net

    async def close(self) -> None:
        await self._net.close()
