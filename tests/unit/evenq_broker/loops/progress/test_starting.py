"""Where a group begins, and whether anything waits for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.cluster.known_brokers import Away
from evenq_broker.core.cluster.routes import AWAY_MS, RegisteredBroker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Unsubscribed
from evenq_broker.loops.progress.starting import AS_CONFIGURED

from evenq.errors import ConnectionFailed, RequestTimeout, TopicNotFound
from evenq.model import (
    BrokerAddress,
    FilterExpression,
    MessageType,
    Permission,
    QueueCounts,
    StartFrom,
    StartPolicy,
    Subscription,
)
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2


async def scene(stage: Any, start: StartFrom, *, name: str = "t") -> tuple[Any, Any, Any]:
    """A broker with a group that begins there, and a topic of one queue with three messages."""
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g", start_from=start))
    topic = await stage.during(broker.catalog.create_topic(name, queues=1, system=name.startswith("%")))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"") for _ in range(3)]))
    return broker, group, topic


async def began(stage: Any, broker: Any, group: Any, topic: Any, policy: StartPolicy = AS_CONFIGURED) -> list[int]:
    await stage.during(broker.starts.begin(group, topic, policy))
    queues = (broker.ledger.progress.queue(group.group_id, topic.topic_id, at) for at in range(topic.read_queues))
    return [queue.next for queue in queues]


@pytest.mark.parametrize(
    ("start", "name", "from_start", "offset"),
    [
        (StartFrom.FIRST, "t", False, 0),
        (StartFrom.LAST, "t", False, 3),
        (StartFrom.LAST, "t", True, 0),
        (StartFrom.LAST, "%DLQ%x", False, 0),
    ],
)
async def test_a_group_begins_where_it_is_configured_to_but_never_behind_dead_letters(
    stage: Any, start: StartFrom, name: str, from_start: bool, offset: int
) -> None:
    broker, group, topic = await scene(stage, start, name=name)
    if from_start:
        broker.starts.begin_at_first(group, topic)
    assert await began(stage, broker, group, topic) == [offset]
    assert await began(stage, broker, group, topic, StartPolicy(StartFrom.LAST)) == [offset], "it has begun"


async def test_a_queue_that_came_later_is_read_whole(stage: Any) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)
    assert await began(stage, broker, group, topic) == [3]
    wider = await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 1, 0, 1, b"", b"")]))
    assert await began(stage, broker, group, wider) == [3, 0]


@pytest.mark.parametrize(
    ("policy", "offset"),
    [
        (StartPolicy(StartFrom.FIRST), 0),
        (StartPolicy(StartFrom.LAST), 3),
        (StartPolicy(StartFrom.LAST, young_from_first=True), 0),
        (StartPolicy(StartFrom.TIMESTAMP), 0),
        (StartPolicy(StartFrom.TIMESTAMP, 10**15), 3),
    ],
)
async def test_rb_42_the_policy_of_a_member_counts_before_that_of_its_group(
    stage: Any, policy: Any, offset: int
) -> None:
    broker, group, topic = await scene(stage, StartFrom.FIRST if offset else StartFrom.LAST)
    assert await began(stage, broker, group, topic, policy) == [offset]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_group_that_read_a_deleted_topic_reads_the_new_one_whole(stage: Any, restarts: bool) -> None:
    """All that is in it came after the group, which may have been offline meanwhile; also after a restart of the
    broker from a snapshot. A group that never read the old one begins by its policy.
    """
    broker, group, topic = await scene(stage, StartFrom.LAST)
    assert await began(stage, broker, group, topic) == [3]
    await stage.during(broker.catalog.create_group("other", start_from=StartFrom.LAST))
    await stage.during(broker.catalog.delete_topic("t"))
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"")]))
    if restarts:
        state = broker.ledger._state()
        broker.catalog._awaited.clear()
        broker.ledger.replay(state)
    assert broker.starts.deliverable(group, topic)
    assert broker.starts.begun_ms(group, topic) == -1
    assert await began(stage, broker, group, topic) == [0]
    assert broker.starts.begun_ms(group, topic) == -1, "another broker must not count from this moment"
    assert await began(stage, broker, broker.catalog.groups.get("other"), topic) == [1]


async def test_a_group_that_gave_the_topic_up_or_was_deleted_awaits_nothing(stage: Any) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)
    await began(stage, broker, group, topic)
    await stage.during(broker.catalog.delete_topic("t"))
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    assert broker.catalog.awaits(group, "t")
    broker.catalog.unsubscribed(Unsubscribed(group.group_id, topic.topic_id))
    assert not broker.catalog.awaits(group, "t")
    await began(stage, broker, group, topic)
    await stage.during(broker.catalog.delete_topic("t"))
    assert broker.catalog.awaits(group, "t")
    await stage.during(broker.catalog.delete_group("g"))
    assert not broker.catalog._awaited


async def test_a_broker_that_does_not_know_the_cluster_yet_begins_nothing(stage: Any) -> None:
    """It would ask nobody whether the group has begun elsewhere, and leave out what came since."""
    broker, group, topic = await scene(stage, StartFrom.LAST)
    known = asyncio.Event()
    broker.cluster.facts_settled = known.wait
    begin = asyncio.ensure_future(broker.starts.begin(group, topic, AS_CONFIGURED))
    await stage.clock.advance(60_000)
    assert not begin.done()
    assert broker.ledger.progress.queue(group.group_id, topic.topic_id, 0) is None
    known.set()
    await stage.during(begin)
    assert broker.ledger.progress.queue(group.group_id, topic.topic_id, 0).next == 3


AWAY = ConnectionFailed("it is away")
SLOW = RequestTimeout("it hangs")
REFUSED = TopicNotFound("the topic is not there any more")


class Elsewhere:
    """Another broker with the topic, and what it says of the group."""

    def __init__(self, broker: Any, answer: Any) -> None:
        self.answer, self.asked = answer, 0
        there = SimpleNamespace(broker=SimpleNamespace(name="other"))
        broker.catalog.routes.route = lambda _topic: [there]
        broker.cluster.peers.ask = self.ask

    async def ask(self, _name: str, _method: str, request: bytes, **_: Any) -> bytes:
        question = data_pb2.QueryOffsetsRequest.FromString(request)
        assert (question.group, question.topic) == ("g", "t")
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        status = definition_pb2.Status(code=definition_pb2.OK)
        return data_pb2.QueryOffsetsResponse(status=status, begun_ms=self.answer).SerializeToString()


@pytest.mark.parametrize(
    ("answer", "told_ms", "offset"),
    [
        (0, 0, 3), (-1, 0, 0), (1_500, 0, 1), (10**9, 0, 0), (REFUSED, 0, 3),
        (REFUSED, 1_500, 1), (REFUSED, -1, 0), (REFUSED, 10**18, 0), (0, 1_500, 1), (1_500, -1, 1), (1_500, 10, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("start", [StartFrom.LAST, StartFrom.TIMESTAMP])
async def test_a_group_that_has_begun_at_another_broker_begins_with_what_came_since(
    stage: Any, answer: Any, told_ms: int, offset: int, start: StartFrom
) -> None:
    """This broker joined later, or was away. The answer of an old broker is 0; -1: since when is not known. Where no
    broker says that the group has begun, what the member saw of it counts (`told_ms`).
    """
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.LAST))
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    for _ in range(3):  # 2 s, 1 s and no time before the start
        await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"")]))
        await stage.clock.advance(1_000 if _ < 2 else 0)
    other = Elsewhere(broker, answer)
    policy = StartPolicy(start, 10**15, begun_ms=told_ms)
    assert await began(stage, broker, group, topic, policy) == [offset]
    assert await began(stage, broker, group, topic, policy) == [offset]
    assert other.asked == 1, "once for a group and topic"
    assert broker.starts.begun_ms(group, topic) >= 1


@pytest.mark.parametrize("answer", [AWAY, SLOW])
@pytest.mark.parametrize("told_ms", [0, 1_500])
@pytest.mark.parametrize(("age_ms", "offset"), [(AWAY_MS - 60_000, 0), (AWAY_MS + 1, None)])
async def test_a_broker_that_does_not_answer_may_know_the_group_so_a_young_queue_is_read_whole(
    stage: Any, answer: Exception, told_ms: int, age_ms: int, offset: int | None
) -> None:
    """A queue with older messages is read by the policy: the group would have begun here while both brokers were there."""
    broker, group, topic = await scene(stage, StartFrom.LAST)
    await stage.clock.advance(age_ms)
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"")]))
    Elsewhere(broker, answer)
    by_policy = 3 if told_ms else 4
    policy = StartPolicy(begun_ms=told_ms)
    assert await began(stage, broker, group, topic, policy) == [by_policy if offset is None else offset]


async def test_a_queue_that_lost_its_first_messages_is_not_young(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)
    Elsewhere(broker, AWAY)
    monkeypatch.setattr(broker.ledger.store, "queue_range", lambda *_: (1, 3))
    assert await began(stage, broker, group, topic) == [3]


def gone(broker: Any, *, ago_ms: int, topic: str = "t") -> None:
    """Lets a nameserver report a broker that left."""
    counts = QueueCounts(
        broker_name="other", read_queues=1, write_queues=1, permission=Permission.READ, message_type=MessageType.NORMAL
    )
    view = RegisteredBroker(name="other", addresses=(BrokerAddress("default", "h", 1),), topics={topic: counts})
    own, now_ms = broker.cluster.own.now(), broker.runtime.clock.monotonic_ms()
    broker.catalog.routes.snapshot("ns:1", "n", [own], now_ms, left=[(view, ago_ms)])


@pytest.mark.parametrize(
    ("ago_ms", "topic", "offset"), [(0, "t", 0), (AWAY_MS - 1, "t", 0), (AWAY_MS, "t", 3), (0, "another", 3)]
)
async def test_a_broker_that_left_before_this_one_joined_may_know_the_group(
    stage: Any, ago_ms: int, topic: str, offset: int
) -> None:
    """It cannot be reached any more."""
    broker, group, there = await scene(stage, StartFrom.LAST)
    gone(broker, ago_ms=ago_ms, topic=topic)
    assert await began(stage, broker, group, there) == [offset]


@pytest.mark.parametrize(("ago_ms", "offset"), [(0, 3), (-1, 0)])
async def test_a_broker_that_left_the_routes_and_still_answers_is_asked(stage: Any, ago_ms: int, offset: int) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)
    gone(broker, ago_ms=5_000)
    calls = []

    async def unary(address: str, method: str, *_: Any, **__: Any) -> bytes:
        calls.append((address, method))
        status = definition_pb2.Status(code=definition_pb2.OK)
        return data_pb2.QueryOffsetsResponse(status=status, begun_ms=ago_ms).SerializeToString()

    broker.runtime.net.unary = unary
    assert await began(stage, broker, group, topic) == [offset]
    assert calls == [("h:1", "/evenq.v1.Data/QueryOffsets")]


@pytest.mark.parametrize(("gone_ms_ago", "offset"), [(None, 0), (AWAY_MS - 1, 0), (AWAY_MS, 3)])
async def test_a_broker_that_only_this_one_remembers_may_know_the_group(
    stage: Any, gone_ms_ago: int | None, offset: int
) -> None:
    """The nameservers restarted, too."""
    broker, group, topic = await scene(stage, StartFrom.LAST)
    since_ms = 0 if gone_ms_ago is None else broker.runtime.clock.now_ms() - gone_ms_ago
    broker.cluster.known.away = lambda topic: [Away("other", 1, since_ms)] if topic == "t" else []
    assert await began(stage, broker, group, topic) == [offset]


async def test_a_time_before_another_brokers_start_counts_there_too(stage: Any) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)
    await stage.clock.advance(5_000)
    Elsewhere(broker, 1_000)
    assert await began(stage, broker, group, topic, StartPolicy(StartFrom.TIMESTAMP, 1)) == [0]


@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_a_start_that_waited_for_others_begins_nothing_of_what_is_gone_meanwhile(stage: Any, gone: str) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)

    async def deleted() -> None:
        catalog = broker.catalog
        await (catalog.delete_topic("t") if gone == "topic" else catalog.delete_group("g"))

    broker.cluster.facts_settled = deleted
    await stage.during(broker.starts.begin(group, topic))
    assert list(broker.ledger.progress.queues()) == []


async def test_who_waited_before_the_topic_was_made_misses_nothing(stage: Any) -> None:
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.LAST))
    wanted = (Subscription("t", FilterExpression("*")),)
    early = Member(client_id="c", protocol=Protocol.V2, subscriptions=wanted, joined_ms=broker.runtime.clock.now_ms())
    broker.membership.members.join("g", early, now_ms=0, lease_ms=10**6)
    await stage.clock.advance(10)
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 1, b"", b"")]))
    assert broker.starts.deliverable(group, topic)
    assert await began(stage, broker, group, topic) == [0]


async def test_something_waits_while_it_is_unread_or_comes_again_and_not_while_it_is_out(stage: Any) -> None:
    broker, group, topic = await scene(stage, StartFrom.LAST)

    def waits() -> bool:
        return broker.starts.deliverable(group, topic)

    assert not waits(), "it would begin at the end"
    broker.starts.begin_at_first(group, topic)
    assert waits()
    progress = broker.ledger.progress
    queue = progress.queue(group.group_id, topic.topic_id, 0)
    progress.deliver(queue, [0, 1, 2], 3, deadline_ms=10**15, client_id="c")
    assert not waits(), "all are out"
    progress.give_back(queue, 1, queue.pending[1].number)
    assert waits()
