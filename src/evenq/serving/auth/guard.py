"""The guard of the gRPC server: each call must be signed by a known user who has the right to it (wire contract 2.2).

Problem: each call must be authenticated, at the cost of a look-up for most calls. The SDKs sign only the header
`x-mq-date-time`, in whole seconds, and four of them write local time as if it were UTC. A stream is signed once and may
last for years. Failures must reveal nothing, and must not fill memory or the log.

Idea: `Guard.guarded` wraps an `Rpc`, so handlers do not know of the guard, and servers without authentication do not
pay for it. A call passes three checks:
1. Signature (`identify`): HMAC-SHA1 of the date header with the secret of the named user. A proof is remembered under
   the exact pair (authorization, date), so headers that a client repeats within a second cost one look-up.
2. Date (`_fresh`): at most `clock_skew_ms` from this server's clock, after subtracting any whole quarters of an hour of
   time zone, up to 14 h.
3. Right (`_decide`): the call's row (`evenq.serving.auth.calls`) and the names in its request, which are full names:
   `evenq.serving.auth.namespaces` resolves namespaces before. Bytes that are not a request are a BadRequest. A request
   without names needs the right to all names; the handler's own rules come after that.

Invariants:
- Only proofs are remembered, never failures; `change` drops them all, so a revoked secret is invalid immediately.
- All secrets of a user are compared, in constant time, also after a match; an unknown user costs one comparison too.
- Each open stream is checked again by `change`, and at each of its messages. Long polls (`POLLS`) are not: the
  broker answers them when users change.
- An `Rpc` about topics or groups without a row of names is rejected when the server starts.
- Proofs, delayed refusals, log keys and client ids are bounded.

Example: `clock_skew_ms` is 60,000, and it is 12:00:00 UTC. A Java client in India (+05:30) sends 17:30:40, which is
19,840 s ahead: 22 quarters of 900 s, and 40 s, so it is accepted. 17:32:00 leaves 120 s and is rejected. The price:
recorded headers are valid for two minutes in each quarter of an hour, from 14 h before their date to 14 h after it.
Only TLS prevents that (`docs/guides/security.md`).

References: wire contract 2.1, 2.2, 3.9, 8.50; `evenq.wire.signature`: the format.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from evenq.errors import Forbidden, SettingsError, TooManyRequests, Unauthorized
from evenq.runtime.clock import Clock
from evenq.runtime.net import close_frames
from evenq.serving.auth.calls import CALLS
from evenq.serving.auth.names import Named, Names
from evenq.serving.auth.users import User, UserResource, Users
from evenq.serving.program.logs import AUDIT
from evenq.serving.rpc import ACTS_FOR, Access, Action, Bidi, Frames, Resource, Rpc, RpcContext, ServerStream, Unary
from evenq.serving.rpc import CallKind as RpcKind
from evenq.wire.signature import AUTHORIZATION, DATE_MAX, DATE_TIME, date_time, fits, moment_ms, read_claim

log = logging.getLogger(__name__)
audit = logging.getLogger(AUDIT)
HEARTBEAT = "/apache.rocketmq.v2.MessagingService/Heartbeat"
"""Changes nothing without a client id. Go sends one without any header when it recovers (wire contract 2.1, 8.50)."""
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"
"""Its settings are answered whatever they name, because SDKs wait for them before they begin and do not report why none
came. Names without a grant are left out (`RpcContext.refused`), and later calls with them are refused with a reason.
"""
SESSION = "/evenq.v1.Groups/Session"
"""A member without a grant for some of its topics is a member for the others (`RpcContext.refused`)."""
LOCK_QUEUES = "/evenq.v1.Groups/LockQueues"
"""Queues of topics without a grant are not granted, and the others are: an error would stop a member that renews the
locks of all its topics.
"""
FAREWELL = "/apache.rocketmq.v2.MessagingService/NotifyClientTermination"
POLLS = frozenset(
    {"/apache.rocketmq.v2.MessagingService/ReceiveMessage", "/apache.rocketmq.v2.MessagingService/PullMessage"}
)
"""Streams with the messages of one answer: there are many a second."""
ZONE_STEP_MS = 15 * 60_000
ZONE_MAX_MS = 14 * 3_600_000
LOG_AGAIN_MS = 60_000
REFUSALS_MAX = 1_000
HOLD_MS, HOLD_MARGIN_MS = 1_000, 200
HELD_MAX = 1_000
KINDS = {
    Resource.TOPIC: (UserResource.TOPIC,),
    Resource.GROUP: (UserResource.GROUP,),
    Resource.TOPIC_AND_GROUP: (UserResource.TOPIC, UserResource.GROUP),
}
WHOLE = frozenset({Resource.CLUSTER, Resource.BROKER, Resource.CLIENT})
_AUDITED = frozenset({Action.CREATE, Action.DELETE, Action.OPERATE})
_CLIENTS = frozenset({Action.PUBLISH, Action.CONSUME})
_USES = {
    UserResource.TOPIC: {Action.PUBLISH: "to send", Action.CONSUME: "to receive"},
    UserResource.GROUP: {Action.CONSUME: "to receive"},
}
"""Actions for which programs use a name of the kind, with their purpose."""
SOFT = frozenset({Action.CONSUME, Action.DESCRIBE})


class ClientOwners:
    """Owners of client ids, the longest silent one first: while its client is alive, an id belongs to one user, and no
    other user can act under it.

    Under a client id servers send commands to the client's stream, half messages among them, end its deliveries when it
    terminates, and lock queues. An id belongs to the first user who used it, until it is silent for a while or
    terminates. The number is bounded for each user and in total. A bound refuses new ids and never evicts live ones, so
    nobody can take over an id by using very many.
    """

    def __init__(self, *, silence_ms: int = 120_000, user_max: int = 50_000, owners_max: int = 100_000) -> None:
        """`silence_ms`: time after its last call when an id is free; SDKs send a heartbeat every 10 s."""
        self._silence_ms = silence_ms
        self._user_max = user_max
        self._owners_max = owners_max
        self._owners: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._counts: dict[str, int] = {}  # number of ids by user

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, client_id: str, user: str, now_ms: int) -> None:
        """Records that the user acts under the id, at a monotonic time. Raises Forbidden if it is another user's,
        TooManyRequests if the user has too many.
        """
        owner = self._owners.get(client_id)
        if owner is None or owner[0] != user:
            if owner is not None and now_ms - owner[1] < self._silence_ms:
                raise Forbidden(f"client id {client_id!r:.300} is another user's; give each client its own")
            self.leave(client_id)
            self._must_have_room(user, now_ms)
            self._counts[user] = self._counts.get(user, 0) + 1
        self._owners[client_id] = (user, now_ms)
        self._owners.move_to_end(client_id)

    def leave(self, client_id: str) -> None:
        """Releases an id whose client terminated, or is silent."""
        owner = self._owners.pop(client_id, None)
        if owner is not None:
            self._counts[owner[0]] -= 1
            if not self._counts[owner[0]]:
                del self._counts[owner[0]]

    def _must_have_room(self, user: str, now_ms: int) -> None:
        # Two for each new one, so that silent ids are removed before they fill the table.
        for _ in range(2):
            oldest = next(iter(self._owners), None)
            if oldest is None or now_ms - self._owners[oldest][1] < self._silence_ms:
                break
            self.leave(oldest)
        count = self._counts.get(user, 0)
        if count >= self._user_max:
            raise TooManyRequests(
                f"user {user} has {count} clients at this server, the limit is auth.user_clients_max: close clients "
                f"that are not used, or wait {self._silence_ms} ms after their last call"
            )
        if len(self._owners) >= self._owners_max:
            raise TooManyRequests(f"this server has {len(self._owners)} clients, the limit; try again after a pause")


@dataclass(frozen=True, slots=True)
class _Proof:
    """A verified signature."""

    user: User
    dated_ms: int | None
    """Time in its date header, ms; None if the date is not checked."""


@dataclass(slots=True)
class _OpenStream:
    """The rights that an open stream depends on."""

    user: str
    authorization: str
    date: str
    access: Access
    named: Sequence[Named] = ()
    """Names of its last message that has names, as far as its user has grants for them."""
    every: Sequence[UserResource] = ()
    """Kinds of which it needs every name: its request names none."""


class _Refusals:
    """Refusals of one user, call and verdict since the last log line about them."""

    __slots__ = ("left_out", "quiet_until_ms")

    def __init__(self) -> None:
        self.left_out = 0
        self.quiet_until_ms = 0


class Guard:
    """The guard of one server; belongs to its loop."""

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
        """`clock_skew_ms`: largest error of a call's date, in addition to time zones; 0 = not checked. `cache_max`:
        remembered signatures. `user_clients_max`: live client ids of one user; `clients_max`: of all.
        """
        self._users = users  # the users in force; replaced as a whole by `change`
        self._clock = clock
        self._skew_ms = clock_skew_ms
        self._half_max = max(1, cache_max // 2)
        # By (authorization, date): the newer half with at most `_half_max`, and the older half, dropped as a whole.
        self._proofs: dict[tuple[str, str], _Proof] = {}
        self._older: dict[tuple[str, str], _Proof] = {}
        self._open: dict[asyncio.Task[Any], _OpenStream] = {}  # streams by the task that runs them
        self._revoked: dict[asyncio.Task[Any], Unauthorized | Forbidden] = {}  # verdicts of tasks being cancelled
        self._refusals: OrderedDict[tuple[str, str, int], _Refusals] = OrderedDict()  # at most REFUSALS_MAX
        self._held = 0  # refusals that wait in `_late`; at most HELD_MAX
        self._owners = ClientOwners(user_max=user_clients_max, owners_max=max(clients_max, user_clients_max))

    @property
    def users(self) -> Users:
        """Users in force."""
        return self._users

    def change(self, users: Users) -> None:
        """Replaces the users. Ends open streams whose signature is no longer right, or that depend on a removed grant;
        their rights are decided again when the client reconnects.
        """
        self._users = users
        self._proofs, self._older = {}, {}
        # Streams are signed once, when they open, and may last for years: a revoked key or grant must end them.
        for task, stream in list(self._open.items()):
            proof = self._proven(stream.authorization, stream.date)
            lost = None if proof is None else self._lost(proof.user, stream)
            if proof is None:  # the user or the secret is gone
                self._revoked[task] = Unauthorized(f"user {stream.user} is no longer known, or has another secret key")
            elif lost:  # a grant is gone that the last message needs
                self._revoked[task] = Forbidden(
                    f"user {stream.user} may no longer {lost}; a grant was removed from the users file"
                )
            else:
                continue
            task.cancel()

    def _lost(self, user: User, stream: _OpenStream) -> str:
        """Returns a right that the stream needs and its user does not have; empty: none."""
        action = stream.access.action
        for one in stream.named:
            if not user.may(one.kind, one.action or action, one.name):
                return f"{one.action or action} {one.kind} {one.name}"
        for kind in stream.every:
            if not user.may_all(kind, action):
                return f"{action} {'the' if kind is UserResource.CLUSTER else 'every'} {kind}"
        return ""

    def guarded(self, rpc: Rpc) -> Rpc:
        """Returns the same call with the checks. Raises SettingsError for a call without rules to decide it."""
        call = CALLS.get(rpc.method)
        names = call.names if call is not None else None
        if rpc.access.resource in KINDS and names is None:
            raise SettingsError(f"{rpc.method} is about a {rpc.access.resource}, but no row lists where it names one")
        if rpc.kind is RpcKind.BIDI:
            return replace(rpc, handler=self._stream(rpc, cast("Bidi", rpc.handler), names))
        if rpc.kind is RpcKind.SERVER_STREAM:
            return replace(rpc, handler=self._server_stream(rpc, cast("ServerStream", rpc.handler), names))
        handler, identify, decide = cast("Unary", rpc.handler), self.identify, self._decide
        nameless_is_ok = rpc.method == HEARTBEAT
        owned, answers_topics = _is_a_clients(rpc.access), rpc.method == LOCK_QUEUES

        def checked(request: bytes, context: RpcContext) -> Awaitable[bytes]:
            # Go's heartbeat without any header, which changes nothing.
            if nameless_is_ok and not context.client_id and AUTHORIZATION not in context.headers:
                return handler(request, context)
            user = identify(context)
            if not user.internal:  # a server may do everything; it names the user whose call it passes on
                decide(user, rpc, names, request, context)
            elif owned:
                self._claim(context.client_id, context.headers.get(ACTS_FOR, ""), rpc, context)
                if answers_topics and names is not None:
                    context.refused = self._refused_to_user(rpc.access, names, request, context)
            return handler(request, context)

        return replace(rpc, handler=checked)

    def identify(self, context: RpcContext) -> User:
        """Returns the calling user. Raises Unauthorized."""
        headers = context.headers
        authorization, date = headers.get(AUTHORIZATION, ""), headers.get(DATE_TIME, "")
        proof = self._proofs.get((authorization, date)) or self._proven(authorization, date)
        if proof is None:  # the reason is derived again, because failures are not remembered
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
                f"the call is dated {date} (x-mq-date-time), but this server's clock shows "
                f"{date_time(self._clock.now_ms())}, more than {self._skew_ms} ms apart in every time zone: correct "
                "the wrong clock"
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
            # An unknown user costs the same as a known one with a wrong secret.
            secrets = user.secrets if user is not None else self._users.internal.secrets[:1]
            # All secrets are compared, also after a match: the time must not reveal which one it was.
            right = [fits(claim, secret, date) for secret in secrets]
            if user is None or not any(right):
                return None
            known = _Proof(user, moment_ms(date) if self._skew_ms else None)
        # Two halves: the older one is dropped as a whole. Used proofs move to the newer one, and no age is kept.
        if len(self._proofs) >= self._half_max:
            self._older, self._proofs = self._proofs, {}
        self._proofs[authorization, date] = known
        return known

    def _fresh(self, proof: _Proof) -> bool:
        # Four SDKs write local time as if it were UTC, so a zone's offset is not an error (contract 2.2).
        if proof.dated_ms is None:  # the date has no known form
            return False
        off_ms = self._clock.now_ms() - proof.dated_ms
        within = (off_ms + self._skew_ms) % ZONE_STEP_MS <= 2 * self._skew_ms
        return within and abs(off_ms) <= ZONE_MAX_MS + self._skew_ms

    # ------------------------------------------------------------------------------------------------- what one may

    def _decide(self, user: User, rpc: Rpc, names: Names | None, request: bytes, context: RpcContext) -> None:
        """Raises Forbidden. Not called for the internal user, who may do everything."""
        access = rpc.access
        action, kinds = access.action, KINDS.get(access.resource)
        if action is Action.INTERNAL:
            raise self._forbidden(user, context, "do what servers do among themselves", "internal = true for it")
        # The call names no topic or group, or operates on the whole cluster.
        if kinds is None and (names is None or action is Action.OPERATE):
            if access.resource in WHOLE and not user.may_all(UserResource.CLUSTER, action):
                raise self._forbidden(user, context, f"{action} the cluster", _grant("cluster", action))
        elif not user.unbound and names is not None:
            plain = context.plain
            if plain is None:  # names of a decoded request
                message = names.read(request, context.decoded)
                named, acts_as = names.of(message), names.client_of(message)
            else:  # a plain request names one topic
                message, named, acts_as = None, [Named(UserResource.TOPIC, plain.topic)], ""
            if rpc.method == LOCK_QUEUES:
                context.refused = self._refused(user, access, named, context)
                named = [one for one in named if one.kind is UserResource.GROUP]
            if not self._reads_replies(user, names, named, message):
                self._check_named(user, access, named, context)
            self._check_missing(user, access, kinds or (), named, context)
            if acts_as and acts_as != context.client_id:
                self._claim(acts_as, user.name, rpc, context)
        if _is_a_clients(access):
            self._claim(context.client_id, user.name, rpc, context)
        if action in _AUDITED or access.audited:
            self._audit(user, context)

    def _claim(self, client_id: str, user: str, rpc: Rpc, context: RpcContext) -> None:
        """Claims the client id for the user. Raises Forbidden for another user's, TooManyRequests beyond its share."""
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
        """Returns whether the call reads only its own replies, for which the right to reply is enough."""
        return (
            message is not None
            and names.asks_for_replies(message)
            and all(user.may(one.kind, Action.REPLY, one.name) for one in named)
        )

    def _check_missing(
        self, user: User, access: Access, kinds: Sequence[UserResource], named: Sequence[Named], context: RpcContext
    ) -> None:
        for kind in _left_out(access, kinds, named):
            if not user.may_all(kind, access.action):
                what = f"{access.action} every {kind}, and the call names none"
                raise self._forbidden(user, context, what, _grant(f"{kind}:*", access.action))

    def _check_named(self, user: User, access: Access, named: Sequence[Named], context: RpcContext) -> None:
        for one in named:
            action = one.action or access.action
            if not user.may(one.kind, action, one.name):
                # Every action includes `describe`, so the user has none on this name. A send begins with the query of
                # a route: its error must name the action that the send needs, not the one of that query.
                uses = _USES.get(one.kind, {}) if action is Action.DESCRIBE else {}
                what = f"{', '.join(uses)} or {action}" if uses else action
                resource = f"{one.kind}:{one.name}"
                grants = [f"{_grant(resource, use)} {purpose}" for use, purpose in uses.items()]
                remedy = ", or ".join(grants) or _grant(resource, action)
                raise self._forbidden(user, context, f"{what} {one.kind} {one.name}", remedy)

    def _refused(
        self, user: User, access: Access, named: Sequence[Named], context: RpcContext
    ) -> frozenset[tuple[str, str]]:
        missing = [one for one in named if not user.may(one.kind, one.action or access.action, one.name)]
        if missing:
            self._log_refusal(user.name, context, Forbidden.code)
        return frozenset((one.kind, one.name) for one in missing)

    def _refused_to_user(
        self, access: Access, names: Names, request: bytes, context: RpcContext
    ) -> frozenset[tuple[str, str]]:
        """Returns the refused names of a call that a server passed on. A user that is not known here yet has none: the
        server has checked the call.
        """
        user = self._users.get(context.headers.get(ACTS_FOR, ""))
        if user is None or user.unbound:
            return frozenset()
        return self._refused(user, access, names.of(names.read(request, context.decoded)), context)

    def _forbidden(self, user: User, context: RpcContext, what: str, remedy: str) -> Forbidden:
        self._log_refusal(user.name, context, Forbidden.code)
        return Forbidden(f"user {user.name} may not {what}; it may if the users file has {remedy}")

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
            if rpc.method in POLLS:
                return handler(request, context)
            stream = _opened(user, rpc.access, context)
            if names is not None:
                stream.named = names.of(names.read(request, context.decoded))
                stream.every = _left_out(rpc.access, KINDS.get(rpc.access.resource, ()), stream.named)
            elif rpc.access.action is not Action.INTERNAL:
                stream.every = (UserResource.CLUSTER,)
            return self._watched(lambda: (stream, handler(request, context)), context)

        return checked

    async def _watched(
        self, begin: Callable[[], tuple[_OpenStream, AsyncIterator[Frames]]], context: RpcContext
    ) -> AsyncIterator[Frames]:
        """Yields the frames of a stream, which `change` may end."""
        stream, frames = begin()
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = stream
        try:
            async for frame in frames:
                yield frame
                del frame  # the next one may reuse its memory
        except asyncio.CancelledError as cancelled:
            verdict = self._revoked.get(task)
            if verdict is None:  # an ordinary cancellation
                raise
            task.uncancel()  # by `change`: the stream ends with the verdict
            self._log_refusal(stream.user, context, verdict.code)
            raise verdict from cancelled
        finally:
            self._open.pop(task, None)
            self._revoked.pop(task, None)
            await close_frames(frames)

    async def _late(self, error: Exception, context: RpcContext) -> AsyncIterator[bytes]:
        """Delays a refusal: Go's push consumers call again 20 ms after any error (wire contract 3.9). A bounded number
        waits at a time, so that callers cannot fill the server with them.
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
        yield b""  # never reached: it makes this a stream

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
                    if answers_all or answers_topics:  # names without a grant are left out
                        context.refused = self._refused(user, access, named, context)
                    if answers_topics:  # but the group itself must be allowed
                        groups = [one for one in named if one.kind is UserResource.GROUP]
                        self._check_named(user, access, groups, context)
                    elif not answers_all:  # every name must be allowed
                        self._check_named(user, access, named, context)
                    if named:
                        stream.named = [one for one in named if (one.kind, one.name) not in context.refused]
                elif answers_topics and names is not None and user.internal:
                    context.refused = self._refused_to_user(access, names, request, context)
                yield request

        def opened(requests: AsyncIterator[bytes], context: RpcContext) -> tuple[_OpenStream, AsyncIterator[Frames]]:
            user = self.identify(context)
            if names is None and not user.internal:
                self._decide(user, rpc, None, b"", context)
            if _is_a_clients(access) and not user.internal:
                self._claim(context.client_id, user.name, rpc, context)
            stream = _opened(user, access, context)
            return stream, handler(each(requests, context, stream), context)

        return lambda requests, context: self._watched(lambda: opened(requests, context), context)

    def identify_open(self, context: RpcContext) -> User:
        """Returns the user who opened a stream, whose date may be old by now. Raises Unauthorized."""
        authorization, date = context.headers[AUTHORIZATION], context.headers[DATE_TIME]
        proof = self._proofs.get((authorization, date)) or self._proven(authorization, date)
        if proof is None:
            raise Unauthorized("the user who opened this stream is no longer known, or has another secret key")
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
        """Logs one line per user, call and verdict a minute, with the number of omitted ones, so that a client that
        retries does not fill the disk. `claimed`: an unproven name. It is shown but is not part of the key, because
        callers can invent any number of names.
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


def _opened(user: User, access: Access, context: RpcContext) -> _OpenStream:
    return _OpenStream(user.name, context.headers[AUTHORIZATION], context.headers[DATE_TIME], access)


def _left_out(access: Access, kinds: Sequence[UserResource], named: Sequence[Named]) -> list[UserResource]:
    """Returns the kinds of which a call is about every name, since it names none."""
    named_kinds = {one.kind for one in named if one.action is None}
    # An empty name means all of a kind. Where a call reads, the other kind's name limits it.
    return [kind for kind in kinds if kind not in named_kinds and not (named_kinds and access.action in SOFT)]


def _grant(resource: str, action: Action) -> str:
    return f'{{ resource = "{resource}", actions = ["{action}"] }}'


def _is_a_clients(access: Access) -> bool:
    """Returns whether clients send, receive or report themselves with the call: state is kept under their ids."""
    return access.action in _CLIENTS
