"""What a member says of itself on its connections, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from evenq.client.core.calls import GroupTerms, Join, Leave, MemberInfo, SessionEvent, Welcome
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.sessions import GHOST_MS, BrokerSessions
from evenq.model import FilterExpression, MessageModel
from evenq.model.session_events import BrokerLeaving, MembersChanged
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


class Script:
    """A broker that sends what the test puts into `mail`, and ends the session at None and after a goodbye."""

    def __init__(self) -> None:
        self.client_id = "me"
        self.heard: list[object] = []
        self.mail: asyncio.Queue[SessionEvent | None] = asyncio.Queue()

    async def session(self, _: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async def read() -> None:
            async for request in requests:
                self.heard.append(request)
                if isinstance(request, Leave):
                    self.mail.put_nowait(None)

        reading = asyncio.ensure_future(read())
        try:
            while (event := await self.mail.get()) is not None:
                yield event
        finally:
            reading.cancel()

    def welcome(self, *client_ids: str) -> None:
        members = [MemberInfo(client_id, "evenq", frozenset()) for client_id in client_ids]
        self.mail.put_nowait(Welcome(1_000, members, GroupTerms(16, "LAST")))


class Member:
    """One that subscribes to `topics`."""

    def __init__(self, broker: SlowBroker | Script, *topics: str) -> None:
        self.clock = clock = FakeClock()
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

    def known(self) -> list[str]:
        """Client ids of the group, as this member sees it."""
        return sorted(one.client_id for one in self.sessions.members() or ())


async def said(broker: SlowBroker) -> list[str]:
    """The topics of the next introduction."""
    async with asyncio.timeout(HANG_S):
        return list((await broker.heard.get()).subscriptions)


async def test_a_topic_that_comes_before_the_broker_took_us_in_is_told_as_soon_as_it_did() -> None:
    broker = SlowBroker()
    member = Member(broker, "t")
    assert await said(broker) == ["t"]
    member.subscribe("u")
    broker.may_answer.set()
    assert await said(broker) == ["t", "u"]
    await member.sessions.leave()


async def test_a_topic_that_comes_later_is_told_at_once() -> None:
    broker = SlowBroker()
    broker.may_answer.set()
    member = Member(broker, "t")
    assert await said(broker) == ["t"]
    await member.event()
    member.subscribe("u")
    assert await said(broker) == ["t", "u"]
    await member.sessions.leave()


async def test_who_has_said_all_is_not_introduced_again() -> None:
    broker = SlowBroker()
    broker.may_answer.set()
    member = Member(broker, "t")
    assert await said(broker) == ["t"]
    assert isinstance(await member.event(), Welcome)
    assert isinstance(await member.event(), MembersChanged)
    assert broker.heard.empty()
    await member.sessions.leave()


async def test_a_session_that_breaks_leaves_no_heartbeats_behind() -> None:
    broker = Script()
    member = Member(broker, "t")
    for _ in range(3):
        broker.welcome("me")
        assert isinstance(await member.event(), Welcome)
        await member.clock.advance(10)
        beats = [task for task in asyncio.all_tasks() if task.get_name() == "evenq-beats-b"]
        assert len(beats) == 1
        broker.mail.put_nowait(None)
        await member.clock.advance(2_000)
    await member.sessions.leave()


async def test_a_broker_that_left_is_up_again_when_it_takes_the_member_in() -> None:
    broker = Script()
    member = Member(broker, "t")
    broker.welcome("me")
    broker.mail.put_nowait(BrokerLeaving(1_000))
    broker.mail.put_nowait(None)
    await member.clock.advance(10)
    assert (member.sessions.up("b"), member.sessions.closing("b")) == (False, True)
    broker.welcome("me")
    await member.clock.advance(2_000)
    assert (member.sessions.up("b"), member.sessions.closing("b")) == (True, False)
    await member.sessions.leave()


async def test_members_that_did_not_come_back_to_a_restarted_broker_end_with_an_event() -> None:
    """Without the event their queues would wait for the next periodic round."""
    broker = Script()
    member = Member(broker, "t")
    broker.welcome("me", "other")
    broker.mail.put_nowait(None)
    await member.clock.advance(10)
    broker.welcome("me")
    await member.clock.advance(2_000)
    assert member.known() == ["me", "other"]
    while not member.events.empty():
        member.events.get_nowait()
    await member.clock.advance(GHOST_MS + 1_000)
    assert member.known() == ["me"]
    event = await member.event()
    assert isinstance(event, MembersChanged)
    assert [one.client_id for one in event.members] == ["me"]
    await member.sessions.leave()


async def test_a_member_that_is_renamed_before_it_is_taken_in_leaves_under_its_old_name() -> None:
    """The old name would keep its share of the queues until the broker takes it for dead."""
    broker = Script()
    member = Member(broker, "t")
    await member.clock.advance(10)
    broker.client_id = "me-2"
    member.sessions.rename()
    broker.welcome("me")
    await member.clock.advance(2_000)
    assert [type(request) for request in broker.heard] == [Join, Leave, Join]
    await member.sessions.leave()
