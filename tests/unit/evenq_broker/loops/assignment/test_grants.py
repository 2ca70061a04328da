"""Whose queue it is: asked of the rebalancer once per decision, and in doubt everybody's."""

import asyncio
from typing import Any

from evenq_broker.loops.assignment.grants import Grants

from evenq.errors import ConnectionFailed
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2


class Rebalancer:
    """The line to it, as far as grants see it."""

    def __init__(self, *owners: str) -> None:
        self.owners = list(owners)
        self.connected = True
        self.asked = 0

    async def forward(self, _method: str, _request: bytes, _timeout_ms: int) -> bytes:
        self.asked += 1
        if not self.connected:
            raise ConnectionFailed("no copy leads")
        answer = assignment_pb2.ExplainResponse(status=definition_pb2.Status(code=definition_pb2.OK))
        for number, owner in enumerate(self.owners):
            row = answer.queues.add(owner=owner)
            row.queue.topic, row.queue.broker_name, row.queue.queue_id = "t", "a", number
        return answer.SerializeToString()


async def stage_of(stage: Any, *owners: str) -> tuple[Any, Rebalancer, Grants]:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g", strategy="STICKY"))
    rebalancer = broker.grants._rebalancer = Rebalancer(*owners)
    return broker, rebalancer, broker.grants


def may(broker: Any, client_id: str, queue_id: int = 0) -> bool:
    given: bool = broker.grants.may(broker.catalog.groups.get("g"), broker.catalog.topics.get("t"), client_id, queue_id)
    return given


async def test_owners_are_learnt_with_the_first_poll_and_asked_again_only_after_a_decision(stage: Any) -> None:
    broker, rebalancer, grants = await stage_of(stage, "x", "")
    assert may(broker, "y"), "not known yet"
    await stage.until(lambda: not may(broker, "y"))
    assert may(broker, "x")
    assert may(broker, "y", 1), "a queue without owner"
    assert rebalancer.asked == 1
    rebalancer.owners = ["y", ""]
    grants.changed("g", "other")
    grants.changed("g", "t")
    await stage.until(lambda: may(broker, "y") and not may(broker, "x"))
    assert rebalancer.asked == 2
    grants._rebalancer = None


async def test_a_decision_ends_the_polls_of_the_old_owner_and_those_that_waited_for_the_queue(stage: Any) -> None:
    broker, rebalancer, grants = await stage_of(stage, "x", "x")
    may(broker, "x")
    await stage.until(lambda: not may(broker, "y"))
    group, topic = broker.catalog.groups.get("g").group_id, broker.catalog.topics.get("t").topic_id
    until_ms = broker.runtime.now_ms() + 60_000

    def poll(client_id: str, queue_id: int) -> asyncio.Future[Any]:
        return asyncio.ensure_future(
            broker.long_polls.for_messages(
                group, topic, queue_id=queue_id, deadline_ms=until_ms, client_id=client_id, push=True
            )
        )

    moved, kept = poll("x", 0), poll("x", 1)
    held = asyncio.ensure_future(broker.long_polls.until_owned(topic, 0, deadline_ms=until_ms, client_id="y"))
    await stage.clock.advance(100)
    assert not any(task.done() for task in (moved, kept, held))
    rebalancer.owners = ["y", "x"]
    grants.changed("g", "t")
    await stage.until(lambda: moved.done() and held.done(), limit_ms=1_000)
    assert await moved is None
    assert not kept.done()
    broker.long_polls.end_client("x")
    grants._rebalancer = None
    await kept


async def test_while_the_rebalancer_is_away_everybody_may(stage: Any) -> None:
    broker, rebalancer, grants = await stage_of(stage, "x", "x")
    may(broker, "x")
    await stage.until(lambda: not may(broker, "y"))
    rebalancer.connected = False
    assert may(broker, "y")
    grants.changed("g", "t")
    await stage.clock.advance(100)
    rebalancer.connected = True
    assert may(broker, "y"), "it did not answer, so it is not known"
    grants._rebalancer = None
