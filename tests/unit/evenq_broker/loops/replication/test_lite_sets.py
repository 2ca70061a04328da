"""A copy keeps what its leader knows of lite consumers, and asks for it again only when it has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from evenq_broker.core.lite.subscriptions import LiteSet, Subscriber
from evenq_broker.loops.replication.lite_sets import LOOK_MS, LeaderLiteSets
from evenq_broker.loops.wire.lite import LiteNews
from evenq_broker.rpc.replication.lite_sets import lite_set_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.clock import FakeClock

FIRST, NEXT, OLD = "host-0:8083", "host-1:8083", "host-2:8083"
ANN, BEN = Subscriber("ann", "g", "chats"), Subscriber("ben", "g", "chats")


class Leader:
    """What a copy at one address answers."""

    def __init__(self) -> None:
        self.news: LiteNews | None = None
        self.known: list[int] = []
        """What each call said to have."""

    def newest(self, known: int) -> LiteNews | None:
        self.known.append(known)
        if self.news is not None and self.news.version == known:
            return LiteNews(known, ())
        return self.news


class Stage:
    """A copy that follows, and the addresses that may lead."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leads = FIRST
        self.leaders = {FIRST: Leader(), NEXT: Leader()}
        net = LoopNet(self.clock)
        for address, leader in self.leaders.items():
            net.serve(address, lite_set_rpcs("broker-a", leader.newest))
        net.serve(OLD, [])
        self.sets = LeaderLiteSets(net, lambda: self.leads, group="broker-a", clock=self.clock)

    def kept(self) -> dict[Subscriber, list[str]]:
        return {one.subscriber: list(one.names) for one in self.sets.newest()}

    async def turns(self, count: int = 1) -> None:
        await self.clock.advance(count * LOOK_MS)


def run(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def body() -> None:
        stage = Stage()
        following = asyncio.ensure_future(stage.sets.follow())
        try:
            await story(stage)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(body())


def news(version: int, *sets: LiteSet) -> LiteNews:
    return LiteNews(version, sets)


def test_what_the_leader_knows_is_kept_and_comes_once() -> None:
    async def story(stage: Stage) -> None:
        leader = stage.leaders[FIRST]
        leader.news = news(7, LiteSet(ANN, ["red", "blue"], 25_000))
        await stage.turns(4)
        assert stage.kept() == {ANN: ["red", "blue"]}
        assert set(leader.known[-2:]) == {7}, "nothing has changed, so nothing was sent again"
        leader.news = news(8, LiteSet(BEN, ["red"], 0))
        await stage.turns(2)
        assert stage.kept() == {BEN: ["red"]}

    run(story)


def test_a_set_is_as_old_as_the_last_word_of_its_leader() -> None:
    """The leader forgets sets that are not repeated, so one that it names is none of them, however old it is here."""

    async def story(stage: Stage) -> None:
        stage.leaders[FIRST].news = news(7, LiteSet(ANN, ["red"], 0))
        await stage.turns(400)
        assert stage.sets.newest()[0].age_ms <= 2 * LOOK_MS
        stage.leads = ""
        await stage.turns(20)
        assert stage.sets.newest()[0].age_ms >= 19 * LOOK_MS

    run(story)


def test_sets_outlive_a_leader_that_answers_no_more_and_end_with_the_word_of_the_next_one() -> None:
    async def story(stage: Stage) -> None:
        stage.leaders[FIRST].news = news(7, LiteSet(ANN, ["red"], 0))
        await stage.turns(2)
        stage.leaders[FIRST].news = None  # it leads no more, and says so
        await stage.turns(2)
        stage.leads = "host-9:8083"  # no process is there
        await stage.turns(2)
        stage.leads = OLD  # it does not know the call
        await stage.turns(2)
        assert stage.kept() == {ANN: ["red"]}
        stage.leads, stage.leaders[NEXT].news = NEXT, news(7)
        await stage.turns(2)
        assert stage.kept() == {}, "another leader's version 7 is another one"
        assert stage.leaders[NEXT].known[0] == 0

    run(story)


def test_a_copy_of_another_group_gets_nothing() -> None:
    async def story(stage: Stage) -> None:
        leader = stage.leaders[FIRST]
        leader.news = news(7, LiteSet(ANN, ["red"], 0))
        stage.sets._group = "broker-b"
        await stage.turns(2)
        assert (stage.kept(), leader.known) == ({}, [])

    run(story)
