"""ResetOffsets: plans, moves, what live readers see, several brokers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.delivery.counts import FINISHED
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Committed, decode
from evenq_broker.loops.progress.counting import deliveries_of
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import ack_request, receive_request

from evenq.errors import BadRequest, GroupNotFound, PreconditionFailed, TopicNotFound
from evenq.model import MessageQueue
from evenq.model.session_events import OffsetsReset
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

OK = definition_pb2.Status(code=definition_pb2.OK)
METHOD = "/evenq.v1.Admin/ResetOffsets"


async def filled(stage: Any, *, queues: int = 1, count: int = 5, **settings: Any) -> Any:
    broker = await stage.broker(default_start_from="FIRST", **settings)
    topic = await stage.during(broker.catalog.create_topic("t", queues=queues))
    await stage.during(broker.catalog.create_group("g"))
    for _ in range(count):
        for queue_id in range(queues):
            await stage.during(broker.ledger.store.append([Append(topic.topic_id, queue_id, 0, 0, b"", b"")]))
        await stage.clock.advance(1_000)
    return broker


async def reset(stage: Any, broker: str = "a", **result: Any) -> list[Any]:
    request = admin_pb2.ResetOffsetsRequest(**{"group": "g", "topic": "t", **result})
    answer = await stage.call(METHOD, request, admin_pb2.ResetOffsetsResponse, broker)
    return list(answer.moves)


async def receive(stage: Any, count: int = 32, *, poll_ms: int = 0, auto_renew: bool = False) -> list[Any]:
    request = receive_request(
        "g", "t", queue=-1, poll_ms=poll_ms, invisible_ms=600_000, batch_size=count, auto_renew=auto_renew
    )
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
    return [frame.message.system_properties for frame in frames if frame.HasField("message")]


async def test_a_dry_run_plans_and_changes_nothing(stage: Any) -> None:
    broker = await filled(stage)
    got = await receive(stage, 2)
    assert [system.queue_offset for system in got] == [0, 1]
    [move] = await reset(stage, to=admin_pb2.LATEST, dry_run=True)
    assert (move.before, move.after, move.inflight, move.error, move.note) == (0, 5, 2, "", "")
    assert (move.min_offset, move.max_offset) == (0, 5)
    assert broker.ledger.progress.committed(1, 1, 0) == 0
    assert broker.ledger.progress.inflight(1, 1, 0) == 2


@pytest.mark.parametrize(
    ("to", "value", "after", "note"),
    [
        (admin_pb2.EARLIEST, 0, 0, ""),
        (admin_pb2.LATEST, 0, 5, ""),
        (admin_pb2.OFFSET, 3, 3, ""),
        (admin_pb2.OFFSET, 9, 5, "not there yet"),
        (admin_pb2.SKIP, 2, 4, ""),
        (admin_pb2.SKIP, 99, 5, "not there yet"),
    ],
)
async def test_each_target_is_found(stage: Any, to: Any, value: int, after: int, note: str) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    [move] = await reset(stage, to=to, value=value)
    assert (move.before, move.after) == (2, after)
    assert note in move.note
    assert broker.ledger.progress.committed(1, 1, 0) == after


async def test_a_time_is_the_first_message_stored_then_or_later(stage: Any) -> None:
    broker = await filled(stage)
    at_ms = stage.clock.now_ms() - 3_000
    [move] = await reset(stage, to=admin_pb2.TIMESTAMP, value=at_ms)
    assert 1 <= move.after <= 3
    first, *_ = await stage.during(broker.ledger.store.read_at(1, 0, [move.after]))
    assert first.store_ms >= at_ms


@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_a_reset_moves_nothing_that_is_deleted_while_it_looks_for_the_time(stage: Any, gone: str) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    catalog, calls = broker.catalog, 0

    async def offset_at(*_: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first one is of the plan
            await (catalog.delete_topic("t") if gone == "topic" else catalog.delete_group("g"))
        return 1

    broker.ledger.store.offset_at = offset_at
    [move] = await reset(stage, to=admin_pb2.TIMESTAMP, value=stage.clock.now_ms())
    assert list(broker.ledger.progress.queues()) == []
    assert move.error == f"{gone} {'t' if gone == 'topic' else 'g'} was deleted meanwhile"


async def test_a_reset_is_delivered_to_pollers_at_once_and_old_handles_are_over(stage: Any) -> None:
    broker = await filled(stage)
    got = await receive(stage)
    assert len(got) == 5
    waiting = asyncio.ensure_future(receive(stage, poll_ms=20_000))
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    started = stage.clock.monotonic_ms()
    await reset(stage, to=admin_pb2.OFFSET, value=3)
    again = await stage.during(waiting)
    assert [system.queue_offset for system in again] == [3, 4]
    assert stage.clock.monotonic_ms() - started < 1_000
    request = ack_request("g", "t")
    request.entries.add(message_id="m", receipt_handle=got[0].receipt_handle)
    request.entries.add(message_id="m", receipt_handle=got[3].receipt_handle)
    response = await stage.ask("AckMessage", request, service_pb2.AckMessageResponse)
    assert [entry.status.code for entry in response.entries] == [20000, 40013], (
        "finished before; of a forgotten delivery"
    )
    assert broker.ledger.progress.committed(1, 1, 0) == 3
    request.entries.pop()
    request.entries[0].receipt_handle = again[0].receipt_handle
    await stage.ask("AckMessage", request, service_pb2.AckMessageResponse)
    assert broker.ledger.progress.committed(1, 1, 0) == 4


async def test_a_reset_is_in_the_journal(stage: Any) -> None:
    broker = await filled(stage)
    await receive(stage)
    await reset(stage, to=admin_pb2.OFFSET, value=1)
    assert [op.offset for op in decode(broker.ledger._state()) if isinstance(op, Committed)] == [1]


async def test_a_reset_stands_after_a_restart_also_if_it_went_back(stage: Any, tmp_path: Path) -> None:
    """Journalled as a reset: a commit of a smaller offset would be left out at the replay, and what was in flight
    would be there again.
    """
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await filled(stage, store=store)
    await receive(stage, 3)
    assert broker.ledger.progress.commit(1, 1, 0, 4)
    await stage.during(broker.ledger.journal.record(Committed(1, 1, 0, 4)))
    await reset(stage, to=admin_pb2.OFFSET, value=1)
    broker.ledger.journal._unsaved = False  # no last snapshot: the log alone has it
    await stage.during(broker.close())
    stage.brokers.clear()
    again = await stage.broker(store=store)
    assert again.ledger.progress.committed(1, 1, 0) == 1
    assert again.ledger.progress.inflight(1, 1, 0) == 0
    assert [system.queue_offset for system in await receive(stage)] == [1, 2, 3, 4]


async def test_an_owner_is_told_and_its_commits_do_not_count_before_it_begins_again(stage: Any) -> None:
    broker = await filled(stage)
    member = Member(client_id="one", protocol=Protocol.EVENQ)
    session = broker.sessions.join("g", member)
    queue = MessageQueue("t", "a", 0)
    await stage.during(broker.sessions.locking.lock("g", "one", [queue], wait_ms=0))
    broker.ledger.progress.commit(1, 1, 0, 4)
    [move] = await reset(stage, to=admin_pb2.EARLIEST)
    assert (move.owner, "starts there" in move.note) == ("one", True)
    mail = await stage.during(session.take(broker.sessions))
    assert OffsetsReset((queue,)) in mail
    wire = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)

    async def pull(offset: int, committed: int) -> None:
        request = data_pb2.PullRequest(group="g", client_id="one", queue=wire, offset=offset, committed=committed)
        await stage.during(
            stage.net.unary("a:8081", "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=9_000)
        )

    await pull(5, 5)  # does not know yet
    commit = data_pb2.CommitOffsetsRequest(group="g", client_id="one")
    commit.offsets.add(queue=wire, offset=5)
    await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    assert broker.ledger.progress.committed(1, 1, 0) == 0
    failed = data_pb2.CountDeliveriesRequest(group="g", client_id="one", queue=wire, given_until=5)
    failed.counts.add(offset=3, finished=True)
    failed.counts.add(offset=4, deliveries=3)
    await stage.call("/evenq.v1.Data/CountDeliveries", failed, data_pb2.CountDeliveriesResponse)
    assert deliveries_of(broker.kernel, "g", queue) == (0, []), "of deliveries before the reset"
    again = broker.sessions.join("g", member)
    assert OffsetsReset((queue,)) in await stage.during(again.take(broker.sessions)), "the news was lost with a stream"
    await pull(0, 0)
    await pull(2, 2)
    assert broker.ledger.progress.committed(1, 1, 0) == 2
    await stage.call("/evenq.v1.Data/CountDeliveries", failed, data_pb2.CountDeliveriesResponse)
    assert deliveries_of(broker.kernel, "g", queue) == (5, [(3, FINISHED), (4, 3)])


async def test_a_topic_that_is_made_again_has_no_reset_to_wait_for(stage: Any) -> None:
    broker = await filled(stage)
    broker.sessions.join("g", Member(client_id="one", protocol=Protocol.EVENQ))
    queue = MessageQueue("t", "a", 0)
    await stage.during(broker.sessions.locking.lock("g", "one", [queue], wait_ms=0))
    broker.ledger.progress.commit(1, 1, 0, 4)
    await reset(stage, to=admin_pb2.OFFSET, value=2)
    await stage.during(broker.catalog.delete_topic("t"))
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 0, b"", b"")]))
    await stage.during(broker.sessions.locking.lock("g", "one", [queue], wait_ms=0))
    commit = data_pb2.CommitOffsetsRequest(group="g", client_id="one")
    commit.offsets.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=0), offset=1)
    await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    assert broker.ledger.progress.committed(1, topic.topic_id, 0) == 1


async def test_a_message_that_is_sent_back_before_its_owner_begins_again_is_not_finished(stage: Any) -> None:
    broker = await filled(stage)
    broker.sessions.join("g", Member(client_id="one", protocol=Protocol.EVENQ))
    queue = MessageQueue("t", "a", 0)
    await stage.during(broker.sessions.locking.lock("g", "one", [queue], wait_ms=0))
    broker.ledger.progress.commit(1, 1, 0, 4)
    await reset(stage, to=admin_pb2.EARLIEST)
    wire = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    request = data_pb2.SendBackRequest(group="g", queue=wire, queue_offset=3, attempts=1)
    await stage.call("/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)
    assert deliveries_of(broker.kernel, "g", queue) == (0, [])
    broker.sessions.fences.read("g", queue, "one", 0)
    await stage.call("/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)
    assert deliveries_of(broker.kernel, "g", queue) == (0, [(3, FINISHED)])


async def test_a_group_with_a_live_member_that_does_not_follow_is_not_moved(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 4)
    member = Member(client_id="job", protocol=Protocol.EVENQ, refuses_resets=True)
    session = broker.sessions.join("g", member)
    [move] = await reset(stage, to=admin_pb2.EARLIEST, dry_run=True)
    assert (move.refused, "job reads t and does not follow" in move.error) == (True, True)
    with pytest.raises(PreconditionFailed, match="group g is not moved: its member job reads t"):
        await reset(stage, to=admin_pb2.EARLIEST)
    assert broker.ledger.progress.committed(1, 1, 0) == 4
    broker.sessions.leave(session)
    [move] = await reset(stage, to=admin_pb2.EARLIEST)
    assert (move.refused, move.error, broker.ledger.progress.committed(1, 1, 0)) == (False, "", 0)


async def test_a_reset_reaches_all_brokers_and_names_the_one_that_does_not_answer(stage: Any) -> None:
    broker = await filled(stage)
    peers: dict[str, Any] = {}

    async def ask_peers(method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
        response = admin_pb2.ResetOffsetsRequest.FromString(request)
        peers.setdefault(method, []).append(response)
        moves = [admin_pb2.OffsetMove(queue=common_pb2.Queue(topic="t", broker_name="b"), before=1, after=0)]
        there = admin_pb2.ResetOffsetsResponse(status=OK, moves=moves)
        return [("b", there.SerializeToString()), ("c", BadRequest("c is asleep"))]

    broker.cluster.peers.ask_peers = ask_peers
    moves = await reset(stage, to=admin_pb2.EARLIEST)
    assert [(move.queue.broker_name, move.queue.queue_id, move.error) for move in moves] == [
        ("a", 0, ""),
        ("b", 0, ""),
        ("c", -1, "c is asleep"),
    ]
    assert [(response.local, response.dry_run) for response in peers[METHOD]] == [(True, True), (True, False)]


async def test_one_refusal_of_any_broker_leaves_the_group_where_it_is_everywhere(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 4)
    asked: list[bool] = []

    async def ask_peers(_: str, request: bytes, **__: Any) -> list[tuple[str, Any]]:
        asked.append(admin_pb2.ResetOffsetsRequest.FromString(request).dry_run)
        queue = common_pb2.Queue(topic="t", broker_name="b")
        move = admin_pb2.OffsetMove(queue=queue, before=4, after=0, refused=True, error="job does not follow")
        return [("b", admin_pb2.ResetOffsetsResponse(status=OK, moves=[move]).SerializeToString())]

    broker.cluster.peers.ask_peers = ask_peers
    with pytest.raises(PreconditionFailed, match="group g is not moved: job does not follow"):
        await reset(stage, to=admin_pb2.EARLIEST)
    assert (asked, broker.ledger.progress.committed(1, 1, 0)) == ([True], 4)


@pytest.mark.parametrize("missing", ["group", "source"])
async def test_a_group_that_another_broker_knows_is_known(stage: Any, missing: str) -> None:
    broker = await filled(stage)
    names = {"group": "g", "source_group": "source"}
    await stage.during(broker.catalog.create_group("source"))
    names["group" if missing == "group" else "source_group"] = "elsewhere"
    knows = True

    async def ask_peers(*_: Any, **__: Any) -> list[tuple[str, Any]]:
        response = admin_pb2.ResetOffsetsResponse(status=OK, group_known=knows, source_known=knows)
        return [("b", response.SerializeToString())]

    broker.cluster.peers.ask_peers = ask_peers
    assert await reset(stage, to=admin_pb2.LIKE_GROUP, **names) == []
    knows = False
    with pytest.raises(GroupNotFound, match="no consumer group 'elsewhere'"):
        await reset(stage, to=admin_pb2.LIKE_GROUP, **names)


async def test_offsets_are_taken_from_another_group_where_it_has_read(stage: Any) -> None:
    broker = await filled(stage, queues=2)
    source = await stage.during(broker.catalog.create_group("source"))
    broker.ledger.progress.commit(source.group_id, 1, 1, 4)
    moves = await reset(stage, topic="", to=admin_pb2.LIKE_GROUP, source_group="source")
    assert [(move.queue.queue_id, move.before, move.after) for move in moves] == [(1, -1, 4)]
    assert broker.ledger.progress.committed(1, 1, 0) is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"group": "nobody"}, GroupNotFound),
        ({"topic": "nowhere"}, TopicNotFound),
        ({"group": ""}, BadRequest),
        ({"queues": [common_pb2.Queue(broker_name="x", queue_id=7)]}, BadRequest),
        ({"value": -1}, BadRequest),
        ({"to": 9}, BadRequest),
        ({"topic": "", "queues": [common_pb2.Queue(queue_id=0)]}, BadRequest),
        ({"queues": [common_pb2.Queue(topic="other")]}, BadRequest),
        ({"to": admin_pb2.LIKE_GROUP, "source_group": "g"}, BadRequest),
        ({"to": admin_pb2.LIKE_GROUP, "source_group": "nobody"}, GroupNotFound),
    ],
)
async def test_what_makes_no_sense_is_refused_with_the_fix(
    stage: Any, given: dict[str, Any], error: type[Exception]
) -> None:
    broker = await filled(stage, count=1)
    broker.ledger.progress.commit(1, 1, 0, 1)
    with pytest.raises(error):
        await reset(stage, **given)
    assert broker.ledger.progress.committed(1, 1, 0) == 1
