"""What a member says of itself on its connections, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from evenq.client.core.calls import GroupTerms, Join, Welcome
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.model import FilterExpression, MessageModel
from evenq.model.session_events import MembersChanged
from evenq.runtime.clock import FakeClock

HANG_S = 30


class SlowBroker:
    """Answers an introduction when it may; notes all of them."""

    client_id = "me"

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Join] = asyncio.Queue()
        self.may_answer = asyncio.Event()

    async def session(self, _: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, Join):
                self.heard.put_nowait(request)
                await self.may_answer.wait()
                yield Welcome(10_000, [], GroupTerms(16, "LAST"))
                yield MembersChanged([])


class Member:
    """One that subscribes to `topics`."""

    def __init__(self, broker: SlowBroker, *topics: str) -> None:
        clock = FakeClock()
        self.topics = list(topics)
        self.events: asyncio.Queue[object] = asyncio.Queue()
        self.sessions = BrokerSessions(
            broker,  # type: ignore[arg-type]
            clock=clock,
            rng=random.Random(1),
            join=self.introduction,
            heard=lambda _, event: self.events.put_nowait(event),
            broken=lambda _: None,
            taken=lambda _, __: None,
            suspected=lambda _: None,
            troubles=Troubles(clock, who="group g"),
        )
        self.sessions.want({"b": "b:1"})

    def introduction(self) -> Join:
        return Join(
            "g", MessageModel.CLUSTERING, {topic: FilterExpression() for topic in self.topics}, len(self.topics)
        )

    def subscribe(self, topic: str) -> None:
        self.topics.append(topic)
        self.sessions.rejoin()

    async def event(self) -> object:
        async with asyncio.timeout(HANG_S):
            return await self.events.get()


async def said(broker: SlowBroker) -> list[str]:
    """The topics of the next introduction."""
    async with asyncio.timeout(HANG_S):
        return list((await broker.heard.get()).subscriptions)


def test_a_topic_that_comes_before_the_broker_took_us_in_is_told_as_soon_as_it_did() -> None:
    async def play() -> None:
        broker = SlowBroker()
        member = Member(broker, "t")
        assert await said(broker) == ["t"]
        member.subscribe("u")
        broker.may_answer.set()
        assert await said(broker) == ["t", "u"]
        await member.sessions.leave()

    asyncio.run(play())


def test_a_topic_that_comes_later_is_told_at_once() -> None:
    async def play() -> None:
        broker = SlowBroker()
        broker.may_answer.set()
        member = Member(broker, "t")
        assert await said(broker) == ["t"]
        await member.event()
        member.subscribe("u")
        assert await said(broker) == ["t", "u"]
        await member.sessions.leave()

    asyncio.run(play())


def test_who_has_said_all_is_not_introduced_again() -> None:
    async def play() -> None:
        broker = SlowBroker()
        broker.may_answer.set()
        member = Member(broker, "t")
        assert await said(broker) == ["t"]
        assert isinstance(await member.event(), Welcome)
        assert isinstance(await member.event(), MembersChanged)
        assert broker.heard.empty()
        await member.sessions.leave()

    asyncio.run(play())
