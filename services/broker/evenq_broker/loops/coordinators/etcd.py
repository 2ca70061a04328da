"""A group record that is one key of etcd v3.

A compare-and-set is a transaction that compares the key's `mod_revision`, the token; no two changes of a store share
it. Reads are linearizable. Several endpoints are tried in turn: the one that answered last is kept until it fails, so a
member that is down, isolated or without a leader costs one try. With a user, each call sends the login's token, which
is renewed when etcd rejects it. The caller gets the net from `etcd_net` and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from evenq import errors
from evenq.errors import Error, IllegalAccessPoint, SettingsError
from evenq.runtime.net import Net
from evenq.wire.addresses import PLAIN, TLS, target_of
from evenq.wire.call_errors import late
from evenq.wire.http2.codes import Status
from evenq.wire.net import GrpcNet
from evenq.wire.tls import Hints, Tls
from evenq_broker.core.replication.record import GroupRecord
from evenq_broker.loops.coordinators.remote import Look, StoredRecord, stored_of
from evenq_broker.loops.wire.etcd import (
    KeyValue,
    change_of,
    log_in,
    read_key,
    read_of,
    token_of,
    watch_key,
    write_unchanged,
    written_at,
)

CALL_MS = 1_500
"""One try at one endpoint: three of them fit into the time of one call."""
LOGIN_MS = 1_500
ENDPOINTS_MAX = 9
KEY_BYTES_MAX = 1_024
RANGE, TXN = "/etcdserverpb.KV/Range", "/etcdserverpb.KV/Txn"
WATCH, AUTHENTICATE = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Auth/Authenticate"
OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.keepalive_permit_without_calls", 0),  # etcd ends connections that ping without a call
)
HINTS = Hints(
    ca="replication.etcd_ca",
    certificate="etcd users in place of clients' certificates (replication.etcd_user, replication.etcd_password)",
    server_name="etcd a certificate for it",
    speak_tls="https:// in front of it in replication.record",
    speak_plain="http://",
)


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """A login."""

    name: str
    password: str = field(repr=False)


def etcd_net(*, tls: Tls | None = None) -> GrpcNet:
    """Returns a net to etcd; `tls`: for endpoints with https://, and if it is given also for those without a scheme."""
    return GrpcNet(
        tls=replace(tls or Tls(), hints=HINTS),
        encrypted=tls is not None,
        options=OPTIONS,
        channels_max=ENDPOINTS_MAX,
        error_table=etcd_error,
    )


def endpoints_of(text: str) -> tuple[str, ...]:
    """Parses client URLs of etcd: `host:port`, also with http:// or https://, with commas. Raises SettingsError."""
    addresses = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        address = one.rstrip("/").replace("https://", TLS, 1).replace("http://", PLAIN, 1)
        try:
            target_of(address)
        except IllegalAccessPoint as error:
            raise SettingsError(
                f"etcd endpoint {one!r} is not a client URL; write host:port, http://host:port or https://host:port"
            ) from error
        addresses.append(address)
    if not 1 <= len(addresses) <= ENDPOINTS_MAX:
        raise SettingsError(f"{len(addresses)} endpoints of etcd in {text!r}; give 1 to {ENDPOINTS_MAX}")
    return tuple(addresses)


class EtcdStore:
    """A RecordStore. Belongs to one loop."""

    def __init__(
        self, net: Net, endpoints: Sequence[str], key: str, *, user: EtcdUser | None = None, call_ms: int = CALL_MS
    ) -> None:
        """`net`: of `etcd_net`; `endpoints`: of `endpoints_of`. Raises SettingsError for a key of an illegal length."""
        self._key = key.encode("utf-8")
        if not 1 <= len(self._key) <= KEY_BYTES_MAX:
            raise SettingsError(f"key of etcd with {len(self._key)} bytes; give 1 to {KEY_BYTES_MAX}")
        self._net = net
        self._all = tuple(endpoints)
        self._at = 0
        self._user = user
        self._call_ms = call_ms
        self._token = ""
        self._name = f"{key} of etcd at {', '.join(target_of(one).target for one in endpoints)}"

    @property
    def name(self) -> str:
        """See RecordStore."""
        return self._name

    @property
    def endpoints(self) -> int:
        """See RecordStore."""
        return len(self._all)

    async def read(self) -> Look:
        """See RecordStore."""
        read = read_of(await self._call(RANGE, read_key(self._key)), self._name)
        return Look(None if read.key_value is None else self._stored(read.key_value), str(read.revision))

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:  # noqa: ARG002 - text has it all
        """See RecordStore."""
        request = write_unchanged(self._key, text.encode("utf-8"), int(token or 0))
        revision = written_at(await self._call(TXN, request), self._name)
        return None if revision is None else str(revision)

    async def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        """See RecordStore. Ends when `since` was compacted away, and when the key is deleted."""
        endpoint, over = self._all[self._at], asyncio.Event()
        request = watch_key(self._key, int(since) + 1)

        async def requests() -> AsyncIterator[bytes]:
            yield request
            await over.wait()  # etcd ends the watch when the requests end

        try:
            headers = {**await self._headers(endpoint), "hasleader": "true"}  # an isolated member then ends the watch
            stream = self._net.stream(endpoint, WATCH, requests(), timeout_ms=None, metadata=headers)
            async with aclosing(stream) as frames:  # type: ignore[type-var]  # a net's stream is a generator
                async for frame in frames:
                    change = change_of(frame, self._name)
                    if change.canceled:
                        return
                    if change.happened:
                        yield None if change.value is None else self._stored(change.value)
        except Error as error:
            self._turn(endpoint, error)
            raise
        finally:
            over.set()

    # --- inside

    async def _call(self, method: str, request: bytes) -> bytes:
        endpoint = self._all[self._at]
        try:
            headers = await self._headers(endpoint)
            try:
                return await self._net.unary(endpoint, method, request, timeout_ms=self._call_ms, metadata=headers)
            except TokenRefused:
                if self._user is None:
                    raise
                if headers.get("token") == self._token:
                    self._token = ""
                headers = await self._headers(endpoint)
                return await self._net.unary(endpoint, method, request, timeout_ms=self._call_ms, metadata=headers)
        except Error as error:
            self._turn(endpoint, error)
            raise

    def _turn(self, failed: str, error: Error) -> None:
        """Switches to the next endpoint, unless another call did so meanwhile."""
        if error.retryable and self._all[self._at] == failed:
            self._at = (self._at + 1) % len(self._all)

    async def _headers(self, endpoint: str) -> dict[str, str]:
        if self._user is None:
            return {}
        if not self._token:
            login = log_in(self._user.name, self._user.password)
            try:
                response = await self._net.unary(endpoint, AUTHENTICATE, login, timeout_ms=LOGIN_MS, metadata=None)
            except AuthIsOff:
                return {}
            self._token = token_of(response, self._name)
        return {"token": self._token}

    def _stored(self, pair: KeyValue) -> StoredRecord:
        return stored_of(pair.value, str(pair.revision), self._name)


class TokenRefused(errors.Unauthorized):
    """The login's token is missing, expired, or older than a change of users. Log in again."""


class AuthIsOff(errors.Error):
    """This etcd has no users: no login is needed."""


def etcd_error(
    code: int,
    details: str,
    trailers: Iterable[tuple[str, str | bytes]],  # noqa: ARG001 - etcd puts all of it into the text
    /,
    *,
    address: str,
    method: str,
    timeout_ms: int | None,
) -> errors.Error:
    """Returns the error for a status of etcd's gRPC API, an `ErrorTable`. The texts of etcd's rejections are part of
    that API.
    """
    reason = details.removeprefix("etcdserver: ") or "no reason given"
    call = method.rpartition("/")[2]
    match code:
        case Status.UNAUTHENTICATED:
            return TokenRefused(f"etcd at {address} refuses the login's token: {reason}; log in again")
        case Status.INVALID_ARGUMENT if reason in {"user name is empty", "revision of auth store is old"}:
            return TokenRefused(f"etcd at {address} wants a login for {call}: {reason}; give a user and a password")
        case Status.INVALID_ARGUMENT if reason.startswith("authentication failed"):
            return errors.Unauthorized(f"etcd at {address} refuses the login: {reason}; give the right ones")
        case Status.FAILED_PRECONDITION if reason == "authentication is not enabled":
            return AuthIsOff(f"etcd at {address} knows no users")
        case Status.PERMISSION_DENIED:
            return errors.Forbidden(
                f"etcd at {address} forbids {call}: {reason}; give the user a role with read and write of the key"
            )
        case Status.DEADLINE_EXCEEDED if "etcdserver" not in details:
            return late(address, method, timeout_ms)
        case Status.UNIMPLEMENTED:
            return errors.Unsupported(f"{address} does not serve {method}; is it a client URL of etcd v3?")
        case Status.RESOURCE_EXHAUSTED if "space exceeded" in reason:
            return errors.TooManyRequests(
                f"etcd at {address} takes no writes: {reason}; compact and defragment it, then `etcdctl alarm disarm`"
            )
        case Status.RESOURCE_EXHAUSTED if "larger than max" in reason:
            return errors.PayloadTooLarge(
                f"etcd at {address} gives too much for {call}: {reason}; is it the right key?"
            )
        case Status.RESOURCE_EXHAUSTED:
            return errors.TooManyRequests(f"etcd at {address} is overloaded: {reason}")
        case Status.UNAVAILABLE if "etcdserver" in details:
            return errors.ConnectionFailed(
                f"etcd at {address} cannot do {call}: {reason}; see whether most of its members are up"
            )
        case Status.UNAVAILABLE | Status.CANCELLED | Status.DEADLINE_EXCEEDED:
            return errors.ConnectionFailed(
                f"no etcd answers at {address} ({call}: {reason}); is it running, and is it a client URL?"
            )
        case _:
            return errors.InternalError(f"etcd at {address} failed in {call}: {reason} (gRPC status {code})")
