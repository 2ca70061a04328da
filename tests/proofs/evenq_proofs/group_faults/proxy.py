"""A TCP proxy whose two directions can be spoiled one by one: what stands between two brokers when a network breaks.

Bytes are never changed and never reordered: TCP would not let them. They are held, late, cut off in their middle, or
said twice on a second connection. All proxies of a `ProxyLoop` live on one thread.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from evenq.runtime.closing import Closing

CHUNK_BYTES: Final = 65_536
HELD_MAX: Final = 256
"""Chunks of one direction that are on their way, when they are late."""
REMEMBERED_BYTES: Final = 65_536
"""Of the begin of a connection, for `say_again`."""
LOOK_S: Final = 0.01
GHOST_S: Final = 3.0
"""How long a connection lasts that says again what another one said."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What happens to the bytes of one direction."""

    held: bool = False
    """Nothing arrives while it is so; what was sent meanwhile arrives afterwards, if the connection still stands."""
    late_ms: int = 0
    jitter_ms: int = 0
    """Up to so much later or earlier."""
    bytes_max: int = 0
    """Each connection is reset after a random number of bytes up to this, mostly within a message; 0 = never."""


OPEN: Final = Flow()


class ProxyLoop(Closing):
    """The thread of all proxies."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def proxy(self, target: int) -> FaultProxy:
        """A proxy to a port of this machine."""
        made = FaultProxy(self, target)
        made.port = self.run(made.listen())
        return made

    def run(self, work: Any) -> Any:
        """Let the thread do it, and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def call(self, work: Callable[[], None]) -> None:
        """The same for something that does not wait."""

        async def done() -> None:
            work()

        self.run(done())

    def close(self) -> None:
        """End all proxies and their connections."""
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    def __init__(self, source: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.source, self.target = source, target
        self.begin = bytearray()
        self.half_open = False


class FaultProxy:
    """One port that leads to another. All calls from any thread but the loop's."""

    def __init__(self, loop: ProxyLoop, target: int) -> None:
        self.port = 0
        self.there = OPEN
        """From who dialled to the target. Assign to spoil it, at any time."""
        self.back = OPEN
        self.connections = 0
        """That came so far."""
        self.resets = 0
        """That this proxy ended."""
        self._loop, self._target = loop, target
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def standing(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def hold(self) -> None:
        """Nothing passes, in both directions."""
        self.there = self.back = Flow(held=True)

    def mend(self) -> None:
        """Bytes pass again in both directions; connections stay as they are."""
        self.there = self.back = OPEN

    def lead_to(self, target: int) -> None:
        """Connections that come later go to this port; those that stand stay."""
        self._target = target

    def reset(self) -> None:
        """End every connection at once, at both sides."""

        def work() -> None:
            for one in self._open:
                self._abort(one)

        self._loop.call(work)

    def half_open(self) -> None:
        """End every connection at the target's side only: who dialled keeps one that leads nowhere."""

        def work() -> None:
            for one in self._open:
                one.half_open = True
                one.target.transport.abort()
                self.resets += 1

        self._loop.call(work)

    def say_again(self) -> int:
        """For each connection open a second one to the target that says what the first one said in its begin, as if
        the network had kept it; it goes after a while. How many there were.
        """
        begins = [bytes(one.begin) for one in self._open if one.begin and not one.half_open]
        for begin in begins:
            self._loop.run(self._ghost(begin))
        return len(begins)

    async def listen(self) -> int:
        """The port."""
        server = await asyncio.start_server(self._arrived, "127.0.0.1", 0, limit=CHUNK_BYTES)
        self._loop.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._keep(asyncio.create_task(self._accepted(reader, writer)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        one: _Connection | None = None
        try:
            await self._passable()
            target_reader, target = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK_BYTES)
            one = _Connection(writer, target)
            self._open.add(one)
            ways = [
                asyncio.create_task(self._pass(one, reader, target, lambda: self.there, remember=True)),
                asyncio.create_task(self._pass(one, target_reader, writer, lambda: self.back, remember=False)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if one.half_open:
                    await asyncio.wait(ways)  # the side that dialled goes when it wants to
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            writer.transport.abort()
            if one is not None:
                self._open.discard(one)
                one.target.transport.abort()

    async def _passable(self) -> None:
        """A connection cannot be made while one of the directions is held."""
        while self.there.held or self.back.held:  # noqa: ASYNC110 - set by other threads
            await asyncio.sleep(LOOK_S)

    async def _pass(
        self, one: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        flow: Callable[[], Flow], *, remember: bool,
    ) -> None:  # fmt: skip
        """One direction of a connection, to its end."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_MAX)
        sending = asyncio.create_task(self._deliver(late, one, writer, flow))
        rng, now, due = self._loop.rng, asyncio.get_running_loop().time, 0.0
        left = 0
        try:
            while data := await reader.read(CHUNK_BYTES):
                rule = flow()
                if one.half_open:
                    continue  # swallowed
                if remember and len(one.begin) < REMEMBERED_BYTES:
                    one.begin += data[: REMEMBERED_BYTES - len(one.begin)]
                if rule.bytes_max:
                    left = left or rng.randint(1, rule.bytes_max)
                    data, rest = data[:left], data[left:]
                    left -= len(data)
                    if rest or not left:
                        await late.put((now(), data))
                        await late.join()
                        self._abort(one)
                        return
                wait_ms = max(0, rule.late_ms + rng.randint(-rule.jitter_ms, rule.jitter_ms))
                due = max(due, now() + wait_ms / 1_000)  # bytes do not overtake each other
                await late.put((due, data))
            await late.join()
        except OSError:
            pass
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    @staticmethod
    async def _deliver(
        late: asyncio.Queue[tuple[float, bytes]], one: _Connection, writer: asyncio.StreamWriter,
        flow: Callable[[], Flow],
    ) -> None:  # fmt: skip
        now = asyncio.get_running_loop().time
        while True:
            due, data = await late.get()
            await asyncio.sleep(max(0.0, due - now()))
            while flow().held and not one.half_open:  # noqa: ASYNC110 - set by other threads
                await asyncio.sleep(LOOK_S)
            with suppress(OSError):
                if not (one.half_open or writer.transport.is_closing()):
                    writer.write(data)
                    await writer.drain()
            late.task_done()

    def _abort(self, one: _Connection) -> None:
        self.resets += 1
        one.source.transport.abort()
        one.target.transport.abort()

    async def _ghost(self, begin: bytes) -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._keep(asyncio.create_task(_haunt(begin, reader, writer)))


async def _haunt(begin: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(begin)
        async with asyncio.timeout(GHOST_S):
            while await reader.read(CHUNK_BYTES):
                pass
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
