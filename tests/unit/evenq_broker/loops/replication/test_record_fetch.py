"""What another copy sends in place of damaged records is bounded by what was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.loops.replication.record_fetch import METHOD, STALL_MS, fetch_records
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import LinkOpening, MalformedMessage
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import BadRequest, ConnectionFailed, RequestTimeout
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import CallKind
from evenq.wire.stubs.evenq.v1 import replication_pb2 as pb

ADDRESS = "host-0:8081"


def fetched(*pieces: bytes, ends: bool = True, address: str = ADDRESS) -> bytes:
    """Ten bytes are asked for, and these come."""

    async def send(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if not ends:
            await asyncio.Event().wait()

    async def body() -> bytes:
        clock = FakeClock()
        net = LoopNet(clock)
        net.serve(
            ADDRESS,
            [
                fake_rpc(METHOD, send, pb.FetchedRecords, kind=CallKind.SERVER_STREAM, access=CALLS[METHOD].access)
            ],
        )  # fmt: skip
        who = LinkOpening("c", "broker-a", 1, 0)
        try:
            return await clock.during(fetch_records(net, address, who, WantedRecords(5, 15, 0), clock=clock))
        finally:
            assert len(asyncio.all_tasks()) == 1, "nothing is left running"

    return asyncio.run(body())


def piece(data: bytes) -> bytes:
    return pb.FetchedRecords(data=data).SerializeToString()


def test_pieces_are_put_together_and_may_be_fewer_than_were_asked_for() -> None:
    assert fetched(piece(b"0123"), piece(b"456789")) == b"0123456789"
    assert fetched(piece(b"0123")) == b"0123"
    assert fetched() == b""


def test_more_than_was_asked_for_is_refused_before_it_is_all_there() -> None:
    with pytest.raises(BadRequest, match="more than the 10 bytes"):
        fetched(piece(b"0123"), piece(b"4567890"), ends=False)


def test_what_is_no_piece_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        fetched(b"\xff\xff\xff")


def test_who_sends_nothing_for_a_while_is_left() -> None:
    with pytest.raises(RequestTimeout, match=f"nothing of the records for {STALL_MS} ms"):
        fetched(piece(b"0123"), ends=False)


def test_where_nobody_serves_nothing_comes() -> None:
    with pytest.raises(ConnectionFailed):
        fetched(address="host-9:1")
