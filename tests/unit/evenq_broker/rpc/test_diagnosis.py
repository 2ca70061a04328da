"""DiagnoseGroup at a broker: what it gathers, what it names as missing, and the facts it tells others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.core.members import Member, Protocol

from evenq.errors import BadRequest, ConnectionFailed, GroupNotFound
from evenq.model import FilterExpression, MessageQueue, Subscription
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import diagnosis_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
METHOD = "/evenq.v1.Admin/DiagnoseGroup"


async def ask(stage: Any, group: str = "g", **asked: Any) -> diagnosis_pb2.DiagnoseGroupResponse:
    request = diagnosis_pb2.DiagnoseGroupRequest(group=group, **asked)
    answer: diagnosis_pb2.DiagnoseGroupResponse = await stage.call(METHOD, request, diagnosis_pb2.DiagnoseGroupResponse)
    return answer


async def owner(stage: Any, broker: Any) -> None:
    wanted = (Subscription("t", FilterExpression("*")),)
    broker.sessions.join("g", Member(client_id="m1", protocol=Protocol.EVENQ, subscriptions=wanted, zone="north"))
    queues = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)]
    assert await stage.during(broker.sessions.locking.lock("g", "m1", queues, wait_ms=0)) == [True, True]


def test_a_group_whose_queues_are_held_is_healthy_and_looked_at_once(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.create_topic("t", queues=2))
        await stage.during(broker.create_group("g"))
        await owner(stage, broker)
        before_ms = stage.clock.monotonic_ms()
        answer = await ask(stage)
        assert list(answer.findings) == []
        assert (answer.members, answer.queues, list(answer.brokers)) == (1, 2, ["a"])
        assert answer.decides == "no rebalancer: brokers and members compute by no strategy"
        assert stage.clock.monotonic_ms() - before_ms < 500

    run(story)


def test_a_head_that_does_not_move_is_stuck_after_the_time_asked_for(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.create_topic("t", queues=2))
        await stage.during(broker.create_group("g"))
        await owner(stage, broker)
        group, topic = broker.groups.get("g"), broker.topics.get("t")
        place = (group.group_id, topic.topic_id, 0)
        broker.progress.start(*place, 0)
        broker.progress.deliver(broker.progress.queue(*place), [0], 1, deadline_ms=10**15, client_id="")
        broker.heads.look(place, 0, waits=True, now_ms=stage.clock.monotonic_ms() - 30_000)
        broker.heads.end_of_round()
        assert list((await ask(stage)).findings) == []
        [one] = (await ask(stage, stuck_ms=20_000)).findings
        assert (one.kind, one.subject) == ("STUCK_HEAD", "t a/0")
        assert one.command == "evenq offset skip g --topic t --count 1 --queue a/0"

    run(story)


def test_a_broker_that_does_not_answer_and_a_member_that_others_know_are_told(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        await stage.during(broker.create_topic("t", queues=2))
        await stage.during(broker.create_group("g"))
        await owner(stage, broker)
        part = (await ask(stage, local=True)).part
        assert [one.member.client_id for one in part.members] == ["m1"]
        assert {one.holder for one in part.queues} == {"m1"}
        part.broker_name = "b"
        for at in part.queues:
            at.queue.broker_name = "b"
        there = diagnosis_pb2.DiagnoseGroupResponse(part=part)
        there.status.code = definition_pb2.OK

        async def ask_peers(method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
            assert method == METHOD
            assert diagnosis_pb2.DiagnoseGroupRequest.FromString(request).local
            return [("b", there.SerializeToString()), ("c", ConnectionFailed("no answer"))]

        broker.cluster.ask_peers = ask_peers
        answer = await ask(stage)
        assert [(one.kind, one.subject) for one in answer.findings] == [("BROKER_SILENT", "c")]
        assert (list(answer.brokers), list(answer.silent), answer.queues) == (["a", "b"], ["c"], 4)

    run(story)


def test_unknown_groups_and_times_out_of_range_are_refused(run: Run) -> None:
    async def story(stage: Any) -> None:
        await stage.broker()
        with pytest.raises(GroupNotFound, match="no consumer group 'g'"):
            await ask(stage)
        with pytest.raises(BadRequest, match="watch_ms is 10001"):
            await ask(stage, watch_ms=10_001)
        with pytest.raises(BadRequest, match="stuck_ms is -1"):
            await ask(stage, stuck_ms=-1)

    run(story)
