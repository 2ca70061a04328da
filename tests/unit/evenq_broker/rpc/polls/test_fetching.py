"""A fetch at another broker: what breaks there costs the client nothing, and what it does not take goes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.rpc.answers import OK_STATUS
from evenq_broker.rpc.polls.fetching import fetch

from evenq.errors import ConnectionFailed
from evenq.model import BrokerAddress
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

ASKED = service_pb2.ReceiveMessageRequest(batch_size=7, attempt_id="x")


class Peer:
    """A net that answers with these frames, then breaks."""

    def __init__(self, *frames: bytes) -> None:
        self.frames = frames
        self.asked: list[Any] = []
        self.changed: list[Any] = []

    async def stream(self, address: str, method: str, request: bytes, **_: Any) -> AsyncIterator[bytes]:
        self.asked.append(service_pb2.ReceiveMessageRequest.FromString(request))
        for frame in self.frames:
            yield frame
        raise ConnectionFailed(f"{address} went away during {method}")

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        self.changed.append(service_pb2.ChangeInvisibleDurationRequest.FromString(request))
        return b""


def message(handle: str) -> bytes:
    response = service_pb2.ReceiveMessageResponse()
    response.message.system_properties.receipt_handle = handle
    return response.SerializeToString()


async def fetched(stage: Any, peer: Peer) -> Any:
    broker = await stage.broker("a")
    view = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    broker.catalog.routes.snapshot("n", "n", [view], 0)
    net, broker.runtime.net = broker.runtime.net, peer
    try:
        return await stage.during(
            fetch(broker.kernel, "b", ASKED, RpcContext("m", [], "p", None), cluster=broker.cluster)
        )
    finally:
        await stage.clock.advance(1)
        broker.runtime.net = peer if peer.frames else net


async def test_it_asks_for_any_queue_of_that_broker_and_does_not_wait(stage: Any) -> None:
    peer = Peer(service_pb2.ReceiveMessageResponse().SerializeToString())
    assert await fetched(stage, peer) is None
    [asked] = peer.asked
    assert (asked.message_queue.broker.name, asked.message_queue.id, asked.batch_size) == ("b", -1, 7)
    assert asked.HasField("long_polling_timeout")
    assert asked.long_polling_timeout.seconds == 0
    assert asked.attempt_id == "x"


async def test_a_batch_that_is_cut_off_ends_well(stage: Any) -> None:
    found = await fetched(stage, Peer(OK_STATUS, message("h1")))
    frames = [service_pb2.ReceiveMessageResponse.FromString(frame) async for frame in found.frames()]
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "delivery_timestamp"]


async def test_a_broker_that_breaks_before_a_message_or_that_nobody_knows_has_nothing(stage: Any) -> None:
    assert await fetched(stage, Peer()) is None
    assert await fetched(stage, Peer(OK_STATUS)) is None
    broker = stage.brokers[-1]
    assert await fetch(broker.kernel, "unknown", ASKED, RpcContext("m", [], "p", None), cluster=broker.cluster) is None


async def test_what_the_client_does_not_take_goes_back_uncounted(stage: Any) -> None:
    peer = Peer(OK_STATUS, message("h1"), message("h2"))
    frames = (await fetched(stage, peer)).frames()
    await anext(frames)
    await frames.aclose()
    await stage.clock.advance(5)
    assert [one.receipt_handle for one in peer.changed] == ["h1", "h2"]
    assert all(one.suspend and one.HasField("invisible_duration") for one in peer.changed)
