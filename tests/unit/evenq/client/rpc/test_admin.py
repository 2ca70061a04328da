"""What the admin says on the wire, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import inspect
import random
from inspect import signature
from typing import Any

import pytest

import evenq
from evenq import aio, errors
from evenq.client.rpc.admin import AdminCalls
from evenq.client.wiring import ClientContext
from evenq.errors import BadRequest, ConnectionFailed, NotImplementedYet
from evenq.model import MessageQueue, Permission
from evenq.runtime.clock import FakeClock
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, common_pb2, groups_pb2

OK = v2.Status(code=v2.OK)
QUEUE = common_pb2.Queue(topic="t", broker_name="a", queue_id=1)


class Net:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, bytes]] = []

    async def unary(self, _address: str, method: str, request: bytes, **_: Any) -> bytes:
        self.calls.append((method, request))
        answer: bytes = self.answers.pop(0).SerializeToString()
        return answer


def admin(net: Net) -> AdminCalls:
    return AdminCalls(net, endpoint="ap:1", client_id="c", timeout_ms=3_000)  # type: ignore[arg-type]  # a part of Net


async def test_a_skip_is_never_sent_twice() -> None:
    """A second one, at the next access point, would pass over messages that nobody named."""
    applied: list[str] = []

    class Slow(Net):
        async def unary(self, address: str, method: str, request: bytes, **_: Any) -> bytes:
            if address == "dead:1":
                raise errors.ConnectionFailed("no server answers")
            if admin_pb2.ResetOffsetsRequest.FromString(request).dry_run:
                return admin_pb2.ResetOffsetsResponse(status=OK).SerializeToString()
            applied.append(address)
            raise errors.RequestTimeout("no answer within 3000 ms")

    net: Any = Slow()
    calls = AdminCalls(net, endpoint="dead:1;slow:2;other:3", client_id="c", timeout_ms=3_000)

    async def reset(to: str) -> None:
        await calls.reset_offsets("g", topic="t", to=to, value=1, source_group="", dry_run=False)

    with pytest.raises(errors.RequestTimeout, match="may have been made or not: see `evenq offset show`"):
        await reset("SKIP")
    assert applied == ["slow:2"]
    with pytest.raises(errors.ConnectionFailed):
        await reset("OFFSET")
    assert applied == ["slow:2", "slow:2", "other:3"], "an absolute target may be set again"


async def test_a_run_of_a_schedule_has_one_message_id_at_every_access_point() -> None:
    """The first one may have stored the message although its answer was lost."""
    sent: list[tuple[str, str]] = []

    class Slow(Net):
        async def unary(self, address: str, _method: str, request: bytes, **_: Any) -> bytes:
            message_id = admin_pb2.RunScheduleRequest.FromString(request).message_id
            sent.append((address, message_id))
            if address == "slow:1":
                raise errors.RequestTimeout("no answer within 3000 ms")
            return admin_pb2.RunScheduleResponse(status=OK, message_id=message_id).SerializeToString()

    net: Any = Slow()
    context = ClientContext(clock=FakeClock(), rng=random.Random(1), net=net)
    calls = aio.Admin(endpoint="slow:1;other:2", context=context)
    made = [await calls.run_schedule("t", "s") for _ in range(2)]
    await calls.run_schedule("t", "s", message_id="given")
    ids = [made[0], made[0], made[1], "given"]
    assert [message_id for _, message_id in sent] == ids
    assert [address for address, _ in sent[:2]] == ["slow:1", "other:2"]
    assert len(made[0]) == 34
    assert made[0] != made[1]


def explained() -> assignment_pb2.ExplainResponse:
    response = assignment_pb2.ExplainResponse(status=OK, strategy="STICKY")
    response.generation.epoch, response.generation.counter = 7, 3
    response.queues.add(queue=QUEUE, owner="m1", since_ms=5, reason="m1 joined", state="OWNED", previous_owner="m2")
    response.idle.add(client_id="m2", reason="too many")
    return response


def test_both_faces_of_the_admin_take_the_same_arguments() -> None:
    def public(face: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(one.name, one.default) for one in signature(method).parameters.values()]
            for name, method in inspect.getmembers(face, inspect.isfunction)
            if not name.startswith("_")
        }

    assert public(evenq.Admin) == public(aio.Admin)
    assert {"find_messages", "close"} <= set(public(evenq.Admin))


def test_a_scaled_topic_tells_what_it_waits_for() -> None:
    response = admin_pb2.ScaleTopicResponse(status=OK)
    one = response.brokers.add(broker_name="a")
    one.entry.write_queues, one.entry.read_queues, one.entry.permission = 2, 4, v2.READ_WRITE
    one.unfinished.add(queue=QUEUE, group="g", lag=5, inflight=1)
    net = Net(response)
    (view,) = asyncio.run(admin(net).scale_topic("t", 2, broker="a", force=True, close_unread=True))
    method, request = net.calls[0]
    assert method == "/evenq.v1.Admin/ScaleTopic"
    asked = admin_pb2.ScaleTopicRequest.FromString(request)
    assert (asked.topic, asked.queues, asked.broker_name, asked.force) == ("t", 2, "a", True)
    assert (view.done, view.permission) == (False, "READ_WRITE")
    assert (view.unfinished[0].queue, view.unfinished[0].lag) == (MessageQueue("t", "a", 1), 5)


def test_a_broker_that_did_not_do_it_is_an_error() -> None:
    response = admin_pb2.PermitTopicResponse(status=OK)
    response.brokers.add(broker_name="b", error="no answer")
    net = Net(response)
    with pytest.raises(ConnectionFailed, match=r"permission of topic t was not changed on b \(no answer\)"):
        asyncio.run(admin(net).permit_topic("t", Permission.READ, broker=""))
    assert admin_pb2.PermitTopicRequest.FromString(net.calls[0][1]).permission == v2.READ


def test_draining_and_resuming_are_one_call() -> None:
    net = Net(*[admin_pb2.DrainBrokerResponse(status=OK, broker_name="a", empty=True, writers=2)] * 2)
    view = asyncio.run(admin(net).drain_broker("a"))
    assert (view.empty, view.other_writers) == (True, 2)
    asyncio.run(admin(net).drain_broker("a", resume=True))
    changes = [admin_pb2.DrainBrokerRequest.FromString(request).change for _, request in net.calls]
    assert changes == [admin_pb2.DrainBrokerRequest.DRAIN, admin_pb2.DrainBrokerRequest.RESUME]


def test_an_explanation_is_the_rebalancers() -> None:
    view = asyncio.run(admin(Net(explained())).explain_group("g", ""))
    assert (view.decides, view.strategy, view.generation) == ("the rebalancer", "STICKY", "7.3")
    assert (view.queues[0].owner, view.queues[0].reason, view.idle) == ("m1", "m1 joined", {"m2": "too many"})


@pytest.mark.parametrize("error", [NotImplementedYet("none"), ConnectionFailed("away")])
def test_without_a_rebalancers_word_locks_explain(error: evenq.errors.Error) -> None:
    details = admin_pb2.DescribeGroupResponse(status=OK)
    details.summary.group = "g"
    details.summary.balance.weight = ""
    details.queues.add(queue=QUEUE, owner="m1")
    details.queues.add(queue=common_pb2.Queue(topic="u", broker_name="a"))
    details.members.append(groups_pb2.Member(client_id="m1", protocol="evenq", zone="z"))
    details.members.append(groups_pb2.Member(client_id="m2", protocol="v2"))
    net = Net(assignment_pb2.ExplainResponse(status=status_of(error)), details)
    view = asyncio.run(admin(net).explain_group("g", "t"))
    assert [(row.queue.topic, row.owner, row.state, row.owner_zone) for row in view.queues] == [
        ("t", "m1", "OWNED", "z")
    ]
    assert view.idle == {"m2": "it receives single messages and needs no lock"}
    assert ("no rebalancer" in view.decides) == isinstance(error, NotImplementedYet)


def test_a_simulation_is_asked_for_each_topic_that_was_decided() -> None:
    response = assignment_pb2.SimulateResponse(status=OK, moves=1, queues_per_member_min=1, queues_per_member_max=2)
    response.queues.add(queue=QUEUE, owner="m2", previous_owner="m1")
    response.queues.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=2), owner="m1", previous_owner="m1")
    net = Net(explained(), response)
    wish: dict[str, Any] = {"topic": "", "members": 2, "queues": 0, "strategy": "", "lose_zone": ""}
    (view,) = asyncio.run(admin(net).simulate_group("g", **wish))
    assert (view.topic, view.queues, view.moved, view.share_min, view.share_max) == ("t", 2, 1, 1, 2)
    assert [(move.before, move.after) for move in view.moves] == [("m1", "m2")]
    assert [method for method, _ in net.calls] == ["/evenq.v1.Assignment/Explain", "/evenq.v1.Assignment/Simulate"]
    for change, answers in (({"members": 0}, ()), ({}, (assignment_pb2.ExplainResponse(status=OK),))):
        with pytest.raises(BadRequest):
            asyncio.run(admin(Net(*answers)).simulate_group("g", **(wish | change)))


@pytest.mark.parametrize("number", [-1, 1_000_000_000, 1 << 63])
def test_a_number_that_no_copy_can_have_is_refused_before_anything_is_asked(number: int) -> None:
    net = Net()
    calls = admin(net)
    for work in (
        calls.move_leader("b", to=number, epoch=0),
        calls.add_copy("b", number, "db4:8083"),
        calls.remove_copy("b", number),
        calls.elect_unclean("b", number, accept_data_loss=True, reason="", despite_better=False, epoch=0),
    ):
        with pytest.raises(BadRequest, match=f"copy {number}: copies have numbers from 0 to 999999999"):
            asyncio.run(work)
    assert net.calls == []


@pytest.mark.parametrize("copies", [0, 10, 1 << 63])
def test_no_more_copies_can_be_needed_than_a_group_can_have(copies: int) -> None:
    with pytest.raises(BadRequest, match=f"{copies} copies cannot be required: a broker group has 1 to 9"):
        asyncio.run(admin(Net()).set_in_sync_min("b", copies))
