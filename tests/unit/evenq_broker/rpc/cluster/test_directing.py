"""Calls that name a broker go on to it once, with their caller's name and address, and only a limited number at a time."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.rpc.cluster import directing
from evenq_broker.rpc.cluster.directing import DIRECTED, directed
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import ConnectionFailed, Forbidden, TooManyRequests
from evenq.model import BrokerAddress
from evenq.serving.rpc import CallKind, RpcContext

PULL, SCAN, SESSION = "/evenq.v1.Data/Pull", "/evenq.v1.Data/Scan", "/evenq.v1.Groups/Session"


@dataclass
class Somebody:
    name: str
    internal: bool = False

    def may_topic(self, action: Any, name: str) -> bool:
        return True


class Net:
    """Says who it was asked by, when it is let."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any) -> bytes:
        self.seen.append((address, method, dict(metadata)))
        await self.go.wait()
        return b"there " + request

    async def stream(
        self, address: str, method: str, requests: Any, *, timeout_ms: int | None, metadata: Any
    ) -> AsyncIterator[bytes]:
        self.seen.append((address, method, dict(metadata)))
        if isinstance(requests, bytes):
            yield b"there " + requests
            return
        try:
            async for request in requests:
                yield b"there " + request
        except Forbidden as error:
            raise ConnectionFailed("the stream was cancelled on this side") from error


def context(caller: Somebody | None = None, **headers: str) -> RpcContext:
    made = RpcContext(PULL, [(key.replace("_", "-"), value) for key, value in headers.items()], "10.1.1.1:5", None)
    made.caller = caller
    return made


async def ready(stage: Any) -> tuple[Net, dict[str, Any], list[RpcContext]]:
    broker = await stage.broker("a")
    other = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    broker.catalog.routes.snapshot("nameserver:1", "identity", [other], 0)
    broker.runtime.net = net = Net()
    here: list[RpcContext] = []

    async def unary(request: bytes, context: RpcContext) -> bytes:
        here.append(context)
        return b"here " + request

    async def frames(request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        here.append(context)
        yield b"here " + request

    async def bidi(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        here.append(context)
        async for request in requests:
            yield b"here " + request

    rows = ((PULL, CallKind.UNARY, unary), (SCAN, CallKind.SERVER_STREAM, frames), (SESSION, CallKind.BIDI, bidi))
    known = {rpc.method: rpc for rpc in broker.rpcs()}
    rpcs = [fake_rpc(method, handler, bytes, kind=kind, access=known[method].access) for method, kind, handler in rows]
    return (
        net,
        {rpc.method: rpc.handler for rpc in directed(broker.kernel, rpcs, cluster=broker.cluster)},
        here,
    )


async def test_it_goes_on_with_who_called_from_where_and_is_answered_there(stage: Any) -> None:
    net, handlers, here = await ready(stage)
    pull = handlers[PULL]
    assert await pull(b"x", context()) == b"here x"
    assert await pull(b"x", context(x_evenq_broker="a")) == b"here x"
    shop = Somebody("shop")
    assert await pull(b"x", context(shop, x_evenq_broker="b", x_mq_client_id="c", authorization="s")) == b"there x"
    assert net.seen == [
        ("b:8081", PULL, {"x-mq-client-id": "c", "x-evenq-user": "shop", "x-evenq-forwarded": "1",
                          "x-evenq-broker": "b", "x-evenq-peer": "10.1.1.1:5"})
    ]  # fmt: skip
    with pytest.raises(ConnectionFailed, match="'z', which the call is for, is not alive"):
        await pull(b"x", context(x_evenq_broker="z"))
    passed_on = {"x_evenq_broker": "b", "x_evenq_forwarded": "1", "x_evenq_peer": "10.2.2.2:6"}
    for caller, peer in ((None, "10.2.2.2:6"), (Somebody("i", internal=True), "10.2.2.2:6"), (shop, "10.1.1.1:5")):
        assert await pull(b"x", context(caller, **passed_on)) == b"here x", "one hop"
        assert here[-1].peer == peer, "only servers are believed"


async def test_streams_go_on_and_say_why_their_requests_were_refused(stage: Any) -> None:
    _, handlers, here = await ready(stage)

    async def words(refuse: bool) -> AsyncIterator[bytes]:
        yield b"1"
        if refuse:
            raise Forbidden("not this group")

    there = context(x_evenq_broker="b")
    assert [frame async for frame in handlers[SCAN](b"x", there)] == [b"there x"]
    assert [frame async for frame in handlers[SESSION](words(False), there)] == [b"there 1"]
    assert not here
    with pytest.raises(Forbidden, match="not this group"):
        [frame async for frame in handlers[SESSION](words(True), there)]
    assert [frame async for frame in handlers[SESSION](words(False), context())] == [b"here 1"]


async def test_only_so_many_run_to_one_broker_at_once(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directing, "RUNNING_MAX", 2)
    net, handlers, _ = await ready(stage)
    net.go.clear()
    running = [asyncio.ensure_future(handlers[PULL](b"x", context(x_evenq_broker="b"))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="already forwards 2 calls to broker b"):
        await handlers[PULL](b"x", context(x_evenq_broker="b"))
    net.go.set()
    assert await asyncio.gather(*running) == [b"there x"] * 2
    assert await handlers[PULL](b"x", context(x_evenq_broker="b")) == b"there x"


def test_calls_that_look_at_rights_behind_the_guard_are_answered_where_they_come() -> None:
    """The next broker would see a server, which may read everything."""
    assert not {method for method in DIRECTED if "Admin" in method or "DeadLetters" in method or "Peers" in method}
