"""The shape of every net, which is that of the protocol, and the limit on the silence of a stream."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest
from evenq_proofs.loop_net import LoopNet

from evenq.errors import RequestTimeout
from evenq.runtime.clock import FakeClock
from evenq.runtime.net import Net, frames_within
from evenq.wire.net import GrpcNet


@pytest.mark.parametrize("kind", [GrpcNet, LoopNet])
@pytest.mark.parametrize("name", ["unary", "stream", "close"])
def test_a_net_takes_what_the_protocol_says(kind, name):
    expected, found = (inspect.signature(getattr(one, name)).parameters for one in (Net, kind))
    assert [(p.name, p.kind, p.default) for p in found.values()] == [
        (p.name, p.kind, p.default) for p in expected.values()
    ]


class SilentStream:
    """Sends some messages, then nothing more, or the end."""

    def __init__(self, *messages: bytes, ends: bool = False) -> None:
        self.messages, self.ends = messages, ends
        self.closed = False

    async def frames(self) -> AsyncIterator[bytes]:
        try:
            for message in self.messages:
                yield message
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def read(stream: SilentStream, clock: FakeClock, seen: list[bytes]) -> asyncio.Task[None]:
    async def reading() -> None:
        silence = "b:8083 sent nothing of the log"
        async for message in frames_within(stream.frames(), stall_ms=500, silence=silence, clock=clock):
            seen.append(message)  # noqa: PERF401  # one by one, as they come

    return asyncio.get_running_loop().create_task(reading())


async def ended(task: asyncio.Task[None], clock: FakeClock) -> None:
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done, "it waits for a message that nobody sends"


async def test_a_stream_ends_with_the_peers_last_message() -> None:
    stream, seen = SilentStream(b"1", b"2", ends=True), list[bytes]()
    task = read(stream, FakeClock(), seen)
    await ended(task, FakeClock())
    task.result()
    assert (seen, stream.closed) == ([b"1", b"2"], True)


async def test_a_stream_that_stalls_is_named_and_closed() -> None:
    clock = FakeClock()
    stream, seen = SilentStream(b"1"), list[bytes]()
    task = read(stream, clock, seen)
    await clock.advance(499)
    assert not task.done()
    await clock.advance(1)
    await ended(task, clock)
    with pytest.raises(RequestTimeout, match="b:8083 sent nothing of the log for 500 ms"):
        task.result()
    assert (seen, stream.closed) == ([b"1"], True)


async def test_a_reader_that_is_cancelled_while_it_waits_closes_the_stream() -> None:
    clock = FakeClock()
    stream, seen = SilentStream(b"1"), list[bytes]()
    task = read(stream, clock, seen)
    await clock.advance(100)
    task.cancel()
    await ended(task, clock)
    assert task.cancelled()
    assert (seen, stream.closed) == ([b"1"], True)


async def test_an_iterator_that_cannot_be_closed_is_read_like_others() -> None:
    class Plain:
        def __init__(self) -> None:
            self.left = [b"1"]

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    read = [frame async for frame in frames_within(Plain(), stall_ms=500, silence="", clock=FakeClock())]
    assert read == [b"1"]
