"""Blocks in and out, beyond the promises in tests/spec/test_cluster.py."""

import asyncio
from typing import Any

import pytest
from evenq_broker.core.delivery.filters import LOOK_AHEAD, TURNS_MIN
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.progress.counting import let_go
from evenq_proofs.blocks import block, place

from evenq.errors import BadRequest, Error, IllegalOffset, MessageNotFound, PersistenceTimeout, PreconditionFailed
from evenq.model import MessageQueue, StartFrom
from evenq.store.log.record import frame_at
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2


async def publish(stage: Any, request: data_pb2.PublishRequest) -> data_pb2.PublishResponse:
    answer: data_pb2.PublishResponse = await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
    return answer


async def begin(stage: Any, queues: int = 2) -> Any:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=queues))
    return broker


async def test_garbage_bytes_are_a_bad_request(stage: Any) -> None:
    await begin(stage)
    raw = await stage.during(stage.net.unary("a:8081", "/evenq.v1.Data/Pull", b"\xff\xff", timeout_ms=1_000))
    assert data_pb2.PullResponse.FromString(raw).status.code == definition_pb2.BAD_REQUEST


async def test_a_pull_of_a_bad_sql_filter_or_an_unknown_topic_has_its_own_code(stage: Any) -> None:
    await begin(stage)
    sql = common_pb2.Filter(type=common_pb2.Filter.SQL, expression="a LIKE '1'")
    for request, code in (
        (data_pb2.PullRequest(queue=place(0), filter=sql), definition_pb2.ILLEGAL_FILTER_EXPRESSION),
        (data_pb2.PullRequest(queue=place(0, topic="none")), definition_pb2.TOPIC_NOT_FOUND),
        (data_pb2.PullRequest(queue=place(9)), definition_pb2.BAD_REQUEST),
    ):
        with pytest.raises(Error) as caught:
            await stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)
        assert caught.value.code == code


async def scan(stage: Any, request: data_pb2.ScanRequest) -> list[data_pb2.ScanBlock]:
    stream = stage.net.stream("a:8081", "/evenq.v1.Data/Scan", request.SerializeToString(), timeout_ms=10_000)

    async def collect() -> list[data_pb2.ScanBlock]:
        return [data_pb2.ScanBlock.FromString(raw) async for raw in stream]

    blocks: list[data_pb2.ScanBlock] = await stage.during(collect())
    return blocks


async def test_a_scan_gives_the_range_in_blocks_that_follow_each_other(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), *(f"{number:04}" + "x" * 1_000 for number in range(100))))
    blocks = await scan(stage, data_pb2.ScanRequest(queue=place(0), start=10, end=90, block_bytes=16 << 10))
    assert len(blocks) > 3
    assert blocks[0].first_offset == 10
    assert [b.first_offset for b in blocks[1:]] == [b.next_offset for b in blocks[:-1]]
    assert blocks[-1].next_offset == 90
    offsets = [m.system_properties.queue_offset for b in blocks for m in b.messages]
    assert offsets == list(range(10, 90))


async def test_a_scan_ends_at_the_newest_message_and_outside_the_queue_tells_the_range(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), "x", "y"))
    (only,) = await scan(stage, data_pb2.ScanRequest(queue=place(0), start=0, end=1_000))
    assert only.next_offset == 2
    (refused,) = await scan(stage, data_pb2.ScanRequest(queue=place(0), start=5, end=9))
    assert refused.status.code == definition_pb2.ILLEGAL_OFFSET
    assert (refused.first_offset, refused.next_offset) == (0, 2)
    assert await scan(stage, data_pb2.ScanRequest(queue=place(0), start=2, end=9)) == []


@pytest.mark.parametrize("records", [False, True])
async def test_what_a_scan_gives_counts_as_delivered_to_the_group_that_it_names(stage: Any, records: bool) -> None:
    broker = await begin(stage)
    await publish(stage, block(place(0), *(f"{number:04}" + "x" * 1_000 for number in range(100))))
    await publish(stage, block(place(1), "one"))
    group = await stage.during(broker.catalog.ensure_group("g"))
    asked = data_pb2.ScanRequest(queue=place(0), start=10, end=90, block_bytes=16 << 10, group="g")
    if records:
        asked.records.version, asked.records.head = 1, True
    blocks = await scan(stage, asked)
    await scan(stage, data_pb2.ScanRequest(queue=place(1), end=1, group="g"))
    await scan(stage, data_pb2.ScanRequest(queue=place(0), end=100))
    await scan(stage, data_pb2.ScanRequest(queue=place(0), end=100, group="nobody"))
    ((key, counted),) = broker.runtime.stats.group_topics.items()
    assert key == (group.group_id, broker.catalog.topics.get("t").topic_id)
    assert counted.messages_out == 81
    assert sum(len(one.SerializeToString()) for one in blocks) < counted.bytes_out < 100 * 2_000
    assert broker.catalog.groups.get("nobody") is None


async def test_offsets_of_a_topic_are_told_for_all_its_queues_and_for_a_time(stage: Any) -> None:
    await begin(stage)
    first = await publish(stage, block(place(0), "x"))
    await stage.clock.advance(1_000)
    await publish(stage, block(place(0), "y"))
    request = data_pb2.QueryOffsetsRequest(topic="t", timestamp_ms=first.store_ms + 500)
    answer = await stage.call("/evenq.v1.Data/QueryOffsets", request, data_pb2.QueryOffsetsResponse)
    reported = [(at.queue.queue_id, at.min_offset, at.max_offset, at.committed) for at in answer.offsets]
    assert reported == [(0, 0, 2, -1), (1, 0, 0, -1)]
    assert answer.offsets[0].timestamp_offset == 1


async def test_the_mark_of_a_message_tells_it_from_another_one_at_its_offset(stage: Any) -> None:
    async def marks(stage: Any, *places: tuple[int, int]) -> list[str]:
        request = data_pb2.QueryOffsetsRequest(
            queues=[place(queue_id) for queue_id, _ in places], mark_at=[offset for _, offset in places]
        )
        answer = await stage.call("/evenq.v1.Data/QueryOffsets", request, data_pb2.QueryOffsetsResponse)
        assert answer.status.code == definition_pb2.Code.OK
        return [at.mark for at in answer.offsets]

    await begin(stage)
    first = await publish(stage, block(place(0), "x", "y"))
    x, y, *_ = found = await marks(stage, (0, 1), (0, 2), (0, 0), (0, 3), (1, 1))
    assert found == [x, y, "", "", ""]
    assert x != y, "both are of the same moment"
    assert {int(mark.partition(".")[0], 16) for mark in (x, y)} == {first.store_ms}
    await publish(stage, block(place(0), "z"))
    assert await marks(stage, (0, 1), (0, 2)) == [x, y]
    request = data_pb2.QueryOffsetsRequest(queues=[place(0)], mark_at=[1, 2])
    with pytest.raises(BadRequest, match="2 mark_at for 1 queues"):
        await stage.call("/evenq.v1.Data/QueryOffsets", request, data_pb2.QueryOffsetsResponse)
    with pytest.raises(BadRequest, match="the limit is 256"):
        await marks(stage, *[(0, 1)] * 257)
    assert await marks(stage, *[(0, 1)] * 256, (0, 0)) == [x] * 256 + [""]


async def test_a_commit_beyond_the_queue_is_refused_and_nothing_of_the_call_is_kept(stage: Any) -> None:
    broker = await begin(stage)
    await publish(stage, block(place(0), "x"))
    offsets = [data_pb2.CommitOffset(queue=place(0), offset=1), data_pb2.CommitOffset(queue=place(1), offset=1)]
    request = data_pb2.CommitOffsetsRequest(group="g", offsets=offsets)
    with pytest.raises(Error) as caught:
        await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert caught.value.code == definition_pb2.ILLEGAL_OFFSET
    group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
    assert broker.ledger.progress.committed(group.group_id, topic.topic_id, 0) is None


async def uid_of(stage: Any) -> str:
    asked = data_pb2.QueryOffsetsRequest(queues=[place(0)])
    told = await stage.call("/evenq.v1.Data/QueryOffsets", asked, data_pb2.QueryOffsetsResponse)
    return str(told.offsets[0].uid)


async def make_anew(stage: Any, broker: Any) -> None:
    await stage.during(broker.catalog.delete_topic("t"))
    await stage.during(broker.catalog.create_topic("t", queues=2))


async def test_whatever_is_about_a_queue_that_was_made_anew_is_refused_and_the_pull_says_its_uid(stage: Any) -> None:
    """The offsets would fit the new queue, so nothing else shows that they count other messages."""
    broker = await begin(stage)
    await stage.during(broker.catalog.ensure_group("g"))
    await publish(stage, block(place(0), "old"))
    old = await uid_of(stage)
    await make_anew(stage, broker)
    await publish(stage, block(place(0), *"new"))
    pull = data_pb2.PullRequest(group="g", queue=place(0), offset=1, committed=1, uid=old)
    raw = await stage.during(
        stage.net.unary("a:8081", "/evenq.v1.Data/Pull", pull.SerializeToString(), timeout_ms=1_000)
    )
    pulled = data_pb2.PullResponse.FromString(raw)
    assert pulled.status.code == definition_pb2.PRECONDITION_FAILED
    assert pulled.uid == await uid_of(stage) != old
    commit = data_pb2.CommitOffsetsRequest(
        group="g", offsets=[data_pb2.CommitOffset(queue=place(0), offset=1, uid=old)]
    )
    for method, request in (
        ("CommitOffsets", commit),
        ("CountDeliveries", data_pb2.CountDeliveriesRequest(group="g", queue=place(0), given_until=1, uid=old)),
        ("SendBack", data_pb2.SendBackRequest(group="g", queue=place(0), attempts=1, uid=old)),
    ):
        with pytest.raises(PreconditionFailed, match="deleted and created again"):
            await stage.call(f"/evenq.v1.Data/{method}", request, getattr(data_pb2, f"{method}Response"))
    group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
    assert broker.ledger.progress.committed(group.group_id, topic.topic_id, 0) is None
    commit.offsets[0].uid = pulled.uid
    await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    assert broker.ledger.progress.committed(group.group_id, topic.topic_id, 0) == 1


async def test_a_pull_that_is_parked_while_its_topic_is_made_anew_ends_at_once(stage: Any) -> None:
    """Its caller asks again, and learns that the queue is another one."""
    broker = await begin(stage)
    await publish(stage, block(place(0), "old"))
    request = data_pb2.PullRequest(queue=place(0), offset=1, wait_ms=30_000, uid=await uid_of(stage))
    parked = asyncio.ensure_future(stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse))
    await stage.clock.advance(10)
    assert not parked.done()
    began_ms = stage.clock.monotonic_ms()
    await make_anew(stage, broker)
    with pytest.raises(MessageNotFound):
        await stage.during(parked)
    assert stage.clock.monotonic_ms() - began_ms < 10_000
    with pytest.raises(PreconditionFailed):
        await stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)


async def test_a_commit_keeps_what_is_of_queues_that_are_still_the_same(stage: Any) -> None:
    broker = await begin(stage)
    await publish(stage, block(place(0), "x"))
    await publish(stage, block(place(1), "y"))
    commit = data_pb2.CommitOffsetsRequest(
        group="g",
        offsets=[
            data_pb2.CommitOffset(queue=place(0), offset=1, uid="another"),
            data_pb2.CommitOffset(queue=place(1), offset=1, uid=await uid_of(stage)),
        ],
    )
    with pytest.raises(PreconditionFailed):
        await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
    committed = [broker.ledger.progress.committed(group.group_id, topic.topic_id, at) for at in (0, 1)]
    assert committed == [None, 1]


@pytest.mark.parametrize(("policy", "starts"), [("LAST", [2, 1]), ("FIRST", [0, 0]), ("", [0, 0])])
async def test_rb_42_a_commit_of_minus_one_with_a_policy_lets_the_group_begin_on_the_whole_topic(
    stage: Any, policy: str, starts: list[int]
) -> None:
    """Without a policy it is refused, as by older brokers; a policy that nobody knows is a bad request."""
    broker = await begin(stage)
    await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    await publish(stage, block(place(0), "x", "y"))
    await publish(stage, block(place(1), "z"))
    request = data_pb2.CommitOffsetsRequest(group="g", offsets=[data_pb2.CommitOffset(queue=place(0), offset=-1)])
    with pytest.raises(IllegalOffset):
        await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    request.start.start_from = "NOW"
    with pytest.raises(BadRequest, match="LAST, FIRST, TIMESTAMP"):
        await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    request.start.start_from = policy
    request.start.SetInParent()
    await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    asked = data_pb2.QueryOffsetsRequest(group="g", topic="t")
    told = await stage.call("/evenq.v1.Data/QueryOffsets", asked, data_pb2.QueryOffsetsResponse)
    assert [one.committed for one in told.offsets] == starts
    assert told.begun_ms >= 1 if policy == "LAST" else told.begun_ms == -1


async def test_a_filtered_pull_that_does_not_wait_ends_and_says_where_to_go_on(stage: Any) -> None:
    broker = await begin(stage, queues=1)
    count = TURNS_MIN * LOOK_AHEAD + 1
    for at in range(0, count, 5_000):
        await publish(stage, block(place(0), *map(str, range(at, min(at + 5_000, count)))))
    wanted = common_pb2.Filter(type=common_pb2.Filter.SQL, expression="n = 1")
    request = data_pb2.PullRequest(queue=place(0), filter=wanted)
    asked = stage.net.unary("a:8081", "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000)
    answer = data_pb2.PullResponse.FromString(await stage.during(asked))
    assert answer.status.code == definition_pb2.MESSAGE_NOT_FOUND
    assert answer.next_offset == count - 1
    assert broker.ledger.store.queue_range(broker.catalog.topics.get("t").topic_id, 0) == (0, count)


async def test_a_scan_gives_what_an_sql_filter_wants(stage: Any) -> None:
    await begin(stage, queues=1)
    result = block(place(0), *map(str, range(600)))
    for number, message in enumerate(result.messages):
        message.user_properties["n"] = str(number)
    await publish(stage, result)
    wanted = common_pb2.Filter(type=common_pb2.Filter.SQL, expression="n IN (0, 299, 599)")
    request = data_pb2.ScanRequest(queue=place(0), start=0, end=600, filter=wanted)
    scan = request.SerializeToString()

    async def collect() -> list[Any]:
        stream = stage.net.stream("a:8081", "/evenq.v1.Data/Scan", scan, timeout_ms=60_000)
        return [data_pb2.ScanBlock.FromString(frame) async for frame in stream]

    blocks = await stage.during(collect())
    assert [message.body for one in blocks for message in one.messages] == [b"0", b"299", b"599"]
    assert blocks[-1].next_offset == 600


@pytest.mark.parametrize("new_owner", [False, True])
async def test_a_parked_pull_is_refused_once_the_queue_has_changed_hands(stage: Any, new_owner: bool) -> None:
    """OC-18: the message that ends the wait belongs to the new owner, also if it was stored before any notice came."""
    broker = await begin(stage, queues=1)
    locking, queue = broker.sessions.locking, MessageQueue("t", "a", 0)
    for client_id in ("x", "y"):
        broker.sessions.join("g", Member(client_id=client_id, protocol=Protocol.EVENQ))
    assert await stage.during(locking.lock("g", "x", [queue], wait_ms=0)) == [True]
    request = data_pb2.PullRequest(
        group="g", client_id="x", queue=place(0), offset=0, wait_ms=20_000, committed=-1, owner=True
    )
    parked = asyncio.ensure_future(
        stage.net.unary("a:8081", "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000)
    )
    await stage.clock.advance(100)
    assert not parked.done()
    look_again, broker.long_polls.look_again = (
        broker.long_polls.look_again,
        lambda *_: None,
    )  # it is not woken for it
    locking.unlock("g", "x", [queue])
    if new_owner:
        assert await stage.during(locking.lock("g", "y", [queue], wait_ms=0)) == [True]
    broker.long_polls.look_again = look_again
    await publish(stage, block(place(0), "for the new owner"))
    answer = data_pb2.PullResponse.FromString(await stage.during(parked))
    assert answer.status.code == definition_pb2.PRECONDITION_FAILED
    assert not answer.messages


async def test_a_pull_whose_queue_changes_hands_while_the_disk_is_read_is_refused(stage: Any) -> None:
    broker = await begin(stage, queues=1)
    await publish(stage, block(place(0), "a"))
    locking, queue = broker.sessions.locking, MessageQueue("t", "a", 0)
    broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    assert await stage.during(locking.lock("g", "x", [queue], wait_ms=0)) == [True]
    read = broker.ledger.store.read

    async def slow(*place: Any, **result: Any) -> Any:
        locking.unlock("g", "x", [queue])
        return await read(*place, **result)

    broker.ledger.store.read_hot, broker.ledger.store.read = lambda *_, **__: None, slow
    request = data_pb2.PullRequest(group="g", client_id="x", queue=place(0), committed=-1, owner=True)
    with pytest.raises(PreconditionFailed):
        await stage.call("/evenq.v1.Data/Pull", request, data_pb2.PullResponse)


def wanted(version: int = 1, *, head: bool = True, system: bool = True) -> data_pb2.RecordsWanted:
    return data_pb2.RecordsWanted(version=version, head=head, system=system)


async def test_a_scan_gives_records_as_they_are_stored_to_those_who_can_read_them(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), *(f"{number:04}" + "x" * 1_000 for number in range(100))))
    asked = data_pb2.ScanRequest(queue=place(0), start=10, end=90, block_bytes=16 << 10)
    messages = [m for b in await scan(stage, asked) for m in b.messages]
    asked.records.CopyFrom(wanted())
    blocks = await scan(stage, asked)
    assert len(blocks) > 3
    assert [b.first_offset for b in blocks] == [10, *(b.next_offset for b in blocks[:-1])]
    assert blocks[-1].next_offset == 90
    stored = []
    for response in blocks:
        assert not response.messages
        assert (response.records.head, response.records.system) == (True, True)
        sizes, at = memoryview(response.records.sizes).cast("I"), 0
        for size in sizes:
            found = frame_at(response.records.frames[at : at + size], 0, frame_place(response.records.frames, at))
            assert found is not None
            stored.append(found)
            at += size
        assert at == len(response.records.frames)
    assert [one.queue_offset for one in stored] == list(range(10, 90))
    for one, message in zip(stored, messages, strict=True):
        response = definition_pb2.Message.FromString(one.head)
        assert (response.body, response.topic.name) == (message.body, "t")
        system = definition_pb2.SystemProperties.FromString(one.system)
        assert system.message_id == message.system_properties.message_id


def frame_place(frames: bytes, at: int) -> int:
    return int.from_bytes(frames[at + 40 : at + 48], "big")


async def test_bodies_that_are_not_wanted_are_not_sent(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), *(f"{number:020}" + "body" * 250 for number in range(50))))
    asked = data_pb2.ScanRequest(queue=place(0), start=0, end=50, records=wanted(head=False))
    (response,) = await scan(stage, asked)
    assert len(response.records.sizes) == 50 * 4
    assert (response.records.head, response.records.system) == (False, True)
    assert b"body" not in response.records.frames


async def test_a_filter_or_a_version_that_is_not_ours_gives_messages_as_ever(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), "x", "y"))
    tag = common_pb2.Filter(expression="none")
    everything = common_pb2.Filter(expression="*")
    for records, chosen, messages in (
        (wanted(), tag, 0), (wanted(2), everything, 2), (wanted(0), everything, 2), (wanted(), everything, -1),
    ):  # fmt: skip
        asked = data_pb2.ScanRequest(queue=place(0), start=0, end=2, filter=chosen, records=records)
        (response,) = await scan(stage, asked)
        assert response.HasField("records") == (messages < 0)
        assert len(response.messages) == max(0, messages)


async def test_records_outside_of_the_queue_tell_the_range(stage: Any) -> None:
    await begin(stage)
    await publish(stage, block(place(0), "x", "y"))
    asked = data_pb2.ScanRequest(queue=place(0), start=5, end=9, records=wanted())
    (refused,) = await scan(stage, asked)
    assert refused.status.code == definition_pb2.ILLEGAL_OFFSET
    assert (refused.first_offset, refused.next_offset) == (0, 2)


async def test_what_the_holders_filter_leaves_out_is_no_lag_while_its_poll_waits_and_passed_when_it_leaves(
    stage: Any,
) -> None:
    """A long poll tells the member where to go on only when it ends: until then the lag rose, and stayed after it."""
    broker = await begin(stage, queues=1)
    await stage.during(broker.catalog.create_group("g"))
    locking, queue = broker.sessions.locking, MessageQueue("t", "a", 0)
    broker.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    assert await stage.during(locking.lock("g", "x", [queue], wait_ms=0)) == [True]
    key = (broker.catalog.groups.get("g").group_id, broker.catalog.topics.get("t").topic_id, 0)
    broker.ledger.progress.start(*key, 0)

    def lag() -> int:
        return int(broker.ledger.progress.lag(*key, *broker.ledger.store.queue_range(*key[1:])))

    def parked(committed: int) -> asyncio.Future[bytes]:
        request = data_pb2.PullRequest(
            group="g", client_id="x", queue=place(0), offset=0, wait_ms=20_000, committed=committed, owner=True,
            filter=common_pb2.Filter(type=common_pb2.Filter.TAG, expression="paid"),
        )  # fmt: skip
        return asyncio.ensure_future(
            stage.net.unary("a:8081", "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000)
        )

    by_hand = parked(committed=-1)
    await stage.clock.advance(100)
    await publish(stage, block(place(0), "a", "b"))
    await stage.clock.advance(100)
    assert lag() == 2, "a member that commits by hand may come back with another filter"
    by_itself = parked(committed=0)
    await stage.until(lambda: lag() == 0)
    await publish(stage, block(place(0), "c"))
    await stage.until(lambda: lag() == 0)
    assert broker.ledger.progress.committed(*key) == 0
    locking.unlock("g", "x", [queue])
    assert broker.ledger.progress.committed(*key) == 3
    assert lag() == 0
    for one in (by_hand, by_itself):
        one.cancel()


async def test_what_was_passed_does_not_outlive_a_reset_and_hides_nothing_that_is_unfinished(stage: Any) -> None:
    broker = await begin(stage, queues=1)
    await publish(stage, block(place(0), "a", "b", "c", "d"))
    group = await stage.during(broker.catalog.create_group("g"))
    key = (group.group_id, broker.catalog.topics.get("t").topic_id, 0)
    progress = broker.ledger.progress
    progress.start(*key, 0)
    queue = progress.queue(*key)
    queue.passed = (2, 4)
    assert progress.lag(*key, 0, 4) == 4, "0 and 1 are in the member's hands"
    progress.commit(*key, 2)
    assert progress.lag(*key, 0, 4) == 0
    progress.commit(*key, 0, allow_backward=True)
    assert progress.lag(*key, 0, 4) == 4
    progress.deliver(queue, [0, 1], 2, deadline_ms=10**15, client_id="")
    let_go(broker.kernel, "g", MessageQueue("t", "a", 0))
    assert queue.committed == 0, "what a receiver holds is not finished by a lock that moves"


async def given_back(stage: Any, *, attempts: int, level: int = 0) -> data_pb2.SendBackResponse:
    request = data_pb2.SendBackRequest(group="g", queue=place(0), attempts=attempts, delay_level=level)
    answer: data_pb2.SendBackResponse = await stage.call("/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)
    return answer


async def failing(stage: Any) -> tuple[Any, Any, Any]:
    """A message of which the group has committed nothing, on a broker; its group and topic."""
    broker = await begin(stage)
    await publish(stage, block(place(0), "fails"))
    commit = data_pb2.CommitOffsetsRequest(group="g", offsets=[data_pb2.CommitOffset(queue=place(0), offset=0)])
    await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    return broker, broker.catalog.groups.get("g"), broker.catalog.topics.get("t")


def copies(broker: Any, group: Any, topic: Any) -> tuple[int, int]:
    """Delayed copies that were stored, and dead letters."""
    stats = broker.runtime.stats.group_topic(group.group_id, topic.topic_id)
    return stats.redeliveries, stats.dead_letters


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_message_that_is_given_back_again_is_copied_once(stage: Any, restarts: bool) -> None:
    """The answer of the first call was lost, and the member has delivered the message once more by then."""
    broker, group, topic = await failing(stage)
    assert not (await given_back(stage, attempts=1)).dead_lettered
    assert copies(broker, group, topic) == (1, 0)
    if restarts:
        state = broker.ledger._state()
        broker.ledger.progress.forget_topic(topic.topic_id)
        broker.ledger.replay(state)
    assert not (await given_back(stage, attempts=2)).dead_lettered
    assert (await given_back(stage, attempts=99)).dead_lettered, "as its member expects"
    assert copies(broker, group, topic) == (1, 0), "the copy will become the dead letter"


async def test_a_last_attempt_that_is_given_back_again_is_one_dead_letter(stage: Any) -> None:
    broker, group, topic = await failing(stage)
    for _ in range(2):
        assert (await given_back(stage, attempts=3, level=-1)).dead_lettered
    assert copies(broker, group, topic) == (0, 1)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_call_that_repeats_one_whose_copy_is_being_stored_waits_for_it(stage: Any, gone: bool) -> None:
    """A slow disk is why the first call timed out; its caller may be gone."""
    broker, group, topic = await failing(stage)
    store, disk = broker.ledger.store, asyncio.Event()
    append = store.append

    async def slow(*entries: Any, **options: Any) -> Any:
        await disk.wait()
        return await append(*entries, **options)

    await stage.during(broker.catalog.create_topic("%RETRY%g", queues=1, system=True))
    store.append = slow
    first = asyncio.ensure_future(given_back(stage, attempts=1))
    await stage.clock.advance(100)
    if gone:
        first.cancel()
    second = asyncio.ensure_future(given_back(stage, attempts=1))
    await stage.clock.advance(100)
    assert not second.done()
    disk.set()
    await stage.during(second)
    assert copies(broker, group, topic) == (1, 0)


async def test_a_message_that_could_not_be_given_back_is_given_back_by_the_next_call(stage: Any) -> None:
    broker, group, topic = await failing(stage)
    store = broker.ledger.store
    append = store.append

    async def full(*_: Any, **__: Any) -> Any:
        raise PersistenceTimeout("the disk is slow")

    await stage.during(broker.catalog.create_topic("%RETRY%g", queues=1, system=True))
    store.append = full
    with pytest.raises(PersistenceTimeout):
        await given_back(stage, attempts=1)
    store.append = append
    await given_back(stage, attempts=1)
    assert copies(broker, group, topic) == (1, 0)


async def test_after_a_reset_a_message_is_given_back_anew(stage: Any) -> None:
    broker, group, topic = await failing(stage)
    await given_back(stage, attempts=1)
    broker.ledger.progress.commit(group.group_id, topic.topic_id, 0, 1)
    broker.ledger.progress.commit(group.group_id, topic.topic_id, 0, 0, allow_backward=True)
    await given_back(stage, attempts=1)
    assert copies(broker, group, topic) == (2, 0)


@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_offsets_are_not_committed_for_what_is_deleted_while_another_queue_begins(
    stage: Any, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    broker = await begin(stage)
    await publish(stage, block(place(0), "x"))
    catalog = broker.catalog
    await stage.during(catalog.create_group("g"))

    async def deleted(*_: Any) -> None:
        await (catalog.delete_topic("t") if gone == "topic" else catalog.delete_group("g"))

    monkeypatch.setattr(broker.starts, "begin", deleted)
    commit = data_pb2.CommitOffsetsRequest(group="g", start=data_pb2.StartPolicy(start_from="LAST"))
    commit.offsets.add(queue=place(0), offset=1)
    commit.offsets.add(queue=place(1), offset=-1)
    await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
    assert list(broker.ledger.progress.queues()) == []
