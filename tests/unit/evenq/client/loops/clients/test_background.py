"""The loop thread of the sync face."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from typing import Any

import pytest

from evenq.client.loops.clients import background as background_module
from evenq.client.loops.clients.background import Background, Exits
from evenq.errors import Unsupported
from evenq.runtime.clock import FakeClock


class Client:
    def __init__(self, clock: FakeClock, takes_ms: int) -> None:
        self.clock, self.takes_ms = clock, takes_ms
        self.given_ms: list[int] = []

    def end_with_process(self, timeout_ms: int) -> None:
        self.given_ms.append(timeout_ms)
        self.clock._monotonic += min(self.takes_ms, timeout_ms)


def test_all_together_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(background_module, "SystemClock", lambda: clock)
    exits, clients = Exits(), [Client(clock, 6_000) for _ in range(3)]
    for client in clients:
        exits.add(client)
    exits.end()
    assert sorted(given for client in clients for given in client.given_ms) == [0, 4_000, 10_000]


def test_a_client_that_nobody_holds_is_forgotten() -> None:
    exits, client = Exits(), Client(FakeClock(), 0)
    exits.add(client)
    calls = client.given_ms
    del client
    gc.collect()
    exits.end()
    assert calls == []


def test_a_forked_child_leaves_its_parents_clients_alone() -> None:
    exits, client = Exits(), Client(FakeClock(), 0)
    exits.add(client)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads is the point here
        child = os.fork()
    if child == 0:
        exits.end()
        own = Client(FakeClock(), 0)
        exits.add(own)
        exits.end()
        os._exit(0 if (len(client.given_ms), len(own.given_ms)) == (0, 1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


async def one() -> int:
    return 1


def test_there_is_one_per_process_and_it_runs_coroutines() -> None:
    background = Background.shared()
    assert background is Background.shared()
    assert background.run(one()) == 1


def test_one_of_ones_own_is_closed_with_its_loop() -> None:
    background = Background()
    assert background.run(one()) == 1
    background.close()
    assert background.loop.is_closed()


def test_a_call_after_the_end_of_the_loop_is_refused_instead_of_waiting_for_ever() -> None:
    background = Background()
    background.end_with_process()
    with pytest.raises(Unsupported, match="has ended"):
        background.run(one(), timeout_ms=2_000)
    with pytest.raises(Unsupported, match="has ended"):
        background.check()
    background.close()


def test_a_blocking_call_inside_the_loop_thread_is_refused_instead_of_hanging() -> None:
    background = Background.shared()

    async def story() -> None:
        await asyncio.sleep(0)
        background.run(one())

    with pytest.raises(Unsupported, match="loop thread"):
        background.run(story())


def test_after_a_fork_the_child_makes_its_own_and_refuses_the_parents() -> None:
    background = Background.shared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking beside threads is the point here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            background.run(one())
        except Unsupported:
            code = 0 if Background.shared() is not background and Background.shared().run(one()) == 1 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_ends_what_takes_messages_wherever_it_comes(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    background = Background.shared()
    steps: list[str] = []
    started, over, go_on = threading.Event(), threading.Event(), threading.Event()

    async def take() -> None:
        steps.append("begun")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")
            over.set()

    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(*given: Any) -> None:
        """The signal comes before the caller has the future."""
        if not begun:
            background.call_soon(lambda: asserted(go_on.wait(60)))  # the loop is busy: the call is not begun yet
        hand_over(*given)
        assert not begun or started.wait(60)
        raise KeyboardInterrupt

    def asserted(state: bool) -> None:
        assert state

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.run_or_cancel(take())
    monkeypatch.undo()
    go_on.set()
    assert not begun or over.wait(60)
    for _ in range(3):
        background.run(one())
    assert steps == (["begun", "ended"] if begun else [])


def test_what_may_be_cancelled_is_refused_in_the_loop_thread_like_all() -> None:
    background = Background.shared()

    async def story() -> None:
        background.run_or_cancel(one())

    with pytest.raises(Unsupported, match="loop thread"):
        background.run(story())
