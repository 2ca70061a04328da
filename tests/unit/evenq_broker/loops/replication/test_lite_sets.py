"""A leader tells the other copies what lite consumers want: when it changes, and to copies that have started since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from evenq_broker.core.lite.subscriptions import LiteSet, Subscriber
from evenq_broker.loops.replication.lite_sets import LOOK_MS, REPEAT_MS, CopiedLiteSets
from evenq_broker.loops.wire.peers import LiteNews
from evenq_broker.rpc.replication.replication import lite_set_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.clock import FakeClock

FIRST, SECOND, OLD = "host-1:8083", "host-2:8083", "host-3:8083"
ANN, BEN = Subscriber("ann", "g", "chats"), Subscriber("ben", "g", "chats")


class Stage:
    """A leader, two copies, and one of an older version."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self._news: LiteNews | None = None
        self.received: dict[str, int] = {}
        """How often each copy was told something."""
        self.leader = self.made(lambda: self._news, [FIRST, SECOND, OLD])
        self.copies = {address: self.begin(address) for address in (FIRST, SECOND)}
        self.net.serve(OLD, [])

    def says(self, version: int, *sets: LiteSet) -> None:
        """The leader has these sets from now on."""
        self._news = LiteNews(version, sets)
        self.leader.changed()

    def leads_no_more(self) -> None:
        self._news = None

    def made(self, news: Callable[[], LiteNews | None], others: list[str]) -> CopiedLiteSets:
        return CopiedLiteSets(self.net, group="broker-a", news=news, others=lambda: others, clock=self.clock)

    def begin(self, address: str) -> CopiedLiteSets:
        """A copy's process starts."""
        made = self.made(lambda: None, [])

        def keep(sets: Iterable[LiteSet]) -> None:
            self.received[address] = self.received.get(address, 0) + 1
            made.keep(sets)

        self.net.serve(address, lite_set_rpcs("broker-a", keep))
        return made

    def kept(self, address: str) -> dict[Subscriber, list[str]]:
        return {one.subscriber: list(one.names) for one in self.copies[address].newest()}

    async def turns(self, count: int = 2) -> None:
        for _ in range(count):
            await self.clock.advance(LOOK_MS)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    telling = asyncio.ensure_future(stage.leader.tell())
    try:
        yield stage
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def test_each_copy_is_told_once_what_has_changed(stage: Stage) -> None:
    stage.says(7, LiteSet(ANN, ["red", "blue"], 25_000))
    await stage.turns(6)
    assert stage.kept(FIRST) == stage.kept(SECOND) == {ANN: ["red", "blue"]}
    assert stage.received == {FIRST: 1, SECOND: 1}
    stage.says(8, LiteSet(BEN, ["red"], 0))
    await stage.turns()
    assert stage.kept(FIRST) == stage.kept(SECOND) == {BEN: ["red"]}
    stage.says(9)
    await stage.turns()
    assert stage.kept(FIRST) == {}, "the last client has gone"
    await stage.turns(2 * REPEAT_MS // LOOK_MS)
    assert stage.received == {FIRST: 3, SECOND: 3}, "and that is said once"


async def test_where_no_client_has_a_set_nothing_is_sent(stage: Stage) -> None:
    stage.says(7)
    await stage.turns(2 * REPEAT_MS // LOOK_MS)
    assert stage.received == {}


async def test_a_copy_that_has_started_since_is_told_soon(stage: Stage) -> None:
    stage.says(7, LiteSet(ANN, ["red"], 0))
    await stage.turns()
    stage.copies[FIRST] = stage.begin(FIRST)
    assert stage.kept(FIRST) == {}
    await stage.turns(REPEAT_MS // LOOK_MS + 2)
    assert stage.kept(FIRST) == {ANN: ["red"]}


async def test_a_set_is_as_old_as_the_last_word_of_the_leader_and_outlives_it(stage: Stage) -> None:
    """The leader forgets sets that are not repeated, so one that it names is none of them, however old it is."""
    stage.says(7, LiteSet(ANN, ["red"], 80_000))
    await stage.turns(40 * REPEAT_MS // LOOK_MS)
    assert stage.copies[FIRST].newest()[0].age_ms <= REPEAT_MS + 2 * LOOK_MS
    stage.leads_no_more()  # it leads no more
    await stage.turns(4 * REPEAT_MS // LOOK_MS)
    assert stage.kept(FIRST) == {ANN: ["red"]}
    assert stage.copies[FIRST].newest()[0].age_ms >= 3 * REPEAT_MS


async def test_a_leader_that_leads_again_tells_all_copies_anew(stage: Stage) -> None:
    stage.says(7, LiteSet(ANN, ["red"], 0))
    await stage.turns()
    stage.leads_no_more()
    await stage.turns()
    stage.copies[FIRST].keep([])  # another one led
    stage.says(7, LiteSet(ANN, ["red"], 0))
    await stage.turns()
    assert stage.kept(FIRST) == {ANN: ["red"]}
