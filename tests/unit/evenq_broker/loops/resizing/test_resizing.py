"""One broker's part of resizing: the steps of shrinking, what stands in the way, and what is left to read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.cluster.unfinished import Hidden
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.schedule_records import Schedule
from evenq_broker.loops.resizing.resizing import (
    Remains,
    drain,
    hidden_by,
    leave,
    left_here,
    look,
    permit,
    scale,
    stranded,
)
from evenq_broker.settings import StoreSettings
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.v2_requests import receive_request

from evenq.errors import BadRequest, IllegalTopic, TopicNotFound
from evenq.model import FilterExpression, MessageType, Permission, StartFrom, Subscription
from evenq.store import Append, TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2


async def send(stage: Any, queue_id: int, count: int = 1) -> int:
    request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id))
    for _ in range(count):
        request.messages.add(body=b"x").system_properties.message_id = "id"
    answer = await stage.ask("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
    return int(answer.status.code)


async def read(stage: Any, queue_id: int, offset: int, group: str = "g") -> int:
    commit = data_pb2.CommitOffsetsRequest(group=group)
    commit.offsets.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id), offset=offset)
    answer = await stage.ask("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    return int(answer.status.code)


async def pull(stage: Any, queue_id: int) -> int:
    request = data_pb2.PullRequest(
        queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id), offset=0, batch_max=9
    )
    answer = await stage.ask("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)
    return int(answer.status.code)


def counts(topic: Any) -> tuple[int, int, int]:
    return topic.write_queues, topic.read_queues, topic.queues_ever


async def test_new_queues_are_open_at_once(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    topic, left = await stage.during(scale(broker.kernel, "t", 5, membership=broker.membership))
    assert (counts(topic), left.unfinished) == ((5, 5, 5), ())
    assert await send(stage, 4) == definition_pb2.OK
    assert await pull(stage, 4) == definition_pb2.OK


async def test_a_shrinking_topic_takes_no_messages_there_and_is_read_until_every_group_is_through(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await send(stage, 3, count=5)
    for group in ("g", "h"):
        await read(stage, 0, 0, group)
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert counts(topic) == (2, 4, 4)
    assert [(one.queue.queue_id, one.group, one.lag) for one in left.unfinished] == [(3, "g", 5), (3, "h", 5)]
    assert await send(stage, 3) == definition_pb2.FORBIDDEN
    assert await send(stage, 7) == definition_pb2.BAD_REQUEST, "it never had that one"
    assert await pull(stage, 3) == definition_pb2.OK
    await read(stage, 3, 5)
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert counts(topic) == (2, 4, 4)
    assert [one.group for one in left.unfinished] == ["h"]
    await read(stage, 3, 5, "h")
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert (counts(topic), left.unfinished) == ((2, 2, 4), ())
    assert await pull(stage, 3) == definition_pb2.PRECONDITION_FAILED
    assert await read(stage, 3, 5) == definition_pb2.OK, "a late commit of a closed queue still counts"


async def test_closing_by_force_leaves_messages_that_are_told_and_come_back_when_asked_again(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await send(stage, 3, count=5)
    await read(stage, 0, 0)
    topic, left = await stage.during(scale(broker.kernel, "t", 2, force=True, membership=broker.membership))
    assert counts(topic) == (2, 2, 4)
    assert [one.lag for one in left.unfinished] == [5]
    assert stranded(broker.kernel, topic, membership=broker.membership) == 5
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert counts(topic) == (2, 4, 4), "open for reading again"
    assert stranded(broker.kernel, topic, membership=broker.membership) == 0
    await read(stage, 3, 5)
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert (counts(topic), left.unfinished) == ((2, 2, 4), ())
    topic, left = await stage.during(scale(broker.kernel, "t", 4, membership=broker.membership))
    assert counts(topic) == (4, 4, 4)
    found = broker.ledger.progress.committed(broker.catalog.groups.get("g").group_id, topic.topic_id, 3)
    assert found == 5, "the group goes on where it was"


async def test_a_group_with_members_counts_before_it_has_begun(stage: Any) -> None:
    """Here nobody knows whether one that begins at the end has begun at another broker, and misses what came since."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await send(stage, 1)
    for name, start in (("first", StartFrom.FIRST), ("last", StartFrom.LAST)):
        await stage.during(broker.catalog.create_group(name, start_from=start))
        member = Member(
            client_id="c",
            protocol=Protocol.EVENQ,
            subscriptions=(Subscription(topic="t", filter=FilterExpression()),),
        )
        broker.membership.members.join(name, member, now_ms=stage.clock.monotonic_ms(), lease_ms=60_000)
    _, left = await stage.during(scale(broker.kernel, "t", 1, membership=broker.membership))
    assert [one.group for one in left.unfinished] == ["first", "last"]
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert [one.group for one in left.unfinished] == ["first", "last"]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_group_of_a_deleted_topic_counts_for_the_one_that_was_created_again(stage: Any, waits: bool) -> None:
    """It reads that one from its first message, so a broker that is drained before it does takes messages along."""
    broker = await stage.broker()
    await stage.during(broker.catalog.create_group("g", start_from=StartFrom.LAST))
    await stage.during(broker.catalog.create_topic("t", queues=1))
    if waits:
        await read(stage, 0, 0)
        await stage.during(broker.catalog.delete_topic("t"))
        await stage.during(broker.catalog.create_topic("t", queues=1))
    await send(stage, 0, count=3)
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert [(one.group, one.lag) for one in left.unfinished] == ([("g", 3)] if waits else [])
    assert left.unread == (0 if waits else 3)
    topic = await stage.during(permit(broker.kernel, "t", Permission.WRITE))
    assert stranded(broker.kernel, topic, membership=broker.membership) == (3 if waits else 0)


async def test_what_cannot_be_resized_is_refused(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("lite", message_type=MessageType.LITE))
    await stage.during(broker.catalog.create_topic("t"))
    with pytest.raises(TopicNotFound):
        await scale(broker.kernel, "nobody", 3, membership=broker.membership)
    with pytest.raises(BadRequest, match="range is 1 to 4096"):
        await scale(broker.kernel, "t", 0, membership=broker.membership)
    with pytest.raises(BadRequest, match="LITE"):
        await scale(broker.kernel, "lite", 3, membership=broker.membership)
    with pytest.raises(IllegalTopic):
        await permit(broker.kernel, "%RETRY%g", Permission.READ)


async def test_permissions_close_a_topic_for_senders_or_readers(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await send(stage, 0)
    await read(stage, 0, 0)
    await stage.during(permit(broker.kernel, "t", Permission.READ))
    assert await send(stage, 0) == definition_pb2.FORBIDDEN
    assert await pull(stage, 0) == definition_pb2.OK
    topic = await stage.during(permit(broker.kernel, "t", Permission.WRITE))
    assert await send(stage, 0) == definition_pb2.OK
    assert await pull(stage, 0) == definition_pb2.PRECONDITION_FAILED
    assert stranded(broker.kernel, topic, membership=broker.membership) == 2


async def test_a_draining_broker_takes_nothing_and_tells_what_is_left(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_topic("unread", queues=1))
    await send(stage, 0, count=3)
    await read(stage, 0, 1)
    later = service_pb2.SendMessageRequest()
    later.messages.add(body=b"x").topic.name = "later"
    later.messages[0].system_properties.message_id = "id"
    later.messages[0].system_properties.delivery_timestamp.seconds = stage.clock.now_ms() // 1000 + 10
    await stage.ask("SendMessage", later, service_pb2.SendMessageResponse)
    await stage.during(drain(broker.kernel, on=True))
    assert broker.cluster.own.now().topics["t"].permission is Permission.READ
    assert await send(stage, 0) == definition_pb2.FORBIDDEN
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert [(one.group, one.lag) for one in left.unfinished] == [("g", 2)]
    assert (left.delayed, left.unread, left.empty) == (1, 0, False)
    await read(stage, 0, 3)
    await stage.until(
        lambda: (
            left_here(
                broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table
            ).delayed
            == 0
        ),
        limit_ms=30_000,
    )
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert left.empty
    assert left.unread == 1, "no group ever read the topic `later`"
    await stage.during(drain(broker.kernel, on=False))
    assert await send(stage, 0) == definition_pb2.OK


async def test_what_is_left_here_counts_queues_that_were_closed_unread(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g"))
    await send(stage, 1, 3)
    await read(stage, 1, 1)
    await stage.during(scale(broker.kernel, "t", 1, force=True, membership=broker.membership))
    assert counts(broker.catalog.topics.get("t")) == (1, 1, 2)
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert [(one.queue.queue_id, one.group, one.lag) for one in left.unfinished] == [(1, "g", 2)]


async def test_a_receive_that_waits_already_gets_what_comes_in_a_new_queue(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    request = receive_request("g", "t", invisible_ms=10_000, batch_size=1)
    waiting = asyncio.ensure_future(stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse))
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    began_ms = stage.clock.monotonic_ms()
    await send(stage, 1)
    await stage.until(waiting.done)
    assert stage.clock.monotonic_ms() - began_ms < 500
    assert [frame.message.body for frame in waiting.result() if frame.HasField("message")] == [b"x"]


async def test_an_old_route_does_not_fail_a_send_while_another_broker_takes_messages(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = [await stage.broker(name, nameservers="ns:1") for name in "ab"]
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (a, b)))
    create = admin_pb2.CreateTopicRequest(topic="t", queues=1)
    await stage.call("/evenq.v1.Admin/CreateTopic", create, admin_pb2.CreateTopicResponse)
    message = service_pb2.SendMessageRequest()
    message.messages.add(body=b"x").topic.name = "t"
    message.messages[0].system_properties.message_id = "id"

    async def sent() -> int:
        answer = await stage.ask("SendMessage", message, service_pb2.SendMessageResponse)
        return int(answer.status.code)

    await stage.during(drain(a.kernel, on=True))
    assert await sent() == definition_pb2.OK
    topic_id = b.catalog.topics.get("t").topic_id
    assert b.ledger.store.queue_range(topic_id, 0) == (0, 1)
    await stage.during(drain(b.kernel, on=True))
    await stage.until(lambda: not a.catalog.routes.route("t")[1].counts.permission.writable)
    assert await sent() == definition_pb2.FORBIDDEN


async def test_the_steps_and_the_draining_survive_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await stage.broker(store=store)
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await send(stage, 3)
    await read(stage, 0, 0)
    await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    await stage.during(permit(broker.kernel, "t", Permission.READ))
    await stage.during(drain(broker.kernel, on=True))
    await stage.during(broker.close())
    again = await stage.broker(store=store)
    assert again.catalog.draining
    topic = again.catalog.topics.get("t")
    assert (counts(topic), topic.permission) == ((2, 4, 4), Permission.READ)


async def test_what_no_group_has_read_keeps_queues_open_until_somebody_says_that_it_may_be_hidden(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await send(stage, 3, count=5)
    await send(stage, 0, count=2)
    topic, plan = hidden_by(broker.kernel, "t", 2, membership=broker.membership)
    assert (counts(topic), plan) == ((4, 4, 4), Hidden((), 5, 5)), "a plan changes nothing"
    topic, left = await stage.during(scale(broker.kernel, "t", 2, membership=broker.membership))
    assert (counts(topic), left.unread) == ((2, 4, 4), 5), "a group that comes later finds it"
    assert await pull(stage, 3) == definition_pb2.OK
    topic, left = await stage.during(scale(broker.kernel, "t", 2, close_unread=True, membership=broker.membership))
    assert (counts(topic), left.unread) == ((2, 2, 4), 5)
    assert await pull(stage, 3) == definition_pb2.PRECONDITION_FAILED


async def test_a_plan_tells_groups_and_queues_apart_and_hides_nothing_that_was_read(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await send(stage, 3, count=5)
    await read(stage, 0, 0)
    _, plan = hidden_by(broker.kernel, "t", 3, membership=broker.membership)
    assert ([one.lag for one in plan.unfinished], plan.unread, plan.stored) == ([5], 0, 5)
    await read(stage, 3, 5)
    _, plan = hidden_by(broker.kernel, "t", 3, membership=broker.membership)
    assert plan == Hidden((), 0, 5)
    assert hidden_by(broker.kernel, "t", 4, membership=broker.membership)[1] == Hidden((), 0, 0)
    assert hidden_by(broker.kernel, "t", 9, membership=broker.membership)[1] == Hidden((), 0, 0)


async def stored(stage: Any, **options: Any) -> Any:
    """A broker with three messages in topic t."""
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=2, **options))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 1, 0, 0, b"", b"") for _ in range(3)]))
    return broker


async def step(stage: Any, broker: Any, *, close_unread: bool = False, force: bool = False) -> Remains:
    _, remains = await stage.during(
        leave(
            broker.kernel,
            "t",
            close_unread=close_unread,
            force=force,
            membership=broker.membership,
            schedules=broker.schedules.table,
        )
    )
    return remains  # type: ignore[no-any-return]  # the stage knows no types


async def test_what_no_group_reads_keeps_it_unless_told_otherwise(stage: Any) -> None:
    broker = await stored(stage)
    remains = await step(stage, broker)
    assert (remains.unread, remains.stored, remains.gone) == (3, 3, False)
    assert broker.catalog.topics.get("t").permission is Permission.READ, "closed for writing at once"
    assert (await step(stage, broker, close_unread=True)).gone
    assert broker.catalog.topics.get("t") is None


async def test_schedules_keep_a_topic_like_messages_that_no_group_reads(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=2))
    made = Schedule(topic_id=0, name="s", uid="", every_ms=60_000, body=b"x")
    await stage.during(broker.schedules.put(topic, made))
    left = left_here(broker.kernel, membership=broker.membership, lite=broker.lite, schedules=broker.schedules.table)
    assert (left.empty, left.schedules) == (True, ("t s",)), "a drain does not wait for them: they do not end"
    remains = await step(stage, broker)
    assert (remains.schedules, remains.unread, remains.gone) == (("s",), 0, False)
    assert (await step(stage, broker, close_unread=True)).gone
    assert len(broker.schedules.table) == 0


async def test_a_look_changes_nothing(stage: Any) -> None:
    broker = await stored(stage)
    before = broker.catalog.topics.get("t")
    topic, remains = look(broker.kernel, "t", membership=broker.membership, schedules=broker.schedules.table)
    assert (topic, broker.catalog.topics.get("t")) == (before, before)
    assert (remains.unread, remains.stored, remains.gone) == (3, 3, False)
    with pytest.raises(TopicNotFound):
        look(broker.kernel, "u", membership=broker.membership, schedules=broker.schedules.table)


async def test_a_group_has_to_read_it_first(stage: Any) -> None:
    broker = await stored(stage)
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    topic = broker.catalog.topics.get("t")
    place = (group.group_id, topic.topic_id, 1)
    broker.ledger.progress.commit(*place, 0)
    remains = await step(stage, broker, close_unread=True)
    assert [(one.group, one.lag) for one in remains.unfinished] == [("g", 3)]
    assert not remains.gone
    broker.ledger.progress.commit(*place, 3)
    assert (await step(stage, broker)).gone


async def test_force_ends_it_in_any_case(stage: Any) -> None:
    broker = await stored(stage)
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    broker.ledger.progress.commit(group.group_id, broker.catalog.topics.get("t").topic_id, 1, 0)
    remains = await step(stage, broker, force=True)
    assert (remains.gone, remains.stored) == (True, 3)


@pytest.mark.parametrize(
    ("kind", "keeps"), [(MessageType.MIXED, True), (MessageType.DELAY, True), (MessageType.FIFO, False)]
)
async def test_timers_of_the_broker_keep_a_topic_that_may_have_some(stage: Any, kind: MessageType, keeps: bool) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", message_type=kind))
    other = await stage.during(broker.catalog.create_topic("u", message_type=MessageType.DELAY))
    due_ms = broker.runtime.now_ms() + 3_600_000
    timer = TimerAppend(other.topic_id, 0, 0, due_ms=due_ms, kind=1, born_ms=0, head=b"", system=b"")
    await stage.during(broker.ledger.store.append([], timers=[timer]))
    remains = await step(stage, broker)
    assert (remains.gone, remains.delayed) == (not keeps, int(keeps))


async def test_only_a_topic_that_is_here_and_of_users_leaves(stage: Any) -> None:
    broker = await stage.broker()
    with pytest.raises(TopicNotFound):
        await step(stage, broker)
    with pytest.raises(IllegalTopic):
        await stage.during(
            leave(
                broker.kernel,
                "%RETRY%g",
                close_unread=False,
                force=False,
                membership=broker.membership,
                schedules=broker.schedules.table,
            )
        )
