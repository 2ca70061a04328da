"""A group record that is one key of etcd v3.

A compare-and-set is a transaction that compares the key's `mod_revision`, which no two changes of a store share; it is
the token. Reads are linearizable. Several endpoints are tried in turn: the one that answered last is kept until it
fails, so a member that is down, cut off or without a leader costs one try. With a user, the login's token is sent with
each call and fetched anew when etcd refuses it. No client library: four calls over the project's own net, with stubs
of `protos/etcd`. Call `etcd_net` for the net, and close it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from evenq.errors import ConnectionFailed, Error, IllegalAccessPoint, SettingsError
from evenq.runtime.net import Net
from evenq.wire.addresses import PLAIN, TLS, target_of
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.etcd import kv_pb2, rpc_pb2
from evenq.wire.tls import Tls
from evenq_broker.core.replication.record import GroupRecord
from evenq_broker.loops.coordinators.etcd_errors import AuthIsOff, TokenRefused, etcd_error
from evenq_broker.loops.coordinators.remote import Look, StoredRecord, stored_of

__all__ = ["EtcdStore", "EtcdUser", "endpoints_of", "etcd_net"]

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
MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """A login."""

    name: str
    password: str = field(repr=False)


def etcd_net(*, tls: Tls | None = None) -> GrpcNet:
    """A net to etcd; `tls`: how endpoints with https:// are spoken to, and those without a scheme, if it is given."""
    return GrpcNet(tls=tls, options=OPTIONS, channels_max=ENDPOINTS_MAX, error_table=etcd_error)


def endpoints_of(text: str) -> tuple[str, ...]:
    """Client URLs of etcd with a comma between: `host:port`, with http:// or https:// in front if wanted. Raises
    SettingsError.
    """
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        address = one.rstrip("/").replace("https://", TLS, 1).replace("http://", PLAIN, 1)
        try:
            target_of(address)
        except IllegalAccessPoint as error:
            raise SettingsError(
                f"etcd endpoint {one!r} is no client URL; write host:port, http://host:port or https://host:port"
            ) from error
        found.append(address)
    if not 1 <= len(found) <= ENDPOINTS_MAX:
        raise SettingsError(f"{len(found)} endpoints of etcd in {text!r}; give 1 to {ENDPOINTS_MAX}")
    return tuple(found)


class EtcdStore:
    """A RecordStore. Belongs to one loop."""

    def __init__(
        self, net: Net, endpoints: Sequence[str], key: str, *, user: EtcdUser | None = None, call_ms: int = CALL_MS
    ) -> None:
        """`net`: of `etcd_net`; `endpoints`: of `endpoints_of`. Raises SettingsError for a key that cannot be one."""
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
        request = rpc_pb2.RangeRequest(key=self._key)
        answer = await self._call(RANGE, request.SerializeToString())
        response = _parsed(rpc_pb2.RangeResponse(), answer, self._name)
        return Look(self._stored(response.kvs[0]) if response.kvs else None, str(response.header.revision))

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:  # noqa: ARG002 - text has it all
        """See RecordStore."""
        unchanged = rpc_pb2.Compare(
            result=rpc_pb2.Compare.EQUAL,
            target=rpc_pb2.Compare.MOD,
            key=self._key,
            mod_revision=int(token or 0),
        )
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=self._key, value=text.encode("utf-8")))
        request = rpc_pb2.TxnRequest(compare=[unchanged], success=[put])
        response = _parsed(rpc_pb2.TxnResponse(), await self._call(TXN, request.SerializeToString()), self._name)
        return str(response.header.revision) if response.succeeded else None

    async def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        """See RecordStore. Ends when `since` was compacted away, and when the key is deleted."""
        endpoint, over = self._all[self._at], asyncio.Event()
        create = rpc_pb2.WatchCreateRequest(key=self._key, start_revision=int(since) + 1)
        request = rpc_pb2.WatchRequest(create_request=create).SerializeToString()

        async def requests() -> AsyncIterator[bytes]:
            yield request
            await over.wait()  # etcd ends the watch when the requests end

        try:
            headers = {**await self._headers(endpoint), "hasleader": "true"}  # a member that is cut off ends the watch
            stream = self._net.stream(endpoint, WATCH, requests(), timeout_ms=None, metadata=headers)
            async with aclosing(stream) as frames:  # type: ignore[type-var]  # a net's stream is a generator
                async for frame in frames:
                    response = _parsed(rpc_pb2.WatchResponse(), frame, self._name)
                    if response.canceled:
                        return
                    if response.events:
                        event = response.events[-1]
                        yield None if event.type == kv_pb2.Event.DELETE else self._stored(event.kv)
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
        """Go to the next endpoint, if nobody did so meanwhile."""
        if error.retryable and self._all[self._at] == failed:
            self._at = (self._at + 1) % len(self._all)

    async def _headers(self, endpoint: str) -> dict[str, str]:
        if self._user is None:
            return {}
        if not self._token:
            login = rpc_pb2.AuthenticateRequest(name=self._user.name, password=self._user.password)
            try:
                answer = await self._net.unary(
                    endpoint, AUTHENTICATE, login.SerializeToString(), timeout_ms=LOGIN_MS, metadata=None
                )
            except AuthIsOff:
                return {}
            self._token = _parsed(rpc_pb2.AuthenticateResponse(), answer, self._name).token
        return {"token": self._token}

    def _stored(self, pair: kv_pb2.KeyValue) -> StoredRecord:
        return stored_of(pair.value, str(pair.mod_revision), self._name)


def _parsed(message: MessageT, data: bytes, name: str) -> MessageT:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ConnectionFailed(f"{name}: what answers there is not etcd v3: {error}") from error
    return message
