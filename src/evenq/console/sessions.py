"""Users of the console: each session acts on the cluster with the keys that were entered in it, and with no others.

The keys stay in this process. The browser has a random id in a cookie that scripts cannot read; a new one with each
sign-in, so that an id from before is worth nothing. A form carries a token that is computed from the id, so that
another site cannot send it. A cluster without users needs no sign-in: its sessions share one client.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import random
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from evenq.client.async_admin import Admin
from evenq.client.async_producer import Producer
from evenq.client.wiring import ClientContext
from evenq.console.figures import Figures
from evenq.console.films import Films
from evenq.console.replays import SessionReplays
from evenq.console.settings import ConsoleSettings
from evenq.errors import Forbidden, RequestTimeout, TooManyRequests, Unauthorized
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.wire.credentials import Credentials

SESSIONS_MAX = 200
OF_USER_MAX = 20
SIGN_INS_MAX = 4
"""Calls to the cluster at a time that check keys."""
WAITING_MAX = 400
"""Sign-ins that wait, most of them for the time after wrong keys."""
WAITING_OF_USER_MAX = 8
IDLE_MS = 30 * 60_000
AGE_MS_MAX = 12 * 3_600_000
FAILED_MS = 500
TIMEOUT_MS = 10_000


class Principal:
    """One user's clients. `user` is empty without keys."""

    def __init__(
        self, settings: ConsoleSettings, credentials: Credentials | None, clock: Clock, net: Net | None = None
    ) -> None:
        rng = random.Random(os.urandom(8))  # noqa: S311 - spreads load, keeps no secret
        # Never the keys of the environment.
        context = ClientContext(clock=clock, rng=rng, net=net, credentials=credentials)
        self.user = credentials.access_key if credentials is not None else ""
        self.admin = Admin(endpoint=settings.endpoint, timeout_ms=TIMEOUT_MS, tls=settings.tls, context=context)
        self.figures = Figures(self.admin, clock)
        self.films = Films(self.admin, clock)
        self.replays = SessionReplays(self.admin, clock)
        self._settings, self._context = settings, context
        self._producer: Producer | None = None
        self._closed = False

    @property
    def producer(self) -> Producer:
        """The producer of the send form, made when it is first used. Raises Unauthorized after the session's end."""
        if self._closed:
            raise Unauthorized("the session of this form has ended: its user has signed out")
        if self._producer is None:
            self._producer = Producer(endpoint=self._settings.endpoint, tls=self._settings.tls, context=self._context)
        return self._producer

    async def close(self) -> None:
        self._closed = True
        await self.figures.close()
        await self.films.close()
        await self.replays.close()
        if self._producer is not None:
            with suppress(RequestTimeout):  # its form reports that the message was not sent
                await self._producer.close()
        await self.admin.close()


@dataclass(slots=True, kw_only=True)
class UserSession:
    id: str
    principal: Principal
    key: tuple[str, bytes]
    """Access key and hash of the secret: sessions with an equal key share `principal`."""
    opened_ms: int
    used_ms: int
    """Both by the monotonic clock."""


@dataclass(slots=True)
class _Shared:
    principal: Principal
    sessions: set[str] = field(default_factory=set)


class UserSessions:
    """All sessions. Belongs to one event loop."""

    def __init__(self, settings: ConsoleSettings, clock: Clock, net: Net | None = None) -> None:
        """`net` None: gRPC."""
        self._settings, self._clock, self._net = settings, clock, net
        self._secret = secrets.token_bytes(32)
        self._signed_in: dict[str, UserSession] = {}
        self._principals: dict[tuple[str, bytes], _Shared] = {}
        self._without_keys: Principal | None = None
        self._sign_ins = asyncio.Semaphore(SIGN_INS_MAX)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        """Sign-ins that wait, by access key; both have entries of those only."""

    @staticmethod
    def new_id() -> str:
        return secrets.token_urlsafe(32)

    def token(self, session_id: str) -> str:
        """Returns the token of the forms of a session."""
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    def token_fits(self, session_id: str, token: str) -> bool:
        return token.isascii() and hmac.compare_digest(self.token(session_id), token)

    def without_keys(self) -> Principal:
        """Returns the client of everybody who is not signed in; a cluster with users answers it with Unauthorized."""
        if self._without_keys is None:
            self._without_keys = Principal(self._settings, None, self._clock, self._net)
        return self._without_keys

    async def find(self, session_id: str) -> UserSession | None:
        """Returns a signed-in session that has not ended, and counts as its use."""
        await self._end_old()
        session = self._signed_in.get(session_id)
        if session is not None:
            session.used_ms = self._clock.monotonic_ms()
        return session

    async def sign_in(self, credentials: Credentials) -> UserSession:
        """Opens a session after the cluster accepted the keys. Raises Unauthorized, TooManyRequests, or the error of
        the cluster.
        """
        await self._end_old()
        self._check_free(credentials.access_key)
        key = (credentials.access_key, hashlib.sha256(credentials.secret_key.encode()).digest())
        if key not in self._principals:
            principal = await self._accepted(credentials, key)
            if key not in self._principals:
                try:
                    self._check_free(credentials.access_key)  # others may have signed in meanwhile
                except TooManyRequests:
                    await principal.close()
                    raise
                self._principals[key] = _Shared(principal)
        shared = self._principals[key]
        now_ms = self._clock.monotonic_ms()
        session = UserSession(id=self.new_id(), principal=shared.principal, key=key, opened_ms=now_ms, used_ms=now_ms)
        others = self._of_user(credentials.access_key)
        shared.sessions.add(session.id)
        self._signed_in[session.id] = session
        if len(others) >= OF_USER_MAX or len(self._signed_in) > SESSIONS_MAX:
            await self.end(min(others, key=lambda one: one.used_ms).id)
        return session

    async def end(self, session_id: str) -> None:
        session = self._signed_in.pop(session_id, None)
        if session is None:
            return
        shared = self._principals[session.key]
        shared.sessions.remove(session_id)
        if not shared.sessions:
            del self._principals[session.key]
            await shared.principal.close()

    async def close(self) -> None:
        for session_id in list(self._signed_in):
            await self.end(session_id)
        if self._without_keys is not None:
            await self._without_keys.close()

    def _of_user(self, user: str) -> list[UserSession]:
        return [one for one in self._signed_in.values() if one.principal.user == user]

    def _check_free(self, user: str) -> None:
        if len(self._signed_in) >= SESSIONS_MAX and not self._of_user(user):
            raise TooManyRequests(f"this console has {SESSIONS_MAX} sessions; try again when one has ended")

    async def _accepted(self, credentials: Credentials, key: tuple[str, bytes]) -> Principal:
        """Returns a client whose keys the cluster accepts. Keys of one user are checked one after the other, and each
        refusal takes time, so that guessing is slow; other users do not wait for it.
        """
        user = credentials.access_key
        waiting = self._waiting.get(user, 0)
        if waiting >= WAITING_OF_USER_MAX or self._waiting.total() >= WAITING_MAX:
            raise TooManyRequests("too many sign-ins at a time; try again in a few seconds")
        self._waiting[user] += 1
        try:
            async with self._turns.setdefault(user, asyncio.Lock()):
                if (shared := self._principals.get(key)) is not None:  # by the sign-in before this one
                    return shared.principal
                try:
                    return await self._checked(credentials)
                except Unauthorized:
                    await self._clock.sleep_ms(FAILED_MS)
                    raise
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user], self._turns[user]

    async def _checked(self, credentials: Credentials) -> Principal:
        async with self._sign_ins:
            principal = Principal(self._settings, credentials, self._clock, self._net)
            try:
                await principal.admin.list_topics()
            except Forbidden:
                pass  # the keys are right, and the user may not list topics
            except BaseException:
                await principal.close()
                raise
            return principal

    async def _end_old(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for session in list(self._signed_in.values()):
            if now_ms - session.used_ms > IDLE_MS or now_ms - session.opened_ms > AGE_MS_MAX:
                await self.end(session.id)
