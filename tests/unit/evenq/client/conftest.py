"""A broker for clients of the sync face: it lives in the SDK's loop thread, on a net without sockets that can be held or
cut, so a test's own thread may block as a user's does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.sync_broker import SyncBroker

import evenq
from evenq.errors import RequestTimeout
from evenq.runtime.clock import SystemClock

Result = TypeVar("Result")
WAIT_S = 20
CLIENT = str(Path(evenq.__file__).parent / "client")


class HeldNet(LoopNet):
    """Calls whose method ends with a name in `held` get no answer until `let_go`, or until their time is over."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.held: set[str] = set()
        self.arrived = threading.Event()
        """Set when a held call came."""
        self._open: asyncio.Event | None = None

    def hold(self, *methods: str) -> None:
        """From the test's thread."""
        self.arrived.clear()
        self.held = set(methods)

    async def let_go(self) -> None:
        """In the loop."""
        self.held = set()
        if self._open is not None:
            self._open.set()
            self._open = None

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        await self._pass(method, timeout_ms)
        return await super().unary(address, method, request, timeout_ms=timeout_ms, metadata=metadata)

    async def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        await self._pass(method, timeout_ms)
        async for frame in super().stream(address, method, requests, timeout_ms=timeout_ms, metadata=metadata):
            yield frame

    async def _pass(self, method: str, timeout_ms: int | None) -> None:
        if method.rpartition("/")[2] not in self.held:
            return
        self._open = self._open or asyncio.Event()
        self.arrived.set()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._open.wait()
        except TimeoutError:
            raise RequestTimeout(f"{method} was held for {timeout_ms} ms") from None


class SyncWorld(SyncBroker):
    """On a net that can be held or cut."""

    def __init__(self, *, duplicates_window_ms: int = 0) -> None:
        self.net = HeldNet()
        super().__init__(self.net, duplicates_window_ms=duplicates_window_ms)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Store messages, in this order where the topic has one queue."""
        producer = self.make(evenq.Producer)
        for body in bodies:
            producer.send(evenq.Message(topic=topic, body=body))

    def stored(self, topic: str) -> list[bytes]:
        """The bodies of all messages of a topic, sorted; read without a group."""
        with self.make(evenq.PullConsumer, group=f"reads-{topic}") as consumer:
            consumer.assign(consumer.queues_of(topic))
            for queue in consumer.queues:
                consumer.seek_to_begin(queue)
            found: list[bytes] = []
            while messages := consumer.poll(1_000, wait_ms=100):
                found += [message.body for message in messages]
        return sorted(found)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """A block that Ctrl-C ends, pressed once a held call came and this thread waits for it in the block.

        The block's own call shows in its frames: a consumer fetches before its user polls, so that a held call may
        have come already when the block begins.
        """
        main = threading.get_ident()
        assert threading.current_thread() is threading.main_thread(), "only the main thread hears signals"
        over = threading.Event()

        def press() -> None:
            if not self.net.arrived.wait(WAIT_S):
                return
            while not over.wait(0.002):
                if waits_in_the_sdk(main):
                    signal.pthread_kill(main, signal.SIGINT)
                    return

        thread = threading.Thread(target=press)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the block is what is tested
            thread.start()
            try:
                yield
            finally:
                over.set()
        thread.join(WAIT_S)

    def close(self) -> None:
        self.run(self.net.let_go())
        super().close()


def waits_in_the_sdk(thread: int) -> bool:
    """Whether a call of the SDK stands still in this thread: its innermost frame waits, and a client's frame called it."""
    frame = sys._current_frames().get(thread)
    if frame is None or frame.f_code.co_name not in {"wait", "acquire", "result"}:
        return False
    while frame is not None:
        if CLIENT in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@pytest.fixture
def world() -> Iterator[SyncWorld]:
    made = SyncWorld()
    try:
        yield made
    finally:
        made.close()


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
    """Call `work(0)`, `work(1)`, ... at the same time; the errors they raised."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def one(number: int) -> None:
        try:
            together.wait(WAIT_S)
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads), "a call hangs"
    return failures


@pytest.fixture(name="in_threads")
def in_threads_fixture() -> Callable[[int, Callable[[int], object]], list[BaseException]]:
    return in_threads
