"""The thread of the sync face: one event loop per process, shared by all sync clients.

It is a daemon, made at first use and stopped at exit. A forked child lacks the thread, so it makes its own. A client
that was made before the fork belongs to the parent, and raises an error when the child uses it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from evenq.errors import Unsupported
from evenq.runtime.clock import SystemClock

Result = TypeVar("Result")
EXIT_MS = 10_000
"""Longest wait at the end of the process, for all clients together."""


class EndsWithProcess(Protocol):
    """A client with work left when its process ends."""

    def end_with_process(self, timeout_ms: int) -> None:
        """Ends the client within `timeout_ms`; raises nothing."""


class Exits:
    """The living clients of one face, and their end if they are not closed when their process ends.

    A producer may have messages without an acknowledgement. Those of the sync face are waited for, because the loop of
    `Background` still runs then. The loop of an asyncio client has ended, so only the number of its messages is logged.
    A forked child ends without its parent's clients.
    """

    def __init__(self) -> None:
        self._clients: WeakSet[EndsWithProcess] = WeakSet()
        self._process_id = os.getpid()

    @classmethod
    def registered(cls) -> Exits:
        """Returns an object whose clients end with the process."""
        exits = cls()
        atexit.register(exits.end)
        return exits

    def add(self, client: EndsWithProcess) -> None:
        if self._process_id != os.getpid():
            self._clients, self._process_id = WeakSet(), os.getpid()
        self._clients.add(client)

    def end(self) -> None:
        """Ends one client after the other, within `EXIT_MS`."""
        if self._process_id != os.getpid():
            return
        clock = SystemClock()
        end_ms = clock.monotonic_ms() + EXIT_MS
        for client in list(self._clients):
            client.end_with_process(max(0, end_ms - clock.monotonic_ms()))


class Background:
    """An event loop in a thread of its own. `call_soon` and `run` are for other threads."""

    _shared: Background | None = None
    _guard = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.exits = Exits()
        """Clients that end with the process, while the loop still runs."""
        self.ended = False
        """True once the loop was stopped: what it is given afterwards never runs."""
        self._thread = threading.Thread(target=self._serve, name="evenq-client", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Background:
        with cls._guard:
            if cls._shared is None or cls._shared.process_id != os.getpid():
                cls._shared = Background()
                atexit.register(cls._shared.end_with_process)
            return cls._shared

    def run(self, coroutine: Coroutine[Any, Any, Result], *, timeout_ms: int | None = None) -> Result:
        """Runs a coroutine in the loop and returns its result. Not callable in the loop's thread."""
        return self._begin(coroutine).result(None if timeout_ms is None else timeout_ms / 1000)

    def run_or_cancel(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs as `run`, but Ctrl-C cancels the coroutine, or it would take messages for a caller that is gone."""
        tasks: list[asyncio.Task[Any] | None] = []
        gone = threading.Event()

        async def watched() -> Result:
            if gone.is_set():  # the interrupt came before the first step
                coroutine.close()
                raise asyncio.CancelledError
            tasks.append(asyncio.current_task())
            return await coroutine

        def end() -> None:
            gone.set()
            for task in tasks:
                if task is not None:
                    task.cancel()

        try:
            return self._begin(watched()).result()
        except KeyboardInterrupt:
            self.call_soon(end)
            raise
        except Unsupported:
            coroutine.close()  # it never began
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function in the loop, soon."""
        self.loop.call_soon_threadsafe(function)

    def check(self) -> None:
        """Raises Unsupported in a forked child, and after the end of the loop."""
        if self.process_id != os.getpid():
            raise Unsupported(
                f"this client was made in process {self.process_id} and is used in its forked child {os.getpid()};"
                " make a new client after the fork"
            )
        if self.ended:
            raise Unsupported(
                "the event loop of the sync SDK has ended, because the process ends; make the call before, or register"
                " the exit handler (`atexit`) that makes it after the clients are started"
            )

    def check_thread(self) -> None:
        """Raises Unsupported in the loop's own thread, which must not wait for itself."""
        if threading.current_thread() is self._thread:
            raise Unsupported(
                "a blocking call of the sync SDK was made inside its own loop thread, for example in a future's"
                " callback; make it in another thread, or use evenq.aio"
            )

    def end_with_process(self) -> None:
        """Ends clients that are not closed, then the thread."""
        self.exits.end()
        # A daemon thread that runs while the interpreter shuts down may crash it.
        self.stop()

    def stop(self) -> None:
        if self.process_id == os.getpid() and self.loop.is_running():
            self.ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(2)

    def close(self) -> None:
        """Ends the thread and closes the loop; only for a thread that is not shared."""
        self.stop()
        if self.process_id == os.getpid() and not self.loop.is_running():
            self.loop.close()

    def _begin(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        try:
            self.check()
            self.check_thread()
        except Unsupported:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _forget_after_fork() -> None:
    Background._guard = threading.Lock()  # noqa: SLF001 - the lock may have been held by a thread that the child lacks


os.register_at_fork(after_in_child=_forget_after_fork)
