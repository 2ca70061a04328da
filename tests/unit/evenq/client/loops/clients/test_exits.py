"""Clients that are not closed when their process ends."""

from __future__ import annotations

import gc
import os
import warnings

import pytest

from evenq.client.loops.clients import exits as exits_module
from evenq.client.loops.clients.exits import Exits
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
    monkeypatch.setattr(exits_module, "SystemClock", lambda: clock)
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
