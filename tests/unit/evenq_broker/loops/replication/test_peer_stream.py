"""A stream between brokers that ends: by itself, by silence, and because its reader goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.loops.replication.peer_stream import peer_stream

from evenq.errors import RequestTimeout
from evenq.runtime.clock import FakeClock


class SilentNet:
    """Sends some messages, and then nothing more, or the end."""

    def __init__(self, *messages: bytes, ends: bool = False) -> None:
        self.messages, self.ends = messages, ends
        self.closed = False

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        try:
            for message in self.messages:
                yield message
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def read(net: Any, clock: FakeClock, seen: list[bytes]) -> asyncio.Task[None]:
    async def reading() -> None:
        async for message in peer_stream(net, "b:8083", "/x/Y", b"", stall_ms=500, of="the log", clock=clock):
            seen.append(message)  # noqa: PERF401  # one by one, as they come

    return asyncio.get_running_loop().create_task(reading())


async def ended(task: asyncio.Task[None], clock: FakeClock) -> None:
    done, _ = await asyncio.wait({task}, timeout=60)
    assert done, "it waits for a message that nobody sends"


async def test_it_ends_with_the_peers_last_message() -> None:
    net, seen = SilentNet(b"1", b"2", ends=True), list[bytes]()
    task = read(net, FakeClock(), seen)
    await ended(task, FakeClock())
    task.result()
    assert (seen, net.closed) == ([b"1", b"2"], True)


async def test_a_peer_that_falls_silent_is_named_and_its_stream_closed() -> None:
    clock = FakeClock()
    net, seen = SilentNet(b"1"), list[bytes]()
    task = read(net, clock, seen)
    await clock.advance(499)
    assert not task.done()
    await clock.advance(1)
    await ended(task, clock)
    with pytest.raises(RequestTimeout, match="b:8083 sent nothing of the log for 500 ms"):
        task.result()
    assert (seen, net.closed) == ([b"1"], True)


async def test_a_reader_that_is_cancelled_while_it_waits_is_gone_at_once() -> None:
    clock = FakeClock()
    net, seen = SilentNet(b"1"), list[bytes]()
    task = read(net, clock, seen)
    await clock.advance(100)
    task.cancel()
    await ended(task, clock)
    assert task.cancelled()
    assert (seen, net.closed) == ([b"1"], True)
