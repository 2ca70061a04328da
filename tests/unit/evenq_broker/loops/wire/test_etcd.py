"""Messages of etcd: a key that is not there, one that was deleted, and bytes that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from evenq_broker.loops.wire.etcd import (
    KeyChange,
    KeyRead,
    KeyValue,
    change_of,
    read_of,
    token_of,
    watch_key,
    write_unchanged,
    written_at,
)

from evenq.errors import ConnectionFailed
from evenq.wire.stubs.etcd import kv_pb2, rpc_pb2


def test_a_key_is_read_with_the_revision_at_which_it_was_written() -> None:
    response = rpc_pb2.RangeResponse()
    response.header.revision = 9
    assert read_of(response.SerializeToString(), "e") == KeyRead(None, 9)
    response.kvs.add(key=b"k", value=b"v", mod_revision=7)
    assert read_of(response.SerializeToString(), "e") == KeyRead(KeyValue(b"v", 7), 9)


def test_a_write_compares_the_revision_and_says_whether_it_won() -> None:
    asked = rpc_pb2.TxnRequest.FromString(write_unchanged(b"k", b"v", 7))
    [compare] = asked.compare
    assert (compare.key, compare.mod_revision, compare.target) == (b"k", 7, rpc_pb2.Compare.MOD)
    assert compare.result == rpc_pb2.Compare.EQUAL
    assert asked.success[0].request_put.value == b"v"
    response = rpc_pb2.TxnResponse(succeeded=True)
    response.header.revision = 8
    assert written_at(response.SerializeToString(), "e") == 8
    response.succeeded = False
    assert written_at(response.SerializeToString(), "e") is None


def test_a_watch_tells_the_last_change_a_deletion_too_and_its_own_end() -> None:
    assert rpc_pb2.WatchRequest.FromString(watch_key(b"k", 5)).create_request.start_revision == 5
    event = rpc_pb2.WatchResponse()
    assert change_of(event.SerializeToString(), "e") == KeyChange(False, False, None), "created, nothing happened"
    event.events.add(type=kv_pb2.Event.DELETE)
    assert change_of(event.SerializeToString(), "e") == KeyChange(False, True, None)
    event.events.add(type=kv_pb2.Event.PUT, kv=kv_pb2.KeyValue(value=b"v", mod_revision=6))
    assert change_of(event.SerializeToString(), "e") == KeyChange(False, True, KeyValue(b"v", 6))
    event.canceled = True
    assert change_of(event.SerializeToString(), "e").canceled


@pytest.mark.parametrize("read", [read_of, written_at, change_of, token_of])
def test_bytes_that_are_not_of_etcd_are_an_error_that_names_where_they_came_from(
    read: Callable[[bytes, str], Any],
) -> None:
    with pytest.raises(ConnectionFailed, match="the record of a: the server there is not etcd v3"):
        read(b"\xff\xff", "the record of a")
