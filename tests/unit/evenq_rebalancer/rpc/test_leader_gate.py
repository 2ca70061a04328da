"""Who does not lead says who does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_proofs.rpcs import fake_rpc
from evenq_rebalancer.rpc.leader_gate import BEAT, LeaderGate

from evenq.errors import ConnectionFailed
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2

CONTEXT = RpcContext("m", (), "1.2.3.4:5", None)
ACCESS = Access(Resource.BROKER, Action.INTERNAL)


def term(end: asyncio.Event) -> dict[str, Rpc]:
    async def ask(request: bytes, _context: RpcContext) -> bytes:
        return request + b"!"

    async def report(_requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
        yield b"decision"
        await end.wait()

    return {
        "ask": fake_rpc("ask", ask, assignment_pb2.ExplainResponse, access=ACCESS),
        "report": fake_rpc("report", report, assignment_pb2.Decision, kind=CallKind.BIDI, access=ACCESS),
    }


async def nothing() -> AsyncIterator[bytes]:
    for frame in ():
        yield frame


async def test_a_leader_serves_and_gives_a_sign_of_life_first_and_a_follower_names_the_leader() -> None:
    end = asyncio.Event()
    present: dict[str, Rpc] | None = term(end)
    leader_gate = LeaderGate(term=lambda: present, leader=lambda: "h:1")
    rpcs: dict[str, Any] = {rpc.method: rpc for rpc in leader_gate.rpcs(term(end))}
    assert await rpcs["ask"].handler(b"x", CONTEXT) == b"x!"
    stream = rpcs["report"].handler(nothing(), CONTEXT)
    assert [await anext(stream), await anext(stream)] == [BEAT, b"decision"]
    present = None
    end.set()
    rest = [assignment_pb2.Decision.FromString(frame) async for frame in stream]
    assert [decision.leader for decision in rest] == ["h:1"], "the term ended under it"
    with pytest.raises(ConnectionFailed, match="leader is h:1"):
        await rpcs["ask"].handler(b"x", CONTEXT)
    response = [assignment_pb2.Decision.FromString(frame) async for frame in rpcs["report"].handler(nothing(), CONTEXT)]
    assert [decision.leader for decision in response] == ["h:1"]


async def test_a_stream_that_ends_within_its_term_just_ends() -> None:
    end = asyncio.Event()
    end.set()
    present = term(end)
    leader_gate = LeaderGate(term=lambda: present, leader=lambda: "h:1")
    report: Any = {rpc.method: rpc for rpc in leader_gate.rpcs(present)}["report"].handler
    assert [frame async for frame in report(nothing(), CONTEXT)] == [BEAT, b"decision"]
