"""The guard of the gRPC server: every call is signed by a known user who may do what it asks for (wire contract 2.2).

`Guard.guarded` turns an `Rpc` into one that checks first and then calls the same handler, so that no handler knows of
it and a server without authentication pays nothing. Who calls is found by the signature over `x-mq-date-time`; what a
user may is decided by the call's `Access` row and the names in its request (`evenq.serving.auth.names`), which are full
names: namespaces are resolved in front of it (`evenq.serving.auth.namespaces`).

Always true: an identity is remembered only together with the exact signature that proved it; failures are never
remembered; an `Rpc` about topics or groups without a row of names is refused when the server starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from evenq.errors import Forbidden, SettingsError, TooManyRequests, Unauthorized
from evenq.runtime.clock import Clock
from evenq.serving.auth.names import NAMES, Named, Names
from evenq.serving.auth.owners import ClientOwners
from evenq.serving.auth.users import User, UserResource, Users
from evenq.serving.program.logs import AUDIT
from evenq.serving.rpc import ACTS_FOR, Access, Action, Bidi, Frames, Resource, Rpc, RpcContext, ServerStream, Unary
from evenq.serving.rpc import CallKind as RpcKind
from evenq.wire.signature import AUTHORIZATION, DATE_MAX, DATE_TIME, date_time, fits, moment_ms, read_claim

__all__ = ["Guard"]

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)

HEARTBEAT = "/apache.rocketmq.v2.MessagingService/Heartbeat"
"""Changes nothing without a client id. Go sends one without any header when it recovers (wire contract 2.1, 8.50)."""
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"
"""Its settings are answered whatever they name: SDKs wait for them before they begin, and do not say why none came.
What is not granted is left out (`RpcContext.refused`), and the calls that follow are refused with words.
"""
SESSION = "/evenq.v1.Groups/Session"
"""A member that may not read some of its topics is a member for the others (`RpcContext.refused`)."""
FAREWELL = "/apache.rocketmq.v2.MessagingService/NotifyClientTermination"
ZONE_STEP_MS = 15 * 60_000
ZONE_MAX_MS = 14 * 3_600_000
LOG_AGAIN_MS = 60_000
REFUSALS_MAX = 1_000
HOLD_MS, HOLD_MARGIN_MS = 1_000, 200
HELD_MAX = 1_000

_KINDS = {
    Resource.TOPIC: (UserResource.TOPIC,),
    Resource.GROUP: (UserResource.GROUP,),
    Resource.TOPIC_AND_GROUP: (UserResource.TOPIC, UserResource.GROUP),
}
_WHOLE = frozenset({Resource.CLUSTER, Resource.BROKER, Resource.CLIENT})
_AUDITED = frozenset({Action.CREATE, Action.DELETE, Action.OPERATE})
_CLIENTS = frozenset({Action.PUBLISH, Action.CONSUME})
_SOFT = frozenset({Action.CONSUME, Action.DESCRIBE})


@dataclass(frozen=True, slots=True)
class _Proof:
    """A signature that was right."""

    user: User
    dated_ms: int | None
    """The moment in its date header; None if the caller does not check it."""


@dataclass(slots=True)
class _OpenStream:
    """What an open stream rests on."""

    user: str
    authorization: str
    date: str
    access: Access
    named: Sequence[Named] = ()
    """What its last message that names anything names, and its user may."""


class _Refusals:
    """Refusals of one user, call and verdict since the last line about them."""

    __slots__ = ("left_out", "quiet_until_ms")

    def __init__(self) -> None:
        self.left_out = 0
        self.quiet_until_ms = 0


class Guard:
    """Belongs to the server's loop."""

    def __init__(
        self,
        users: Users,
        *,
        clock: Clock,
        clock_skew_ms: int = 0,
        cache_max: int = 10_000,
        user_clients_max: int = 50_000,
        clients_max: int = 100_000,
    ) -> None:
        """`clock_skew_ms`: how far a call's date may be off, beside any whole quarter of an hour of time zone; 0 = any.
        `cache_max`: signatures remembered. `user_clients_max`: live client ids of one user; `clients_max`: of all.
        """
        self._users = users
        self._clock = clock
        self._skew_ms = clock_skew_ms
        self._half_max = max(1, cache_max // 2)
        self._proofs: dict[tuple[str, str], _Proof] = {}
        self._older: dict[tuple[str, str], _Proof] = {}
        self._open: dict[asyncio.Task[Any], _OpenStream] = {}
        self._revoked: dict[asyncio.Task[Any], Unauthorized | Forbidden] = {}
        self._refusals: OrderedDict[tuple[str, str, int], _Refusals] = OrderedDict()
        self._held = 0
        self._owners = ClientOwners(user_max=user_clients_max, owners_max=max(clients_max, user_clients_max))

    @property
    def users(self) -> Users:
        """Those that calls are judged by now."""
        return self._users

    def change(self, users: Users) -> None:
        """Judge by these users from now on. Open streams whose signature is not right any more, or that rest on a grant
        that was removed, are ended: what they are refused is decided anew when they come back.
        """
        self._users = users
        self._proofs, self._older = {}, {}
        # Streams are signed once, when they open (wire contract 2.2), and may last for years: a revoked key must end
        # them, and so must a removed grant.
        for task, stream in list(self._open.items()):
            proof = self._proven(stream.authorization, stream.date)
            lost = None if proof is None else self._lost(proof.user, stream)
            if proof is None:
                self._revoked[task] = Unauthorized(
                    f"user {stream.user} is not known any more, or has another secret key"
                )
            elif lost is not None:
                action = lost.action or stream.access.action
                self._revoked[task] = Forbidden(
                    f"user {stream.user} may not {action} {lost.kind} {lost.name} any more; a grant was removed "
                    "from the users file"
                )
            else:
                continue
            task.cancel()

    def _lost(self, user: User, stream: _OpenStream) -> Named | None:
        action = stream.access.action
        return next((one for one in stream.named if not user.may(one.kind, one.action or action, one.name)), None)

    def guarded(self, rpc: Rpc) -> Rpc:
        """The same call behind the guard. Raises SettingsError for a call that no rule could decide on."""
        names = NAMES.get(rpc.method)
        if rpc.access.resource in _KINDS and names is None:
            raise SettingsError(f"{rpc.method} is about a {rpc.access.resource}, and no row says where it names one")
        if rpc.kind is RpcKind.BIDI:
            return replace(rpc, handler=self._stream(rpc, cast("Bidi", rpc.handler), names))
        if rpc.kind is RpcKind.SERVER_STREAM:
            return replace(rpc, handler=self._server_stream(rpc, cast("ServerStream", rpc.handler), names))
        handler, identify, decide = cast("Unary", rpc.handler), self.identify, self._decide
        nameless_is_ok = rpc.method == HEARTBEAT
        owned = _is_a_clients(rpc.access)

        def checked(request: bytes, context: RpcContext) -> Awaitable[bytes]:
            if nameless_is_ok and not context.client_id and AUTHORIZATION not in context.headers:
                return handler(request, context)
            user = identify(context)
            if not user.internal:
                decide(user, rpc, names, request, context)
            elif owned:
                self._claim(context.client_id, context.headers.get(ACTS_FOR, ""), rpc, context)
            return handler(request, context)

        return replace(rpc, handler=checked)

    def identify(self, context: RpcContext) -> User:
        """Who calls. Raises Unauthorized."""
        headers = context.headers
        authorization, date = headers.get(AUTHORIZATION, ""), headers.get(DATE_TIME, "")
        proof = self._proofs.get((authorization, date)) or self._proven(authorization, date)
        if proof is None:
            claim = read_claim(authorization)
            if claim is None or not date or len(date) > DATE_MAX:
                text = "the call is not signed by MQv2-HMAC-SHA1: give the client an access key and a secret key"
            else:
                text = "the signature is not right: unknown access key, or another secret key"
            self._log_refusal("", context, Unauthorized.code, claimed=claim.user if claim else "")
            raise Unauthorized(text)
        if self._skew_ms and not self._fresh(proof):
            self._log_refusal(proof.user.name, context, Unauthorized.code)
            raise Unauthorized(
                f"the call is dated {date} (x-mq-date-time), it is {date_time(self._clock.now_ms())} by this server's "
                f"clock, more than {self._skew_ms} ms apart in every time zone: set the clock that is wrong"
            )
        context.caller = proof.user
        return proof.user

    def _proven(self, authorization: str, date: str) -> _Proof | None:
        known = self._older.get((authorization, date))
        if known is None:
            claim = read_claim(authorization)
            if claim is None or not date or len(date) > DATE_MAX:
                return None
            user = self._users.get(claim.user)
            # An unknown user costs what a known one with a wrong secret does.
            secrets = user.secrets if user is not None else self._users.internal.secrets[:1]
            # All secrets are tried, also after one that fits: the time must not tell which one it was.
            right = [fits(claim, secret, date) for secret in secrets]
            if user is None or not any(right):
                return None
            known = _Proof(user, moment_ms(date) if self._skew_ms else None)
        # Two halves: the older one is dropped as a whole, so that what is used stays and nothing counts its age.
        if len(self._proofs) >= self._half_max:
            self._older, self._proofs = self._proofs, {}
        self._proofs[authorization, date] = known
        return known

    def _fresh(self, proof: _Proof) -> bool:
        # Four SDKs write local time as if it were UTC, so a zone's offset is no skew (contract 2.2).
        if proof.dated_ms is None:
            return False
        off_ms = self._clock.now_ms() - proof.dated_ms
        within = (off_ms + self._skew_ms) % ZONE_STEP_MS <= 2 * self._skew_ms
        return within and abs(off_ms) <= ZONE_MAX_MS + self._skew_ms

    # ------------------------------------------------------------------------------------------------- what one may

    def _decide(self, user: User, rpc: Rpc, names: Names | None, request: bytes, context: RpcContext) -> None:
        """Raises Forbidden. Not asked about the internal user, who may do everything."""
        access = rpc.access
        action, kinds = access.action, _KINDS.get(access.resource)
        if action is Action.INTERNAL:
            raise self._forbidden(user, context, "do what servers do among themselves")
        if kinds is None and (names is None or action is Action.OPERATE):
            if access.resource in _WHOLE and not user.may_all(UserResource.CLUSTER, action):
                raise self._forbidden(user, context, f"{action} the cluster")
        elif not user.unbound and names is not None:
            plain = context.plain
            if plain is None:
                message = names.read(request, context.decoded)
                named, acts_as = names.of(message), names.client_of(message)
            else:
                message, named, acts_as = None, [Named(UserResource.TOPIC, plain.topic)], ""
            if not self._reads_replies(user, names, named, message):
                self._check_named(user, access, named, context)
            self._check_missing(user, access, kinds or (), named, context)
            if acts_as and acts_as != context.client_id:
                self._claim(acts_as, user.name, rpc, context)
        if _is_a_clients(access):
            self._claim(context.client_id, user.name, rpc, context)
        if action in _AUDITED:
            self._audit(user, context)

    def _claim(self, client_id: str, user: str, rpc: Rpc, context: RpcContext) -> None:
        """The user acts under this client id. Raises Forbidden for another user's, TooManyRequests beyond its share."""
        if not client_id or not user:
            return
        try:
            self._owners.claim(client_id, user, self._clock.monotonic_ms())
        except (Forbidden, TooManyRequests) as error:
            self._log_refusal(user, context, error.code)
            raise
        if rpc.method == FAREWELL:
            self._owners.leave(client_id)

    def _reads_replies(self, user: User, names: Names, named: Sequence[Named], message: Any) -> bool:
        """May the user do what consuming is needed for otherwise, because the call reads its own replies alone?"""
        return (
            message is not None
            and names.asks_for_replies(message)
            and all(user.may(one.kind, Action.REPLY, one.name) for one in named)
        )

    def _check_missing(
        self, user: User, access: Access, kinds: Sequence[UserResource], named: Sequence[Named], context: RpcContext
    ) -> None:
        named_kinds = {one.kind for one in named if one.action is None}
        for kind in kinds:
            # An empty name stands for all of a kind. Where a call reads, the other kind's name binds it.
            left_out = kind not in named_kinds and not (named_kinds and access.action in _SOFT)
            if left_out and not user.may_all(kind, access.action):
                raise self._forbidden(user, context, f"{access.action} every {kind}, and the call names none")

    def _check_named(self, user: User, access: Access, named: Sequence[Named], context: RpcContext) -> None:
        for one in named:
            action = one.action or access.action
            if not user.may(one.kind, action, one.name):
                raise self._forbidden(user, context, f"{action} {one.kind} {one.name}")

    def _refused(
        self, user: User, access: Access, named: Sequence[Named], context: RpcContext
    ) -> frozenset[tuple[str, str]]:
        missing = [one for one in named if not user.may(one.kind, one.action or access.action, one.name)]
        if missing:
            self._log_refusal(user.name, context, Forbidden.code)
        return frozenset((one.kind, one.name) for one in missing)

    def _forbidden(self, user: User, context: RpcContext, what: str) -> Forbidden:
        self._log_refusal(user.name, context, Forbidden.code)
        return Forbidden(f"user {user.name} may not {what}; a grant in the users file would allow it")

    # ------------------------------------------------------------------------------------------------------ streams

    def _server_stream(self, rpc: Rpc, handler: ServerStream, names: Names | None) -> ServerStream:
        owned = _is_a_clients(rpc.access)

        def checked(request: bytes, context: RpcContext) -> AsyncIterator[Frames]:
            try:
                user = self.identify(context)
                if not user.internal:
                    self._decide(user, rpc, names, request, context)
                elif owned:
                    self._claim(context.client_id, context.headers.get(ACTS_FOR, ""), rpc, context)
            except (Unauthorized, Forbidden, TooManyRequests) as error:
                return self._late(error, context)
            return handler(request, context)

        return checked

    async def _late(self, error: Exception, context: RpcContext) -> AsyncIterator[bytes]:
        """A refusal that waits a moment: Go's push consumers ask again 20 ms after any error (wire contract 3.9). Only
        a bounded number waits at a time, so that strangers cannot fill the server with it.
        """
        if self._held < HELD_MAX:
            self._held += 1
            left_ms = HOLD_MS
            if context.deadline_ms is not None:
                left_ms = min(HOLD_MS, context.deadline_ms - self._clock.monotonic_ms() - HOLD_MARGIN_MS)
            try:
                await self._clock.sleep_ms(left_ms)
            finally:
                self._held -= 1
        raise error
        yield b""  # never: it makes this a stream

    def _stream(self, rpc: Rpc, handler: Bidi, names: Names | None) -> Bidi:
        access = rpc.access
        answers_all, answers_topics = rpc.method == TELEMETRY, rpc.method == SESSION

        async def each(
            requests: AsyncIterator[bytes], context: RpcContext, stream: _OpenStream
        ) -> AsyncIterator[bytes]:
            async for request in requests:
                user = self.identify_open(context)
                context.refused = frozenset()
                if not user.internal:
                    self._claim(context.client_id, user.name, rpc, context)
                if names is not None and not user.unbound:
                    message = names.read(request, context.decoded)
                    named, acts_as = names.of(message), names.client_of(message)
                    if acts_as and acts_as != context.client_id:
                        self._claim(acts_as, user.name, rpc, context)
                    if answers_all or answers_topics:
                        context.refused = self._refused(user, access, named, context)
                    if answers_topics:
                        groups = [one for one in named if one.kind is UserResource.GROUP]
                        self._check_named(user, access, groups, context)
                    elif not answers_all:
                        self._check_named(user, access, named, context)
                    if named:
                        stream.named = [one for one in named if (one.kind, one.name) not in context.refused]
                yield request

        async def checked(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[Frames]:
            user = self.identify(context)
            if names is None and not user.internal:
                self._decide(user, rpc, None, b"", context)
            if _is_a_clients(access) and not user.internal:
                self._claim(context.client_id, user.name, rpc, context)
            task = asyncio.current_task()
            assert task is not None
            stream = _OpenStream(user.name, context.headers[AUTHORIZATION], context.headers[DATE_TIME], access)
            self._open[task] = stream
            frames = handler(each(requests, context, stream), context)
            try:
                async for frame in frames:
                    yield frame
            except asyncio.CancelledError as cancelled:
                verdict = self._revoked.get(task)
                if verdict is None:
                    raise
                task.uncancel()
                self._log_refusal(user.name, context, verdict.code)
                raise verdict from cancelled
            finally:
                self._open.pop(task, None)
                self._revoked.pop(task, None)
                close = getattr(frames, "aclose", None)
                if close is not None:
                    await close()

        return checked

    def identify_open(self, context: RpcContext) -> User:
        """Who opened a stream, whose date may be old by now. Raises Unauthorized."""
        authorization, date = context.headers[AUTHORIZATION], context.headers[DATE_TIME]
        proof = self._proofs.get((authorization, date)) or self._proven(authorization, date)
        if proof is None:
            raise Unauthorized("the user who opened this stream is not known any more, or has another secret key")
        return proof.user

    # --------------------------------------------------------------------------------------------------- the record

    def _audit(self, user: User, context: RpcContext) -> None:
        audit.info(
            "call allowed",
            extra={
                "user": user.name,
                "method": context.method,
                "peer": context.peer,
                "request": context.headers.get("x-mq-request-id", "")[:64],
            },
        )

    def _log_refusal(self, user: str, context: RpcContext, code: int, *, claimed: str = "") -> None:
        """One line per user, call and verdict a minute, with the number of those left out: a client that asks again and
        again fills no disk. `claimed`: a name that was not proven. It is shown and makes no line of its own, because
        strangers can make up names without end.
        """
        key, now_ms = (user, context.method, code), self._clock.monotonic_ms()
        refusals = self._refusals.get(key)
        if refusals is None:
            refusals = self._refusals[key] = _Refusals()
            if len(self._refusals) > REFUSALS_MAX:
                self._refusals.popitem(last=False)
        elif now_ms < refusals.quiet_until_ms:
            refusals.left_out += 1
            return
        more = {"more": refusals.left_out} if refusals.left_out else {}
        refusals.quiet_until_ms, refusals.left_out = now_ms + LOG_AGAIN_MS, 0
        fields = {"user": (user or claimed)[:64], "method": context.method, "code": code, "peer": context.peer}
        log.warning("call refused", extra=fields | more)


def _is_a_clients(access: Access) -> bool:
    """True for calls with which clients send, receive and report themselves: state is kept under their ids."""
    return access.action in _CLIENTS
