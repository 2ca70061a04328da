"""What sessions do beyond the promises in tests/spec/test_cluster.py: v2 members, mailboxes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from evenq_broker.core.locks import Generation
from evenq_broker.core.members import Member, Protocol
from evenq_broker.loops.sessions import AssignmentChanged, MembersChanged, QueueWanted, Session
from evenq_broker.settings import StoreSettings

from evenq.model import MessageQueue, Subscription
from evenq.serving.rpc import RpcContext

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
PUSH_CONSUMER, PRODUCER = 2, 1


def context(client_id: str) -> RpcContext:
    return RpcContext("/x", [("x-mq-client-id", client_id), ("x-mq-language", "java")], "127.0.0.1:1", None)


def ids(broker: Any, group: str) -> list[str]:
    return [member.client_id for member in broker.members.members(group)]


def test_a_v2_consumer_is_a_member_until_its_silence_or_its_goodbye(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        broker.members_seen_v2(context("x"), "g", PUSH_CONSUMER, [Subscription("t")])
        broker.members_seen_v2(context("y"), "g", PUSH_CONSUMER, None)
        assert ids(broker, "g") == ["x", "y"]
        assert broker.members.members("g")[0].language == "JAVA"
        await stage.clock.advance(100_000)
        broker.members_seen_v2(context("x"), "g", PUSH_CONSUMER, None)
        await stage.clock.advance(100_000)
        assert ids(broker, "g") == ["x"]
        assert broker.members.members("g")[0].subscriptions == (Subscription("t"),), "kept when a call does not tell"
        broker.members_left_v2("x")
        assert ids(broker, "g") == []

    run(story)


def test_producers_and_calls_without_a_client_id_are_no_members(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        broker.members_seen_v2(context("x"), "g", PRODUCER)
        broker.members_seen_v2(context(""), "g", PUSH_CONSUMER)
        assert ids(broker, "g") == []

    run(story)


def test_a_v2_call_of_an_evenq_member_leaves_its_session_alone(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        broker.cluster.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
        broker.members_seen_v2(context("x"), "g", PUSH_CONSUMER, [Subscription("t")])
        assert broker.members.members("g")[0].protocol is Protocol.EVENQ

    run(story)


def test_a_mailbox_keeps_the_newest_of_each_kind_and_no_backlog(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        session, queue = Session("g", "x"), MessageQueue("t", "a", 0)
        for counter in (1, 3, 2):
            session.assignment_changed("t", Generation(1, counter), 0)
            session.members_changed(0)
            session.queue_wanted(queue, 0)
        mail = await session.take(broker.cluster.sessions)
        assert mail == [MembersChanged(()), AssignmentChanged("t", Generation(1, 3)), QueueWanted(queue)]
        session.end()
        assert await session.take(broker.cluster.sessions) == []

    run(story)


def test_a_changed_route_tells_the_members_that_read_the_topic(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.create_topic("t", queues=1))
        sessions = broker.cluster.sessions
        reader, other = (
            sessions.join("g", Member(client_id=topic, protocol=Protocol.EVENQ, subscriptions=(Subscription(topic),)))
            for topic in ("t", "u")
        )
        await reader.take(sessions)
        await stage.during(broker.create_topic("t", queues=3))
        (news,) = await stage.during(reader.take(sessions))
        assert news.topic == "t"
        assert other.waiting_since_ms is None

    run(story)


def test_a_newer_stream_of_the_same_member_ends_the_older_one(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        sessions, me = broker.cluster.sessions, Member(client_id="x", protocol=Protocol.EVENQ)
        old = sessions.join("g", me)
        new = sessions.join("g", me)
        assert old.ended
        sessions.broken(old)
        await stage.clock.advance(5_000)
        assert not new.ended
        assert ids(broker, "g") == ["x"]

    run(story)


def test_a_restarted_broker_keeps_queues_for_members_that_come_back(run: Run, tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
        first = await stage.broker("a", store=store)
        kept, dropped = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
        for client_id, queue in (("x", kept), ("y", dropped)):
            first.cluster.sessions.join("g", Member(client_id=client_id, protocol=Protocol.EVENQ))
            assert await stage.during(first.cluster.sessions.lock("g", client_id, [queue], wait_ms=0)) == [True]
        await stage.during(first.close())
        second = await stage.broker("a", store=store)
        sessions = second.cluster.sessions
        session = sessions.join("g", Member(client_id="z", protocol=Protocol.EVENQ))
        assert await stage.during(sessions.lock("g", "z", [kept, dropped], wait_ms=0)) == [False, False]
        returned = sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
        readers = [asyncio.ensure_future(_read(one, sessions)) for one in (session, returned)]
        for _ in range(4):
            await stage.clock.advance(3_000)
            sessions.beat(session)
            sessions.beat(returned)
        assert await stage.during(sessions.lock("g", "z", [kept, dropped], wait_ms=0)) == [False, True]
        session.end()
        returned.end()
        await asyncio.gather(*readers)

    run(story)


async def _read(session: Session, sessions: Any) -> None:
    while await session.take(sessions):
        pass
