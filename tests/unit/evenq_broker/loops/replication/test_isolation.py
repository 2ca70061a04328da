"""A leader that can have nothing confirmed refuses messages after a while, and takes them again as soon as it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.replication.record import Pair
from evenq_broker.loops.replication.isolation import TURN_AWAY_MS, watch_isolation

from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn

AFTER_MS = 6_000


class Leader:
    """Copy 0, which leads copies 1 and 2."""

    def __init__(self) -> None:
        self.reaches_record, self.leads = True, True
        self.term: Term | None = Term()
        self.peers = SimpleNamespace(connected={1, 2})
        self.replica = SimpleNamespace(
            config=SimpleNamespace(broker_id=0, timing=SimpleNamespace(suspect_ms=AFTER_MS)),
            record=SimpleNamespace(isr=tuple(Pair(number, "store") for number in range(3))),
        )


class Log:
    def __init__(self) -> None:
        self.gate, self.looks = SimpleNamespace(isolation=""), 0

    @property
    def isolation(self) -> str:
        return self.gate.isolation

    def look(self) -> None:
        self.looks += 1


class Term:
    """What serves the clients."""

    def __init__(self) -> None:
        self.isolation, self.turned = "", 0

    def isolate(self, why: str) -> None:
        self.isolation = why

    def turn_away(self) -> None:
        self.turned += 1


@asynccontextmanager
async def running() -> AsyncIterator[tuple[FakeClock, Leader, Log]]:
    clock = FakeClock()
    leader, log = Leader(), Log()
    driver: Any = leader
    replica_log: Any = log
    watching = spawn(
        watch_isolation(driver, replica_log, term=lambda: leader.term, clock=clock, group="b"), name="watch"
    )
    await clock.advance(1_000)
    yield clock, leader, log
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.spec("HA-2")
async def test_messages_are_refused_while_copies_and_record_are_silent_and_taken_as_soon_as_one_answers() -> None:
    async with running() as (clock, leader, log):
        leader.reaches_record, leader.peers.connected = False, {2}
        await clock.advance(AFTER_MS - 1_000)
        assert not log.isolation, "a copy that restarts comes back in this time"
        await clock.advance(2_000)
        assert "copy 1 does not answer" in log.isolation
        assert log.looks == 1
        leader.peers.connected = {1, 2}
        await clock.advance(1_000)
        assert not log.isolation
        assert log.looks == 2
        leader.peers.connected = set()
        await clock.advance(AFTER_MS + 1_000)
        assert "copy 1 and copy 2 do not answer" in log.isolation
        leader.reaches_record = True  # they leave the set
        await clock.advance(1_000)
        assert not log.isolation


@pytest.mark.parametrize(
    "state", ["the record alone is silent", "copies alone are silent", "it follows", "not in the set"]
)
async def test_what_can_still_be_confirmed_or_is_no_leaders_business_is_not_refused(state: str) -> None:
    async with running() as (clock, leader, log):
        leader.reaches_record = state == "copies alone are silent"
        leader.peers.connected = {1, 2} if state == "the record alone is silent" else {2}
        leader.leads = state != "it follows"
        if state == "not in the set":
            leader.replica.record.isr = (Pair(0, "store"), Pair(2, "store"))
        await clock.advance(10 * AFTER_MS)
        assert (log.isolation, log.looks) == ("", 0)


async def test_short_silences_do_not_add_up() -> None:
    async with running() as (clock, leader, log):
        leader.reaches_record = False
        for _ in range(4):
            leader.peers.connected = {2}
            await clock.advance(AFTER_MS - 1_000)
            leader.peers.connected = {1, 2}
            await clock.advance(1_000)
        assert (log.isolation, log.looks) == ("", 0)


async def test_clients_are_told_to_connect_anew_once_load_balancers_know_and_again_while_it_lasts() -> None:
    async with running() as (clock, leader, log):
        term = leader.term
        assert term is not None
        leader.reaches_record, leader.peers.connected = False, set()
        await clock.advance(AFTER_MS + 1_000)
        assert (term.isolation, term.turned) == (log.isolation, 0)
        assert term.isolation
        await clock.advance(TURN_AWAY_MS)
        assert term.turned == 1
        await clock.advance(TURN_AWAY_MS)
        assert term.turned == 2, "those who came back here, or were busy"
        leader.reaches_record = True
        await clock.advance(2 * TURN_AWAY_MS)
        assert (term.isolation, term.turned) == ("", 2)
        leader.reaches_record = False
        await clock.advance(AFTER_MS + 2_000)
        assert (bool(term.isolation), term.turned) == (True, 2), "load balancers have to notice it anew"
        leader.term = None
        await clock.advance(TURN_AWAY_MS)
        assert term.turned == 2
