"""Calls to an address that leads to any broker say which one is meant, and go to the next access point after a failure."""

import asyncio
from typing import Any

import pytest

from evenq.client.rpc.calls import Calls
from evenq.errors import ConnectionFailed, TlsFailed


class Net:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Any = None) -> bytes:
        self.seen.append((address, metadata.get("x-evenq-broker", "")))
        if address == "dead:1":
            raise ConnectionFailed("no server answers")
        return b""

    def stream(self, address: str, method: str, requests: Any, *, timeout_ms: Any, metadata: Any = None) -> Any:
        self.seen.append((address, metadata.get("x-evenq-broker", "")))


async def test_the_header_names_the_broker_and_the_address_loses_it() -> None:
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


async def test_a_client_may_turn_away_from_an_access_point_that_answers() -> None:
    net: Any = Net()
    calls = Calls(net, endpoint="one:1;two:2;three:3", client_id="c")
    for _ in range(4):
        await calls.at_access_point("/m", b"")
        calls.turn_away()
    assert [address for address, _ in net.seen] == ["one:1", "two:2", "three:3", "one:1"]
    only = Calls(net, endpoint="one:1", client_id="c")
    only.turn_away()
    assert only.access_point == "one:1"


async def test_calls_that_run_at_once_all_leave_a_silent_access_point() -> None:
    """Each passes over the silent one for itself: two of them do not move each other back to it."""

    class Slow(Net):
        async def unary(self, address: str, *arguments: Any, **more: Any) -> bytes:
            await asyncio.sleep(0)
            return await super().unary(address, *arguments, **more)

        async def stream(self, address: str, *_: Any, **more: Any) -> Any:
            await asyncio.sleep(0)
            yield await super().unary(address, "/m", b"", timeout_ms=1, metadata=more["metadata"])

    calls = Calls(Slow(), endpoint="dead:1;alive:2", client_id="c")
    assert await asyncio.gather(*(calls.at_access_point("/m", b"") for _ in range(4))) == [b""] * 4

    async def frames(calls: Calls) -> list[bytes]:
        return [frame async for frame in calls.stream_at_access_point("/m", b"", timeout_ms=1)]

    calls = Calls(Slow(), endpoint="dead:1;alive:2", client_id="c")
    assert await asyncio.gather(*(frames(calls) for _ in range(4))) == [[b""]] * 4
    calls = Calls(Slow(), endpoint="dead:1;alive:2?one-address", client_id="c")
    await asyncio.gather(*(calls.unary("#b", "/m", b"") for _ in range(2)), return_exceptions=True)
    await calls.unary("#b", "/m", b"")


@pytest.mark.parametrize("endpoint", ["untrusted:1;dead:1", "dead:1;untrusted:1", "dead:1;untrusted:1;dead:2"])
async def test_of_several_access_points_the_one_that_says_what_is_wrong_with_tls_is_told(endpoint: str) -> None:
    class Copies(Net):
        async def unary(self, address: str, *arguments: Any, **more: Any) -> bytes:
            if address.startswith("untrusted"):
                raise TlsFailed("it wants a certificate")
            raise ConnectionFailed("no server answers")

        async def stream(self, address: str, *_: Any, **more: Any) -> Any:
            yield await self.unary(address)

    calls = Calls(Copies(), endpoint=endpoint, client_id="c")
    with pytest.raises(TlsFailed):
        await calls.at_access_point("/m", b"")
    with pytest.raises(TlsFailed):
        [frame async for frame in calls.stream_at_access_point("/m", b"", timeout_ms=1)]
    with pytest.raises(TlsFailed):
        await calls.query_route("t")
