"""What a session tells its member: the newest news of each kind, and never a backlog."""

import asyncio
from types import SimpleNamespace
from typing import Any

from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.groups.mailbox import Mail, Session

from evenq.model import Generation, MessageQueue
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)
from evenq.wire.stubs.evenq.v1 import common_pb2

QUEUES = [MessageQueue("t", "a", queue_id) for queue_id in range(3)]
MEMBERS = [Member(client_id="x", protocol=Protocol.EVENQ), Member(client_id="y", protocol=Protocol.EVENQ)]


class Lister:
    """Knows the members of the group `g`."""

    def members(self, group: str) -> list[Member]:
        assert group == "g"
        return MEMBERS


def taken(session: Session) -> list[Mail]:
    """What the mailbox holds; it must hold something."""
    return asyncio.run(asyncio.wait_for(session.take(Lister()), timeout=60))


def test_every_kind_of_news_is_told_once_and_settings_stand_before_assignments() -> None:
    session = Session("g", "x")
    session.broker_leaves(5_000, 1)
    session.offsets_reset(QUEUES[:2], 2)
    session.offsets_reset(QUEUES[1:], 3)
    session.queue_wanted(QUEUES[2], 4)
    session.assignment_changed("t", Generation(1, 1), 5)
    session.settings_changed("settings", 6)  # type: ignore[arg-type]
    session.members_changed(7)
    assert taken(session) == [
        MembersChanged(tuple(MEMBERS)),
        SettingsChanged("settings"),
        AssignmentChanged("t", Generation(1, 1)),
        QueueWanted(QUEUES[2]),
        OffsetsReset(tuple(QUEUES)),
        BrokerLeaving(5_000),
    ]
    session.members_changed(8)
    assert taken(session) == [MembersChanged(tuple(MEMBERS))], "what was taken is not reported again"


def test_the_oldest_news_says_since_when_the_member_waits() -> None:
    session = Session("g", "x")
    assert session.waiting_since_ms is None
    session.queue_wanted(QUEUES[0], 10)
    session.members_changed(20)
    assert session.waiting_since_ms == 10
    taken(session)
    assert session.waiting_since_ms is None
    session.members_changed(30)
    assert session.waiting_since_ms == 30


async def test_a_waiting_stream_gets_news_when_it_comes_and_nothing_when_the_session_ends() -> None:
    session = Session("g", "x")
    stream = asyncio.ensure_future(session.take(Lister()))
    await asyncio.sleep(0)
    assert not stream.done()
    session.queue_wanted(QUEUES[0], 0)
    assert await asyncio.wait_for(stream, timeout=60) == [QueueWanted(QUEUES[0])]
    stream = asyncio.ensure_future(session.take(Lister()))
    await asyncio.sleep(0)
    session.queue_wanted(QUEUES[1], 0)
    session.end()
    assert await asyncio.wait_for(stream, timeout=60) == [], "an ended session tells nothing any more"


async def test_a_mailbox_keeps_the_newest_of_each_kind_and_no_backlog(stage: Any) -> None:
    broker = await stage.broker()
    session, queue = Session("g", "x"), MessageQueue("t", "a", 0)
    for counter in (1, 3, 2):
        session.assignment_changed("t", Generation(1, counter), 0)
        session.members_changed(0)
        session.queue_wanted(queue, 0)
    mail = await session.take(broker.sessions)
    assert mail == [MembersChanged(()), AssignmentChanged("t", Generation(1, 3)), QueueWanted(queue)]
    session.end()
    assert await session.take(broker.sessions) == []


async def test_members_that_begin_to_divide_by_themselves_are_told_who_they_are(stage: Any) -> None:
    broker = await stage.broker()
    group, session = await stage.during(broker.catalog.create_group("g", strategy="STICKY")), Session("g", "x")
    session.members_changed(0, soon=False)
    session.settings_changed(group, 0)
    assert await session.take(broker.sessions) == [MembersChanged(()), SettingsChanged(group)]


def test_a_share_travels_with_the_newest_decision_and_a_change_that_must_be_asked_for_takes_it_back() -> None:
    def after(*changes: tuple[int, str | None]) -> Any:
        session = Session("g", "x")
        for counter, strategy in changes:
            share = None if strategy is None else common_pb2.Share(strategy=strategy)
            session.assignment_changed("t", Generation(1, counter) if counter else Generation(), 0, share)
        news = asyncio.run(session.take(SimpleNamespace(members=list)))
        return news[0] if len(news) == 1 else news

    assert after((1, "a"), (2, "b")).share.strategy == "b"
    assert after((2, "b"), (1, "a")) == AssignmentChanged("t", Generation(1, 2), common_pb2.Share(strategy="b"))
    assert after((2, "b"), (1, None)) == AssignmentChanged("t", Generation(1, 2))
    assert after((2, None), (2, "b")).share is None
    result = [
        AssignmentChanged("t", Generation(1, 3), common_pb2.Share(strategy="c")),
        AssignmentChanged("t", Generation()),
    ]
    assert after((0, None), (3, "c")) == after((3, "c"), (0, None)) == result, "a changed route is reported beside it"


async def test_what_can_wait_goes_when_it_is_time_and_a_long_list_stands_before_nothing_urgent(stage: Any) -> None:
    broker = await stage.broker()
    sessions = broker.sessions
    session = Session("g", "x")
    session.members_changed(5, soon=False)
    session.assignment_changed("t", Generation(1, 1), 6, soon=False)
    assert session.waiting_since_ms is None
    session.late(7)
    assert await session.take(sessions) == [MembersChanged(()), AssignmentChanged("t", Generation(1, 1))]
    session.late(8)
    assert session.waiting_since_ms is None, "nothing is left"
    session.members_changed(9, soon=False)
    session.queue_wanted(MessageQueue("t", "a", 0), 10)
    session.assignment_changed("t", Generation(1, 2), 11, soon=False)
    assert await session.take(sessions) == [
        AssignmentChanged("t", Generation(1, 2)),
        QueueWanted(MessageQueue("t", "a", 0)),
    ]
    session.late(12)
    assert await session.take(sessions) == [MembersChanged(())]
    session.late(13)
    assert session.waiting_since_ms is None
    session.members_changed(14, soon=False)
    session.members_changed(15)
    assert await session.take(sessions) == [MembersChanged(())]
    session.late(16)
    assert session.waiting_since_ms is None, "reported with what was urgent"
