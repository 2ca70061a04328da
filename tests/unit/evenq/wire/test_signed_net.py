"""Every call of a signed net carries headers that the guard's reading of them accepts."""

from collections.abc import AsyncIterator, Mapping

from evenq.runtime.clock import FakeClock
from evenq.wire.signature import Secret, fits, read_claim
from evenq.wire.signed_net import SignedNet, Signer

SECRET = Secret("a very secret key")


class Recorder:
    """A net that keeps the metadata it was given."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, str]] = []
        self.closed = False

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        self.seen.append(metadata or {})
        return request

    async def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[bytes]:
        self.seen.append(metadata or {})
        yield b"frame"

    async def close(self) -> None:
        self.closed = True


async def test_calls_and_streams_are_signed_and_keep_their_own_headers() -> None:
    below, clock = Recorder(), FakeClock()
    net = SignedNet(below, Signer("orders", SECRET, clock=clock, session_token="token"))
    mine = {"x-mq-client-id": "c", "authorization": "somebody else's"}
    assert await net.unary("a:1", "/s/M", b"request", timeout_ms=1, metadata=mine) == b"request"
    assert [frame async for frame in net.stream("a:1", "/s/M", b"", timeout_ms=None)] == [b"frame"]
    for headers in below.seen:
        claim = read_claim(headers["authorization"])
        assert claim is not None
        assert fits(claim, SECRET, headers["x-mq-date-time"])
        assert headers["x-mq-session-token"] == "token"
    assert below.seen[0]["x-mq-client-id"] == "c"
    await net.renew("a:1")  # the net below has no connections
    await net.close()
    assert below.closed


async def test_the_net_below_is_told_to_connect_anew() -> None:
    class Renewable(Recorder):
        renewed = ""

        async def renew(self, address: str) -> None:
            self.renewed = address

    below = Renewable()
    await SignedNet(below, Signer("orders", SECRET, clock=FakeClock())).renew("a:1")
    assert below.renewed == "a:1"


async def test_one_signature_serves_a_second_and_a_changed_secret_the_next_call() -> None:
    clock = FakeClock()
    signer = Signer("orders", SECRET, clock=clock)
    first = signer.headers()
    assert signer.headers() is first
    await clock.advance(1_000)
    second = signer.headers()
    assert second["x-mq-date-time"] != first["x-mq-date-time"]
    signer.change("root", Secret("another secret key"))
    assert "Credential=root," in signer.headers()["authorization"]
    assert "x-mq-session-token" not in signer.headers()
