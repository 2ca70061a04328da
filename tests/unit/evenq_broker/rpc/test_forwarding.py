"""Any broker answers for any other, over one hop."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_broker.core.routes import BrokerView
from evenq_broker.rpc.forwarding import MARK, forward, owner_of, owner_of_handle

from evenq.model import BrokerAddress
from evenq.serving.rpc import RpcContext

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def context(deadline_ms: int | None = None, **headers: str) -> RpcContext:
    return RpcContext("/s/Call", list(headers.items()), "127.0.0.1:1", deadline_ms)


class Peer:
    """A net that notes the one call it gets."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int, dict[str, str]]] = []

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any = None) -> bytes:
        self.seen.append((address, method, timeout_ms, dict(metadata)))
        return request.upper()


def test_a_call_is_forwarded_to_a_known_other_broker_and_only_once(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker("a")
        other = BrokerView(name="b", addresses=(BrokerAddress("default", "b", 8081),))
        broker.routes.snapshot("nameserver:1", "identity", [other], 0)
        assert owner_of(broker, "b", context()) == "b:8081"
        assert owner_of(broker, "b", context(**{MARK: "1"})) is None
        for name in ("", "a", "unknown"):
            assert owner_of(broker, name, context()) is None
        handle = broker.handles.make(1, 1, 0, 0, 1, 5)
        assert owner_of_handle(broker, handle, context()) is None
        assert owner_of_handle(broker, handle.replace("e1.a.", "e1.b."), context()) == "b:8081"
        assert owner_of_handle(broker, "nonsense", context()) is None

    run(story)


def test_the_callers_headers_go_along_with_a_mark_and_the_time_that_is_left(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker("a", peer_timeout_ms=2_500)
        broker.net = peer = Peer()
        now_ms = broker.clock.monotonic_ms()
        told = {"x-mq-client-id": "c", "x-mq-language": "GO", "authorization": "secret", "x-other": "1"}
        assert await forward(broker, "b:8081", b"abc", context(now_ms + 1_000, **told)) == b"ABC"
        await forward(broker, "b:8081", b"abc", context(None))
        await forward(broker, "b:8081", b"abc", context(now_ms + 60_000))
        (address, method, timeout_ms, headers), *others = peer.seen
        assert (address, method, timeout_ms) == ("b:8081", "/s/Call", 800)
        assert headers == {MARK: "1", "x-mq-client-id": "c", "x-mq-language": "GO"}
        assert [one[2] for one in others] == [2_500, 2_500]

    run(story)
