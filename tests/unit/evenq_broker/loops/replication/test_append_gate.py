"""A leader takes appends as its core says, and none while a hand-over is about to begin."""

from __future__ import annotations

import asyncio
from typing import Any

from evenq_broker.loops.replication.append_gate import AppendGate

from evenq.errors import HaNotAvailable


class Core:
    """What the gate asks of a replica."""

    takes, have = True, 2

    class record:  # noqa: N801  as the replica's attribute is called
        min_isr = 2

    def __init__(self) -> None:
        self.leader = self.copies = self

    def may_append(self) -> bool:
        return self.takes

    def count_in_sync(self) -> int:
        return self.have


class Store:
    """Keeps what it was told; what it had taken is done when `done` is set."""

    def __init__(self) -> None:
        self.refusal: HaNotAvailable | None = None
        self.done = asyncio.Event()

    def refuse(self, error: HaNotAvailable | None) -> None:
        self.refusal = error

    async def settle(self, within_ms: int) -> None:
        await asyncio.wait_for(self.done.wait(), within_ms / 1_000)


def said(store: Store) -> str:
    return "" if store.refusal is None else store.refusal.message


def test_appends_are_taken_as_the_core_says_and_the_refusal_says_why() -> None:
    core: Any = Core()
    store: Any = Store()
    gate = AppendGate(core)
    gate.look(None)
    gate.look(store)
    assert store.refusal is None
    core.takes = False
    gate.look(store)
    assert "hands over" in said(store)
    core.have = 1
    gate.look(store)
    assert "1 of 2 copies are in sync" in said(store)
    core.takes, core.have = True, 2
    gate.look(store)
    assert store.refusal is None


def test_while_nothing_can_be_confirmed_nothing_is_taken_and_the_core_is_heard_first() -> None:
    core: Any = Core()
    store: Any = Store()
    gate = AppendGate(core)
    gate.isolation = "copy 1 does not answer"
    gate.look(store)
    assert "copy 1 does not answer" in said(store)
    core.takes = False
    gate.look(store)
    assert "hands over" in said(store)
    core.takes, gate.isolation = True, ""
    gate.look(store)
    assert store.refusal is None


async def test_nothing_is_taken_from_the_begin_of_settling_to_its_end_whatever_the_core_says_meanwhile() -> None:
    core: Any = Core()
    store: Any = Store()
    gate = AppendGate(core)
    settling = asyncio.ensure_future(gate.settle(store, 20_000))
    await asyncio.sleep(0)
    gate.look(store)
    assert not settling.done()
    assert "hands over" in said(store)
    store.done.set()
    await settling
    gate.look(store)
    assert "hands over" in said(store), "until it is told that the hand-over has begun"
    gate.settled(store)
    assert store.refusal is None
    await gate.settle(None, 20_000)
    gate.settled(None)
