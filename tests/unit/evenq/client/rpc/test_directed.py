"""Calls to an address that leads to any broker say which one is meant, and go to the next access point after a failure."""

import asyncio
from typing import Any

import pytest

from evenq.client.rpc.calls import Calls
from evenq.errors import ConnectionFailed


class Net:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any = None) -> bytes:
        self.seen.append((address, metadata.get("x-evenq-broker", "")))
        if address == "dead:1":
            raise ConnectionFailed("nobody answers")
        return b""

    def stream(self, address: str, method: str, requests: Any, *, timeout_ms: Any, metadata: Any = None) -> Any:
        self.seen.append((address, metadata.get("x-evenq-broker", "")))


def test_the_header_names_the_broker_and_the_address_loses_it() -> None:
    async def story() -> None:
        net: Any = Net()
        calls = Calls(net, endpoint="dead:1;alive:2?one-address", client_id="c")
        await calls.unary("host:8081", "/m", b"")
        await calls.unary("evenqs://host:8081#b", "/m", b"")
        with pytest.raises(ConnectionFailed):
            await calls.unary("#b", "/m", b"")
        await calls.unary("#b", "/m", b"")
        calls.stream("#a", "/m", b"", timeout_ms=1)
        assert net.seen == [("host:8081", ""), ("evenqs://host:8081", "b"), ("dead:1", "b"), ("alive:2", "b"),
                            ("alive:2", "a")]  # fmt: skip
        assert "x-evenq-broker" not in calls.metadata

    asyncio.run(story())
