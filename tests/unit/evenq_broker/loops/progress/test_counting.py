"""Counts of deliveries at a broker: who may tell them, what the next holder hears, and what survives a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.settings import StoreSettings
from evenq_proofs.blocks import block, place

from evenq.errors import BadRequest, GroupNotFound, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2, groups_pb2

FINISHED = -1
DATA, GROUPS = "/evenq.v1.Data/", "/evenq.v1.Groups/"


async def begin(stage: Any, **settings: Any) -> Any:
    """Twenty messages in one queue; x and y are members."""
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.call(DATA + "Publish", block(place(0), *map(str, range(20))), data_pb2.PublishResponse)
    join(broker, "x")
    join(broker, "y")
    assert (await lock(stage, "x")).granted
    await commit(stage, "x", 0)
    return broker


def join(broker: Any, client_id: str) -> Any:
    return broker.sessions.join("g", Member(client_id=client_id, protocol=Protocol.EVENQ))


async def lock(stage: Any, client_id: str, *, anew: bool = True) -> groups_pb2.LockedQueue:
    request = groups_pb2.LockQueuesRequest(group="g", client_id=client_id, queues=[place(0)], anew=anew)
    answer: groups_pb2.LockQueuesResponse = await stage.call(
        GROUPS + "LockQueues", request, groups_pb2.LockQueuesResponse
    )
    return answer.queues[0]


async def unlock(stage: Any, client_id: str) -> None:
    request = groups_pb2.UnlockQueuesRequest(group="g", client_id=client_id, queues=[place(0)])
    await stage.call(GROUPS + "UnlockQueues", request, groups_pb2.UnlockQueuesResponse)


async def commit(stage: Any, client_id: str, offset: int) -> None:
    request = data_pb2.CommitOffsetsRequest(group="g", client_id=client_id)
    request.offsets.add(queue=place(0), offset=offset)
    await stage.call(DATA + "CommitOffsets", request, data_pb2.CommitOffsetsResponse)


async def pull(stage: Any, client_id: str, offset: int, count: int, *, owner: bool = True) -> None:
    request = data_pb2.PullRequest(
        group="g", client_id=client_id, queue=place(0), offset=offset, batch_max=count, committed=-1, owner=owner
    )
    await stage.call(DATA + "Pull", request, data_pb2.PullResponse)


async def tell(stage: Any, client_id: str, counts: dict[int, int], **rest: Any) -> None:
    result = [
        common_pb2.DeliveryCount(offset=offset, deliveries=number, finished=number == FINISHED)
        for offset, number in counts.items()
    ]
    request = data_pb2.CountDeliveriesRequest(
        **{"group": "g", "client_id": client_id, "queue": place(0), "counts": result, **rest}
    )
    await stage.call(DATA + "CountDeliveries", request, data_pb2.CountDeliveriesResponse)


def heard(answer: groups_pb2.LockedQueue) -> tuple[int, dict[int, int]]:
    assert answer.granted
    return answer.given_until, {one.offset: FINISHED if one.finished else one.deliveries for one in answer.counts}


async def test_the_next_holder_hears_what_a_vanished_one_had_and_said(stage: Any) -> None:
    broker = await begin(stage)
    await pull(stage, "x", 0, 12)
    await tell(stage, "x", {3: 2, 4: 1}, given_until=0)
    await tell(stage, "x", {5: FINISHED})
    broker.sessions.locking.drop("g", "x")
    assert heard(await lock(stage, "y")) == (12, {3: 2, 4: 1, 5: FINISHED})
    await commit(stage, "y", 4)
    assert heard(await lock(stage, "y", anew=False)) == (12, {4: 1, 5: FINISHED})


async def test_who_lets_go_leaves_nothing_but_what_it_says(stage: Any) -> None:
    await begin(stage)
    await pull(stage, "x", 0, 12)
    await unlock(stage, "x")
    assert heard(await lock(stage, "y")) == (0, {})
    await pull(stage, "y", 0, 12)
    await tell(stage, "y", {}, given_until=7)
    await unlock(stage, "y")
    assert heard(await lock(stage, "x")) == (7, {})


async def test_a_member_that_comes_anew_under_its_id_is_told_what_it_had_before(stage: Any) -> None:
    await begin(stage)
    await pull(stage, "x", 0, 6)
    assert heard(await lock(stage, "x", anew=False)) == (0, {}), "it renews: it knows what it has"
    assert heard(await lock(stage, "x", anew=True)) == (6, {})
    assert heard(await lock(stage, "x", anew=True)) == (6, {})


async def test_a_queue_that_is_taken_from_its_holder_was_in_its_hands(stage: Any) -> None:
    broker = await begin(stage, revoke_ms=100)
    await pull(stage, "x", 0, 6)
    request = groups_pb2.LockQueuesRequest(
        group="g", client_id="y", queues=[place(0)], wait_ms=5_000, anew=True,
        generation=common_pb2.Generation(epoch=1, counter=1),
    )  # fmt: skip
    answer = await stage.call(GROUPS + "LockQueues", request, groups_pb2.LockQueuesResponse)
    assert heard(answer.queues[0]) == (6, {})
    assert broker.membership.locks.holder("g", broker.membership.locks.held("g", "y")[0]) == "y"


async def test_reading_without_owning_is_no_delivery(stage: Any) -> None:
    broker = await begin(stage)
    await pull(stage, "tool", 0, 20, owner=False)
    broker.sessions.locking.drop("g", "x")
    assert heard(await lock(stage, "y")) == (0, {})


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"client_id": "y"}, PreconditionFailed),
        ({"group": "none"}, GroupNotFound),
        ({"counts": {0: 0}}, BadRequest),
        ({"counts": {-1: 1}}, BadRequest),
        ({"counts": {0: 1 << 20}}, BadRequest),
        ({"counts": dict.fromkeys(range(5_000), 1)}, BadRequest),
        ({"given_until": -1}, BadRequest),
        ({"queue": place(7)}, BadRequest),
    ],
)
async def test_what_cannot_be_counted_is_refused(stage: Any, wrong: dict[str, Any], error: type[Exception]) -> None:
    await begin(stage)
    fields = {"client_id": "x", "counts": {0: 1}, **wrong}
    counts, client_id = fields.pop("counts"), fields.pop("client_id")
    with pytest.raises(error):
        await tell(stage, client_id, counts, **fields)
    assert heard(await lock(stage, "x", anew=False)) == (0, {})


async def test_what_is_not_in_the_queue_yet_cannot_have_been_delivered(stage: Any) -> None:
    await begin(stage)
    await tell(stage, "x", {19: 1, 20: 1, 1 << 40: 1}, given_until=1 << 40)
    assert heard(await lock(stage, "x", anew=False)) == (20, {19: 1})


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restarted_broker_has_it_from_its_log_or_its_snapshot(stage: Any, tmp_path: Path, clean: bool) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    first = await begin(stage, store=store)
    await pull(stage, "x", 0, 6)
    await tell(stage, "x", {2: 3, 4: 2})
    first.sessions.locking.drop("g", "x")
    assert heard(await lock(stage, "y")) == (6, {2: 3, 4: 2})
    await unlock(stage, "y")
    if not clean:
        first.ledger.journal._unsaved = False  # no last snapshot: the log alone has it
    await stage.during(first.close())
    stage.brokers.clear()
    second = await stage.broker(store=store)
    join(second, "z")
    assert heard(await lock(stage, "z")) == (6, {2: 3, 4: 2})


async def test_a_holder_that_does_not_survive_its_brokers_restart_had_at_most_what_members_keep_in_hand(
    stage: Any, tmp_path: Path
) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    first = await begin(stage, store=store)
    await pull(stage, "x", 0, 6)
    await stage.during(first.close())
    stage.brokers.clear()
    second = await stage.broker(store=store)
    second.sessions.locking.drop("g", "x")
    join(second, "z")
    assert heard(await lock(stage, "z")) == (20, {}), "it is not known how far it read: the queue's end bounds it"


async def test_a_count_is_answered_once_it_is_on_the_disk(stage: Any) -> None:
    """The delivery that it announces may be the end of everybody."""
    broker = await begin(stage)
    disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.ledger.journal.record, kept = lambda *_: asyncio.shield(disk), broker.ledger.journal.record
    result = asyncio.ensure_future(tell(stage, "x", {3: 2}))
    for _ in range(20):
        await asyncio.sleep(0)
    await stage.clock.advance(1_000)
    assert not result.done(), "the disk is slow"
    again = asyncio.ensure_future(tell(stage, "x", {3: 2}))  # as a member whose call took too long
    for _ in range(20):
        await asyncio.sleep(0)
    assert not again.done()
    disk.set_result(None)
    await asyncio.gather(result, again)
    broker.ledger.journal.record = kept
