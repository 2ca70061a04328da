"""Dead letters over all brokers: listed newest first, replayed once, by filter, rate and number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.dead_letters.letter import replay_group
from evenq_broker.rpc.dead_letters import dead_letters

from evenq.errors import BadRequest, Error, Forbidden, GroupNotFound
from evenq.model import MessageType
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as pb

SERVICE = "/evenq.v1.DeadLetters/"


async def died(stage: Any, count: int, *, broker: str = "a", fifo: bool = False, body: bytes = b"poison") -> Any:
    """A broker whose group `g` forwarded `count` messages of topic `t` to its dead letters."""
    made = await stage.broker(broker, default_start_from="FIRST", default_queues=1)
    kind = MessageType.FIFO if fifo else MessageType.NORMAL
    topic = await stage.during(made.catalog.create_topic("t", queues=1, message_type=kind))
    group = await stage.during(made.catalog.create_group("g"))
    send = service_pb2.SendMessageRequest()
    for number in range(count):
        message = send.messages.add(body=body)
        message.topic.name = "t"
        message.user_properties["number"] = str(number)
        message.system_properties.message_id = f"{broker}{number}"
        message.system_properties.tag = "odd" if number % 2 else "even"
        if fifo:
            message.system_properties.message_group = "lane"
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse, broker=broker)
    made.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
    queue = made.ledger.progress.queue(group.group_id, topic.topic_id, 0)
    for number in range(count):
        made.ledger.progress.deliver(queue, [number], number + 1, deadline_ms=10**15, client_id="")
        forward = service_pb2.ForwardMessageToDeadLetterQueueRequest()
        forward.group.name, forward.topic.name = "g", "t"
        forward.receipt_handle = made.ledger.handles.make(group.group_id, topic.topic_id, 0, number, 1, 10**15)
        response = service_pb2.ForwardMessageToDeadLetterQueueResponse
        answer = await stage.ask("ForwardMessageToDeadLetterQueue", forward, response, broker=broker)
        assert answer.status.code == 20000
    return made


async def listed(stage: Any, **fields: Any) -> Any:
    request = pb.ListDeadLettersRequest(group="g", **fields)
    return await stage.call(SERVICE + "List", request, pb.ListDeadLettersResponse)


async def test_a_list_is_bounded_by_bytes_and_always_has_one_letter(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BYTES_MAX", 10_000)
    await died(stage, 5, body=b"x" * 4_000)
    assert [one.message_id for one in (await listed(stage, bodies=True)).letters] == ["a4", "a3"]
    assert len((await listed(stage)).letters) == 5
    monkeypatch.setattr(dead_letters, "BYTES_MAX", 1)
    assert [one.message_id for one in (await listed(stage, bodies=True)).letters] == ["a4"]


async def frames(stage: Any, **fields: Any) -> list[Any]:
    request = pb.ReplayDeadLettersRequest(group="g", **fields)
    stream = stage.net.stream("a:8081", SERVICE + "Replay", request.SerializeToString(), timeout_ms=None)
    return [pb.ReplayProgress.FromString(frame) async for frame in stream]


async def replay(stage: Any, **fields: Any) -> list[Any]:
    found: list[Any] = await stage.during(frames(stage, **fields))
    return found


async def arrived(broker: Any, topic: str = "t", start: int = 0) -> list[tuple[Any, Any]]:
    number = broker.catalog.topics.get(topic).topic_id
    low, high = broker.ledger.store.queue_range(number, 0)
    found = await broker.ledger.store.read_at(number, 0, list(range(max(low, start), high)))
    return [
        (definition_pb2.Message.FromString(one.head), definition_pb2.SystemProperties.FromString(one.system))
        for one in found
    ]


async def test_letters_tell_where_and_why_they_died(stage: Any) -> None:
    await died(stage, 3)
    answer = await listed(stage, max=2, bodies=True)
    assert [one.message_id for one in answer.letters] == ["a2", "a1"]
    [count] = answer.counts
    assert (count.group, count.broker_name, count.stored, count.waiting) == ("g", "a", 3, 3)
    letter = answer.letters[0]
    assert (letter.origin.topic, letter.origin.broker_name, letter.origin.queue_id) == ("t", "a", 0)
    assert (letter.origin_offset, letter.attempts, letter.reason, letter.body) == (2, 1, "forwarded", b"poison")
    assert letter.properties["number"] == "2"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == "t"
    assert [one.message_id for one in (await listed(stage, message_id="a0")).letters] == ["a0"]
    everybody = await stage.call(SERVICE + "List", pb.ListDeadLettersRequest(), pb.ListDeadLettersResponse)
    assert [(one.group, one.stored) for one in everybody.counts] == [("g", 3)]


async def test_of_two_replays_that_begin_together_one_is_refused(stage: Any) -> None:
    broker = await died(stage, 3)
    begun = (frames(stage, to_topic="fresh") for _ in range(2))
    response = [frame for found in await stage.during(asyncio.gather(*begun)) for frame in found]
    assert sum("being replayed" in frame.status.message for frame in response) == 1
    assert len(await arrived(broker, "fresh")) == 3, "each once"


async def test_each_letter_is_replayed_once_and_looks_as_it_did(stage: Any) -> None:
    broker = await died(stage, 3, fifo=True)
    [*_, last] = await replay(stage)
    assert (last.replayed, last.failed, last.done) == (3, 0, True)
    again = await arrived(broker, start=3)
    assert [head.user_properties["number"] for head, _ in again] == ["0", "1", "2"], "in the order of their death"
    for head, system in again:
        assert list(head.user_properties) == ["number"]
        assert head.topic.name == "t"
        assert (system.message_group, system.message_type) == ("lane", definition_pb2.FIFO)
        assert not system.HasField("dead_letter_queue")
    [*_, last] = await replay(stage)
    assert (last.replayed, last.total) == (0, 0)
    answer = await listed(stage)
    assert all(one.replayed for one in answer.letters)
    assert answer.counts[0].waiting == 0
    assert not (await listed(stage, waiting=True)).letters
    broker.ledger.progress.check()


async def test_what_a_filter_leaves_out_waits_for_another_replay(stage: Any) -> None:
    broker = await died(stage, 4)
    [*_, last] = await replay(stage, filter=common_pb2.Filter(expression="odd"))
    assert (last.replayed, last.left_out) == (2, 2)
    sql = common_pb2.Filter(type=common_pb2.Filter.SQL, expression="number = '0' AND DLQ_REASON = 'forwarded'")
    [*_, last] = await replay(stage, filter=sql, to_topic="elsewhere")
    assert (last.replayed, last.left_out) == (1, 1)
    [(head, _)] = await arrived(broker, "elsewhere")
    assert head.user_properties["number"] == "0"
    assert [one.message_id for one in (await listed(stage, waiting=True)).letters] == ["a2"]


async def test_a_rate_and_a_number_are_kept(stage: Any) -> None:
    await died(stage, 8)
    began_ms = stage.clock.monotonic_ms()
    [*_, last] = await replay(stage, per_second=10, max=5)
    assert last.replayed == 5
    assert 400 <= stage.clock.monotonic_ms() - began_ms <= 700
    assert (await listed(stage)).counts[0].waiting == 3


async def test_a_letter_that_cannot_be_sent_waits_on_and_is_counted(stage: Any) -> None:
    broker = await died(stage, 2)
    await stage.during(broker.catalog.delete_topic("t"))
    ensure = broker.cluster_catalog.ensure_topic

    async def refuse(name: str, **options: Any) -> Any:
        if name == "t":
            raise BadRequest("no such topic")
        return await ensure(name, **options)

    broker.cluster_catalog.ensure_topic = refuse
    [*_, last] = await replay(stage)
    assert (last.replayed, last.failed, last.error) == (0, 2, "no such topic")
    assert (await listed(stage)).counts[0].waiting == 2


async def test_any_broker_replays_for_the_whole_cluster(stage: Any) -> None:
    a, b = await died(stage, 1), await died(stage, 2, broker="b")
    views = [RegisteredBroker(name=one.runtime.settings.broker_name, addresses=one.runtime.addresses) for one in (a, b)]
    for one in (a, b):
        one.catalog.routes.snapshot("n", "n", views, 0)
    answer = await listed(stage)
    assert [(count.broker_name, count.stored) for count in answer.counts] == [("a", 1), ("b", 2)]
    assert len(answer.letters) == 3
    done = [one for one in await replay(stage, max=2) if one.done]
    assert [(one.broker_name, one.replayed) for one in done] == [("a", 1), ("b", 1)]
    assert sum(count.waiting for count in (await listed(stage)).counts) == 1


async def test_what_was_replayed_survives_a_restart(stage: Any) -> None:
    from evenq_broker.core.delivery.progress import Progress
    from evenq_broker.core.state.records import decode

    broker = await died(stage, 3)
    await replay(stage, filter=common_pb2.Filter(expression="even"))
    copy = Progress()
    for op in decode(broker.ledger._state()):
        if op.__class__.__name__ in {"Acked", "Committed", "Delivered", "Invisible"}:
            copy.apply(op)  # type: ignore[arg-type]  # checked above
    keeper, topic = broker.catalog.groups.get(replay_group("g")), broker.catalog.topics.get("%DLQ%g")
    queue = copy.queue(keeper.group_id, topic.topic_id, 0)
    assert queue is not None
    assert (set(queue.pending), queue.next) == ({1}, 3)


async def test_only_one_replay_of_a_group_runs(stage: Any) -> None:
    await died(stage, 3)
    slow = asyncio.ensure_future(frames(stage, per_second=1))
    await stage.clock.advance(100)
    [refused] = await replay(stage)
    assert "being replayed" in refused.status.message
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    [*_, last] = await replay(stage)
    assert (last.done, last.replayed) == (True, 2)


@pytest.mark.parametrize("fields", [{"per_second": -1.0}, {"per_second": float("nan")}, {"max": -1}])
async def test_numbers_that_make_no_sense_are_refused(stage: Any, fields: dict[str, Any]) -> None:
    await stage.broker()
    [only] = await replay(stage, **fields)
    assert only.status.code == definition_pb2.BAD_REQUEST
    with pytest.raises(Error):
        await listed(stage, max=-1)


async def test_bodies_of_letters_are_for_those_who_may_consume_with_the_group(stage: Any) -> None:
    """A copy in a topic of the caller's own would be a body, too."""
    broker = await died(stage, 2)
    await stage.during(broker.catalog.create_topic("mine", queues=1))
    asked = pb.ListDeadLettersRequest(group="g", bodies=True)
    for local in (False, True):
        asked.local = local
        with pytest.raises(Forbidden, match="consume with group g; omit them"):
            await stage.as_user("group:g describe", SERVICE + "List", asked, pb.ListDeadLettersResponse)
        response = await stage.as_user("group:g consume", SERVICE + "List", asked, pb.ListDeadLettersResponse)
        assert [one.body for one in response.letters] == [b"poison"] * 2
    asked.bodies = False
    response = await stage.as_user("group:g describe", SERVICE + "List", asked, pb.ListDeadLettersResponse)
    assert [(one.body, one.body_bytes) for one in response.letters] == [(b"", 6)] * 2
    copy = pb.ReplayDeadLettersRequest(group="g", to_topic="mine")
    with pytest.raises(Forbidden, match="replay to the original topics"):
        await stage.as_user("group:g operate; topic:mine publish", SERVICE + "Replay", copy, pb.ReplayProgress)
    assert await arrived(broker, "mine") == []
    grants = "group:g operate,consume; topic:mine publish"
    assert (await stage.as_user(grants, SERVICE + "Replay", copy, pb.ReplayProgress))[-1].replayed == 2
    back = pb.ReplayDeadLettersRequest(group="g")
    assert (await stage.as_user("group:g operate", SERVICE + "Replay", back, pb.ReplayProgress))[-1].done


async def test_a_plan_says_how_many_would_go_where_and_sends_none(stage: Any) -> None:
    broker = await died(stage, 4)
    odd = common_pb2.Filter(expression="odd")
    for _ in range(2):
        [plan] = await replay(stage, dry_run=True, filter=odd)
        assert (dict(plan.would), plan.total, plan.left_out, plan.replayed) == ({"t": 2}, 4, 2, 0)
    [plan] = await replay(stage, dry_run=True, to_topic="elsewhere", max=3)
    assert dict(plan.would) == {"elsewhere": 3}
    assert broker.catalog.topics.get("elsewhere") is None, "a plan makes no topic"
    assert broker.catalog.groups.get(replay_group("g")) is None, "nor notes anything"
    [*_, last] = await replay(stage, filter=odd)
    assert last.replayed == 2
    [plan] = await replay(stage, dry_run=True)
    assert (dict(plan.would), plan.total) == ({"t": 2}, 2), "what was replayed is not sent again"


async def test_a_group_that_nobody_knows_is_an_error_and_one_without_letters_is_not(stage: Any) -> None:
    broker = await died(stage, 1)
    unknown = pb.ListDeadLettersRequest(group="biling")
    with pytest.raises(GroupNotFound, match="biling"):
        await stage.call(SERVICE + "List", unknown, pb.ListDeadLettersResponse)
    for dry_run in (True, False):
        request = pb.ReplayDeadLettersRequest(group="biling", dry_run=dry_run).SerializeToString()
        stream = stage.net.stream("a:8081", SERVICE + "Replay", request, timeout_ms=None)
        with pytest.raises(GroupNotFound, match="biling"):
            await stage.during(ended(stream))
    await stage.during(broker.catalog.create_group("well"))
    known = pb.ListDeadLettersRequest(group="well")
    assert not (await stage.call(SERVICE + "List", known, pb.ListDeadLettersResponse)).letters
    await stage.during(broker.catalog.delete_group("g"))
    assert (await listed(stage)).counts[0].stored == 1, "a deleted group's letters are still there"


async def ended(stream: Any) -> None:
    async for frame in stream:
        check(pb.ReplayProgress.FromString(frame).status)
