"""What sessions do beyond the promises in tests/spec/test_cluster.py: v2 members, mailboxes."""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, MemberTable, Protocol
from evenq_broker.loops.groups.mailbox import Session
from evenq_broker.loops.groups.sessions import REFUSED_MAX, REFUSED_MS, SubscriptionReports
from evenq_broker.metrics.broker_metrics import broker_metrics, constant_labels
from evenq_broker.settings import StoreSettings

from evenq.errors import ConnectionFailed, DuplicateClientId, PreconditionFailed
from evenq.model import FilterExpression, Generation, MessageQueue, Subscription
from evenq.model.session_events import AssignmentChanged, BrokerLeaving, QueueWanted, SettingsChanged
from evenq.runtime.clock import FakeClock
from evenq.serving.program.metrics import exposition
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import common_pb2

PUSH_CONSUMER, PRODUCER = 2, 1


def context(client_id: str) -> RpcContext:
    return RpcContext("/x", [("x-mq-client-id", client_id), ("x-mq-language", "java")], "127.0.0.1:1", None)


def ids(broker: Any, group: str) -> list[str]:
    return [member.client_id for member in broker.membership.members.members(group)]


async def test_a_v2_consumer_is_a_member_until_its_silence_or_its_goodbye(stage: Any) -> None:
    broker = await stage.broker()
    broker.sessions.seen_v2(context("x"), "g", PUSH_CONSUMER, [Subscription("t")])
    broker.sessions.seen_v2(context("y"), "g", PUSH_CONSUMER, None)
    assert ids(broker, "g") == ["x", "y"]
    assert broker.membership.members.members("g")[0].language == "JAVA"
    await stage.clock.advance(100_000)
    broker.sessions.seen_v2(context("x"), "g", PUSH_CONSUMER, None)
    await stage.clock.advance(100_000)
    assert ids(broker, "g") == ["x"]
    assert broker.membership.members.members("g")[0].subscriptions == (Subscription("t"),), (
        "kept when a call does not tell"
    )
    broker.sessions.left_v2("x")
    assert ids(broker, "g") == []


async def test_producers_and_calls_without_a_client_id_are_no_members(stage: Any) -> None:
    broker = await stage.broker()
    broker.sessions.seen_v2(context("x"), "g", PRODUCER)
    broker.sessions.seen_v2(context(""), "g", PUSH_CONSUMER)
    assert ids(broker, "g") == []


async def test_a_v2_client_that_leaves_one_group_stays_in_the_others(stage: Any) -> None:
    broker = await stage.broker()
    for group in ("g", "h"):
        broker.sessions.seen_v2(context("x"), group, PUSH_CONSUMER, [Subscription("t")])
    broker.sessions.left_v2("x", "g")
    assert (ids(broker, "g"), ids(broker, "h")) == ([], ["x"])


@pytest.mark.parametrize("group", ["", "g"])
async def test_a_v2_client_that_leaves_takes_no_evenq_member_of_its_id_along(stage: Any, group: str) -> None:
    broker = await stage.broker()
    session = broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    broker.sessions.seen_v2(context("x"), "h", PUSH_CONSUMER, [Subscription("t")])
    broker.sessions.left_v2("x", group)
    assert (ids(broker, "g"), session.ended) == (["x"], False)
    assert ids(broker, "h") == ([] if group == "" else ["x"])


async def test_a_v2_call_of_an_evenq_member_leaves_its_session_alone(stage: Any) -> None:
    broker = await stage.broker()
    broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    broker.sessions.seen_v2(context("x"), "g", PUSH_CONSUMER, [Subscription("t")])
    assert broker.membership.members.members("g")[0].protocol is Protocol.EVENQ


async def test_a_group_that_is_configured_anew_tells_its_members_and_only_when_it_changed(stage: Any) -> None:
    broker = await stage.broker()
    session = broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    for strategy in ("AVG", "STICKY"):
        await stage.during(broker.catalog.create_group("g", strategy=strategy))
    session.assignment_changed("t", Generation(1, 3), 0)
    (settings, assignment) = await session.take(broker.sessions)
    assert settings == SettingsChanged(broker.catalog.groups.get("g")), "the newest, before decisions that hang on it"
    assert settings.settings.strategy == "STICKY"
    await stage.during(broker.catalog.create_group("g", strategy=""))
    (settings,) = await session.take(broker.sessions)
    assert settings.settings.strategy == "", "none at all"
    await stage.during(broker.catalog.create_group("g", strategy="STICKY"))
    await session.take(broker.sessions)
    assert isinstance(assignment, AssignmentChanged)
    await stage.during(broker.catalog.create_group("g", strategy="STICKY"))
    session.queue_wanted(MessageQueue("t", "a", 0), 0)
    assert await session.take(broker.sessions) == [QueueWanted(MessageQueue("t", "a", 0))]


@pytest.mark.parametrize(("members", "sweeps"), [(3, 1), (32, 1), (100, 10), (400, 40)])
async def test_who_need_not_know_soon_hears_of_others_in_parts_that_cost_little(
    stage: Any, monkeypatch: pytest.MonkeyPatch, members: int, sweeps: int
) -> None:
    broker = await stage.broker()
    sessions = broker.sessions
    monkeypatch.setattr(sessions, "_decided", lambda _group: True)
    joined = [sessions.join("g", Member(client_id=f"c{n}", protocol=Protocol.EVENQ)) for n in range(members)]
    result = [0]
    for _ in range(sweeps):
        await stage.clock.advance(250)
        result.append(sum(session.waiting_since_ms is not None for session in joined))
    parts = [after - before for before, after in itertools.pairwise(result)]
    assert result[-1] == members - 1, "the last that joined knows all"
    assert max(parts) * members <= 4 * 1_024, parts


async def test_a_changed_route_tells_the_members_that_read_the_topic(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    sessions = broker.sessions
    reader, other = (
        sessions.join("g", Member(client_id=topic, protocol=Protocol.EVENQ, subscriptions=(Subscription(topic),)))
        for topic in ("t", "u")
    )
    await reader.take(sessions)
    await stage.during(broker.catalog.create_topic("t", queues=3))
    (news,) = await stage.during(reader.take(sessions))
    assert news.topic == "t"
    assert other.waiting_since_ms is None


async def test_facts_that_a_member_changes_on_its_stream_are_sent_to_the_group(stage: Any) -> None:
    """Members that divide by themselves would leave the queues of the new topic unread."""
    broker = await stage.broker()
    sessions = broker.sessions
    one, two = (sessions.join("g", Member(client_id=name, protocol=Protocol.EVENQ)) for name in ("one", "two"))
    await one.take(sessions)
    changed = Member(client_id="two", protocol=Protocol.EVENQ, subscriptions=(Subscription("t"),))
    sessions.update(two, changed)
    (news,) = await stage.during(one.take(sessions))
    assert [member.subscriptions for member in news.members] == [(), (Subscription("t"),)]


async def test_a_member_that_comes_back_under_its_id_is_sent_its_share_without_delay(stage: Any) -> None:
    """Only a member that keeps its queues can wait for the next decision."""
    broker = await stage.broker()
    sessions, me = broker.sessions, Member(client_id="x", protocol=Protocol.EVENQ)
    share = common_pb2.Share(strategy="AVG")
    share.queues.add(broker_name="a", queue_ids=[0])
    for counter in (1, 2):
        session = sessions.join("g", me)
        sessions.assignment_changed("g", "t", Generation(1, counter), {"x": share})
        assert session.waiting_since_ms is not None
        sessions.leave(session)
    assert len(broker.membership.answers) == 0


async def test_a_newer_stream_of_the_same_member_ends_the_older_one(stage: Any) -> None:
    broker = await stage.broker()
    sessions, me = broker.sessions, Member(client_id="x", protocol=Protocol.EVENQ)
    old = sessions.join("g", me)
    new = sessions.join("g", me)
    assert old.ended
    sessions.broken(old)
    await stage.clock.advance(5_000)
    assert not new.ended
    assert ids(broker, "g") == ["x"]


async def test_a_restarted_broker_keeps_queues_for_members_that_come_back(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    first = await stage.broker("a", store=store)
    kept, dropped = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
    for client_id, queue in (("x", kept), ("y", dropped)):
        first.sessions.join("g", Member(client_id=client_id, protocol=Protocol.EVENQ))
        assert await stage.during(first.sessions.locking.lock("g", client_id, [queue], wait_ms=0)) == [True]
    await stage.during(first.close())
    second = await stage.broker("a", store=store)
    sessions = second.sessions
    session = sessions.join("g", Member(client_id="z", protocol=Protocol.EVENQ))
    assert await stage.during(sessions.locking.lock("g", "z", [kept, dropped], wait_ms=0)) == [False, False]
    returned = sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    readers = [asyncio.ensure_future(_read(one, sessions)) for one in (session, returned)]
    for _ in range(4):
        await stage.clock.advance(3_000)
        sessions.beat(session)
        sessions.beat(returned)
    assert await stage.during(sessions.locking.lock("g", "z", [kept, dropped], wait_ms=0)) == [False, True]
    session.end()
    returned.end()
    await asyncio.gather(*readers)


async def test_a_second_living_client_with_the_same_id_is_refused_named_and_counted(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_group("g"))
    sessions = broker.sessions
    first = Member(client_id="x", protocol=Protocol.EVENQ, address="10.0.0.1")
    twin = Member(client_id="x", protocol=Protocol.EVENQ, address="10.0.0.2")
    session = sessions.join("g", first, incarnation=1)
    with pytest.raises(DuplicateClientId, match=r"'x' is taken in group g: another connected member at 10\.0\.0\.1"):
        sessions.join("g", twin, incarnation=2)
    assert not session.ended
    assert sessions.duplicates == {"g": 1}
    text = exposition(broker_metrics(broker), constant_labels(broker.runtime)).decode()
    assert 'consumer_group="g"' in next(
        line for line in text.splitlines() if line.startswith("evenq_duplicate_client_ids_total{")
    )
    sessions.join("h", twin, incarnation=2)
    assert not sessions.join("g", first, incarnation=1).ended, "a client that comes back is no twin"


async def test_a_client_that_starts_again_takes_the_place_of_its_broken_or_silent_self(stage: Any) -> None:
    broker = await stage.broker()
    sessions, me = broker.sessions, Member(client_id="x", protocol=Protocol.EVENQ)
    broken = sessions.join("g", me, incarnation=1)
    sessions.broken(broken)
    silent = sessions.join("g", me, incarnation=2)
    await stage.clock.advance(2 * broker.runtime.settings.session_beat_interval_ms + 1)
    assert not sessions.join("g", me, incarnation=3).ended
    assert silent.ended
    assert sessions.duplicates == {}


async def test_clients_that_tell_no_incarnation_are_believed(stage: Any) -> None:
    broker = await stage.broker()
    sessions, me = broker.sessions, Member(client_id="x", protocol=Protocol.EVENQ)
    old = sessions.join("g", me)
    sessions.join("g", me, incarnation=1)
    assert old.ended
    assert not sessions.join("g", me).ended


async def test_a_v2_member_whose_stream_is_lost_goes_after_a_short_grace(stage: Any) -> None:
    broker = await stage.broker(client_grace_ms=1_000, client_lost_ms=4_000)
    for client_id in ("dead", "calls", "polls"):
        broker.clients.table.seen(client_id, broker.runtime.now_ms())
        broker.sessions.seen_v2(context(client_id), "g", PUSH_CONSUMER, [Subscription("t")])
    until_ms = broker.runtime.now_ms() + 60_000
    poll = asyncio.ensure_future(broker.long_polls.for_messages(1, 1, deadline_ms=until_ms, client_id="polls"))
    await stage.clock.advance(0)
    for client_id in ("dead", "calls", "polls"):
        broker.sessions.stream_lost_v2(client_id)
    await stage.clock.advance(500)
    assert ids(broker, "g") == ["calls", "dead", "polls"]
    broker.sessions.touched_v2("calls")
    await stage.until(lambda: ids(broker, "g") == ["calls", "polls"], limit_ms=1_000)
    assert broker.clients.table.get("dead") is not None, "what it holds may be acknowledged yet"
    await stage.clock.advance(5_000)
    assert broker.clients.table.get("dead") is None
    assert ids(broker, "g") == ["calls", "polls"]
    assert not poll.done()
    broker.long_polls.end_client("polls")
    assert await poll is None


async def test_a_beat_renews_the_lease_of_its_own_group_only(stage: Any) -> None:
    """Two machines may use one client id in two groups: the one that lives does not keep the queues of the other."""
    broker = await stage.broker()
    sessions, queue = broker.sessions, MessageQueue("t", "a", 0)
    member = Member(client_id="x", protocol=Protocol.EVENQ)
    sessions.join("g", member)
    lives = sessions.join("h", member)
    broker.clients.table.seen("x", broker.runtime.now_ms())
    assert await stage.during(sessions.locking.lock("g", "x", [queue], wait_ms=0)) == [True]
    for _ in range(21):
        sessions.beat(lives)
        sessions.touched_v2("x")
        await stage.clock.advance(500)
    assert (ids(broker, "g"), ids(broker, "h")) == ([], ["x"])
    assert not broker.membership.locks.holder("g", queue)


async def test_a_member_that_moved_to_another_network_keeps_its_queues(stage: Any) -> None:
    broker = await stage.broker()
    sessions, queue = broker.sessions, MessageQueue("t", "a", 0)
    old = sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ, address="10.0.0.1"), incarnation=7)
    assert await stage.during(sessions.locking.lock("g", "x", [queue], wait_ms=0)) == [True]
    moved = Member(client_id="x", protocol=Protocol.EVENQ, address="192.168.0.1")
    new = sessions.join("g", moved, incarnation=7)  # while the old connection looks open
    sessions.broken(old)
    await stage.clock.advance(5_000)
    assert broker.membership.locks.holder("g", queue) == "x"
    assert broker.membership.members.members("g")[0].address == "192.168.0.1"
    sessions.broken(new)
    await stage.until(lambda: broker.membership.locks.holder("g", queue) == "", limit_ms=1_500)


async def test_a_holder_that_never_lets_go_loses_the_queue_to_a_newer_decision(stage: Any) -> None:
    broker = await stage.broker(revoke_ms=20_000)
    sessions, queue = broker.sessions, MessageQueue("t", "a", 0)
    lines = [sessions.join("g", Member(client_id=name, protocol=Protocol.EVENQ)) for name in ("old", "new")]
    readers = [asyncio.ensure_future(_read(line, sessions)) for line in lines]
    lock = sessions.locking.lock
    assert await stage.during(lock("g", "old", [queue], wait_ms=0, generation=Generation(1, 1)))
    granted, waited_ms = False, -broker.runtime.clock.monotonic_ms()
    while not granted:
        for line in lines:
            sessions.beat(line)
        (granted,) = await stage.during(lock("g", "new", [queue], wait_ms=3_000, generation=Generation(1, 2)))
        await stage.clock.advance(500)
    assert 20_000 <= waited_ms + broker.runtime.clock.monotonic_ms() <= 25_000
    with pytest.raises(PreconditionFailed, match="'new' holds it"):
        sessions.locking.must_hold("g", "old", queue, Generation(1, 1), commits=True)
    for line in lines:
        line.end()
    await asyncio.gather(*readers)


async def test_a_closing_broker_waits_until_members_have_let_go_and_grants_nothing_more(stage: Any) -> None:
    broker = await stage.broker()
    sessions, queue = broker.sessions, MessageQueue("t", "a", 0)
    one = sessions.join("g", Member(client_id="one", protocol=Protocol.EVENQ), hands_over=True)
    sessions.join("g", Member(client_id="two", protocol=Protocol.EVENQ), hands_over=True)
    assert await stage.during(sessions.locking.lock("g", "one", [queue], wait_ms=0)) == [True]
    waiting = asyncio.ensure_future(sessions.locking.lock("g", "two", [queue], wait_ms=60_000))
    await stage.clock.advance(5)
    closing = asyncio.ensure_future(sessions.hand_over(10_000))
    await stage.clock.advance(1_000)
    assert waiting.result() == [False], "no member gets what the broker will not read out any more"
    assert BrokerLeaving(10_000) in await one.take(sessions)
    assert not closing.done()
    with pytest.raises(ConnectionFailed, match="broker a is shutting down"):
        await sessions.locking.lock("g", "two", [queue], wait_ms=0)
    with pytest.raises(ConnectionFailed, match="broker a is shutting down"):
        sessions.join("g", Member(client_id="three", protocol=Protocol.EVENQ))
    sessions.locking.must_hold("g", "one", queue, Generation(), commits=True)
    sessions.locking.unlock("g", "one", [queue])
    await stage.clock.advance(5)
    assert closing.done()
    assert broker.membership.locks.holder("g", queue) == ""


@pytest.mark.parametrize(("hands_over", "waits_ms"), [(True, 2_000), (False, 0)])
async def test_a_closing_broker_waits_no_longer_than_its_drain_and_not_for_older_clients(
    stage: Any, hands_over: bool, waits_ms: int
) -> None:
    broker = await stage.broker()
    sessions, queue = broker.sessions, MessageQueue("t", "a", 0)
    sessions.join("g", Member(client_id="slow", protocol=Protocol.EVENQ), hands_over=hands_over)
    assert await stage.during(sessions.locking.lock("g", "slow", [queue], wait_ms=0)) == [True]
    began_ms = stage.clock.monotonic_ms()
    await stage.during(sessions.hand_over(2_000))
    assert waits_ms <= stage.clock.monotonic_ms() - began_ms <= waits_ms + 20
    assert broker.membership.locks.holder("g", queue) == "slow", "it is still its own after the restart"


async def _read(session: Session, sessions: Any) -> None:
    while await session.take(sessions):
        pass


async def test_refusals_are_bounded_and_end_when_the_client_may_consume_all(stage: Any) -> None:
    broker = await stage.broker()
    for number in range(REFUSED_MAX + 1):
        broker.sessions.refuse("g", f"c{number}", ["t"])
    assert len(broker.sessions.refused) == REFUSED_MAX
    assert broker.sessions.refused_of("g")[0] == ("c1", ("t",))
    broker.sessions.refuse("g", "c1", [])
    assert broker.sessions.refused_of("g")[0] == ("c2", ("t",))
    await stage.clock.advance(REFUSED_MS + 1)
    assert broker.sessions.refused_of("g") == []


def join(members: MemberTable, client_id: str, tags: str) -> None:
    result = Member(
        client_id=client_id, protocol=Protocol.V2, subscriptions=(Subscription("t", FilterExpression(tags)),)
    )
    members.join("g", result, now_ms=0, lease_ms=1_000_000)


async def _story(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    clock, members = FakeClock(), MemberTable()
    reports = SubscriptionReports(members, clock)
    join(members, "a", "x")
    reports.look("g")
    join(members, "b", "y")
    for _ in range(61):
        reports.look("g")
        await clock.advance(1_000)
    members.leave("g", "a")
    reports.look("g")
    join(members, "a", "x")
    reports.look("g")
    return [(record.levelname, getattr(record, "filters", None)) for record in caplog.records]


def test_a_difference_is_told_at_once_then_rarely_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq_broker.loops.groups.sessions")
    both = {"x": ["a"], "y": ["b"]}
    assert asyncio.run(_story(caplog)) == [("WARNING", both), ("WARNING", both), ("INFO", None), ("WARNING", both)]


def test_a_large_group_is_looked_at_once_for_many_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evenq_broker.loops.groups.sessions")
    members = MemberTable()
    reports = SubscriptionReports(members, FakeClock())
    for number in range(1_000):
        join(members, f"c{number:04}", "x")
        reports.look("g")
    join(members, "z", "y")
    reports.look("g")
    assert not caplog.records
    reports.look_late()
    [record] = caplog.records
    assert getattr(record, "filters", None) == {"x": ["c0000", "c0001", "c0002"], "y": ["z"]}
    for number in range(1_000):
        members.leave("g", f"c{number:04}")
        reports.look("g")
    reports.look_late()
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    join(members, "a", "x")
    reports.look("g")
    assert len(caplog.records) == 3, "it is small again, and looked at at once"
