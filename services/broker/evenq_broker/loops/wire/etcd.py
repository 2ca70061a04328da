"""Messages of etcd v3 for a group record in one key. Parsing invalid bytes raises ConnectionFailed with `name`."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from evenq.errors import ConnectionFailed
from evenq.wire.stubs.etcd import kv_pb2, rpc_pb2

MessageT = TypeVar("MessageT", bound=Message)


class KeyValue(NamedTuple):
    """Content of the key."""

    value: bytes
    revision: int
    """Of the store when it was written (`mod_revision`)."""


class KeyRead(NamedTuple):
    """Result of a read; `key_value` None: the key does not exist."""

    key_value: KeyValue | None
    revision: int
    """Of the store."""


class KeyChange(NamedTuple):
    """Event of a watch."""

    canceled: bool
    """The watch ended: its first revision was compacted away."""
    happened: bool
    """False: nothing happened to the key yet."""
    value: KeyValue | None
    """As it is now; None: it was deleted."""


def read_key(key: bytes) -> bytes:
    """Requests the key."""
    return rpc_pb2.RangeRequest(key=key).SerializeToString()


def read_of(response: bytes, name: str) -> KeyRead:
    """Returns the answer to `read_key`."""
    message = _parsed(rpc_pb2.RangeResponse(), response, name)
    return KeyRead(_value(message.kvs[0]) if message.kvs else None, message.header.revision)


def write_unchanged(key: bytes, value: bytes, revision: int) -> bytes:
    """Requests to write the key if it was last written at `revision`; 0: if it does not exist."""
    unchanged = rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=rpc_pb2.Compare.MOD, key=key, mod_revision=revision
    )
    put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=value))
    return rpc_pb2.TxnRequest(compare=[unchanged], success=[put]).SerializeToString()


def written_at(response: bytes, name: str) -> int | None:
    """Returns the revision of the store with the write of `write_unchanged`; None: the key had changed."""
    message = _parsed(rpc_pb2.TxnResponse(), response, name)
    return message.header.revision if message.succeeded else None


def watch_key(key: bytes, start_revision: int) -> bytes:
    """Requests changes of the key, from that revision of the store on."""
    create = rpc_pb2.WatchCreateRequest(key=key, start_revision=start_revision)
    return rpc_pb2.WatchRequest(create_request=create).SerializeToString()


def change_of(event: bytes, name: str) -> KeyChange:
    """Returns the event of a watch; of several changes the last."""
    message = _parsed(rpc_pb2.WatchResponse(), event, name)
    if message.canceled or not message.events:
        return KeyChange(message.canceled, False, None)
    newest = message.events[-1]
    return KeyChange(False, True, None if newest.type == kv_pb2.Event.DELETE else _value(newest.kv))


def log_in(user: str, password: str) -> bytes:
    """Requests a token."""
    return rpc_pb2.AuthenticateRequest(name=user, password=password).SerializeToString()


def token_of(response: bytes, name: str) -> str:
    """Returns the answer to `log_in`."""
    return _parsed(rpc_pb2.AuthenticateResponse(), response, name).token


def _value(pair: kv_pb2.KeyValue) -> KeyValue:
    return KeyValue(pair.value, pair.mod_revision)


def _parsed(message: MessageT, data: bytes, name: str) -> MessageT:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ConnectionFailed(f"{name}: the server there is not etcd v3: {error}") from error
    return message
