"""The handlers, without a network."""

from __future__ import annotations

import asyncio

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, EngineLimits
from evenq_rebalancer.core.decisions import decide
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, MemberFact, TopicFact
from evenq_rebalancer.core.sharing import named
from evenq_rebalancer.rpc import assignment as telling
from evenq_rebalancer.rpc.assignment import AssignmentService, DecisionEncoder
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.rpc.translation import report_of

from evenq.errors import BadRequest, GroupNotFound, IllegalGroup, PreconditionFailed
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb

CONTEXT = RpcContext("m", (), "1.2.3.4:5", None)


class Desk:
    """Handlers over a engine that broker `b` has reported of group `g`, topic `T`."""

    def __init__(self, *ids: str, queues: int = 4) -> None:
        self.pokes = 0
        self.engine = AssignmentEngine(epoch=5, limits=EngineLimits(warm_up_ms=0))
        self.streams = ReportStreams()
        self.assignment = AssignmentService(self.engine, self.streams, clock=FakeClock(), poke=self.poke)
        self.engine.facts.opened("b", 0)
        members = tuple(MemberFact(client_id=own, topics=("T",)) for own in ids)
        group = GroupFact(group="g", strategy="AVG", members=members)
        topic = TopicFact(topic="T", read_queues=queues)
        self.engine.reported(0, BrokerReport(broker_name="b", groups=(group,), topics=(topic,)), now_ms=0)

    def poke(self) -> None:
        self.pokes += 1

    def call(self, name, request, response):
        answer = asyncio.run(getattr(self.assignment, name)(request.SerializeToString(), CONTEXT))
        return response.FromString(answer)


def test_a_query_is_answered_with_queues_mode_and_generation_and_pokes_for_the_others() -> None:
    desk = Desk("a", "b")
    request = pb.AssignmentRequest(group="g", topic="T", client_id="b")
    answer = desk.call("query", request, pb.AssignmentResponse)
    assert (answer.status.code, answer.known, answer.strategy) == (20000, True, "AVG")
    assert [(row.queue.broker_name, row.queue.queue_id, row.mode) for row in answer.queues] == [
        ("b", 2, 0),
        ("b", 3, 0),
    ]
    assert (answer.generation.epoch, answer.generation.counter) == (5, 1)
    assert desk.pokes == 1


def test_explain_and_simulate_tell_rows() -> None:
    desk = Desk("a", "b", "c", queues=2)
    explained = desk.call("explain", pb.ExplainRequest(group="g"), pb.ExplainResponse)
    assert [(row.queue.queue_id, row.owner) for row in explained.queues] == [(0, "a"), (1, "b")]
    assert (list(explained.idle_members), explained.strategy) == (["c"], "AVG")
    assert [(row.client_id, row.reason) for row in explained.idle] == [
        ("c", "3 members share 2 queues; add queues, or run 2 members at most")
    ]
    assert {row.state for row in explained.queues} == {"OWNED"}
    assert {(row.generation.epoch, row.generation.counter) for row in explained.queues} == {(5, 1)}
    assert list(explained.problems) == []
    asked = pb.SimulateRequest(group="g", topic="T", members=1)
    simulated = desk.call("simulate", asked, pb.SimulateResponse)
    assert [(row.owner, row.previous_owner) for row in simulated.queues] == [("a", "a"), ("a", "b")]
    assert (simulated.moves, simulated.queues_per_member_min, simulated.queues_per_member_max) == (1, 2, 2)
    with pytest.raises(GroupNotFound):
        desk.call("explain", pb.ExplainRequest(group="other"), pb.ExplainResponse)


def test_request_modes_are_set_and_read() -> None:
    desk = Desk("a")
    asked = pb.GetMessageRequestModeRequest(group="g", topic="T")
    assert desk.call("get_message_request_mode", asked, pb.GetMessageRequestModeResponse).mode == pb.PULL
    request = pb.SetMessageRequestModeRequest(group="g", topic="T", mode=pb.POP, pop_share_queue_num=3)
    desk.call("set_message_request_mode", request, pb.SetMessageRequestModeResponse)
    answer = desk.call("get_message_request_mode", asked, pb.GetMessageRequestModeResponse)
    assert (answer.mode, answer.pop_share_queue_num) == (pb.POP, 3)
    with pytest.raises(IllegalGroup):
        desk.call("set_message_request_mode", pb.SetMessageRequestModeRequest(topic="T"), pb.AssignmentResponse)


def reports(*messages: pb.BrokerReport | bytes, forever: bool = False):
    async def stream():
        for message in messages:
            yield message if isinstance(message, bytes) else message.SerializeToString()
        if forever:
            await asyncio.Event().wait()

    return stream()


async def test_a_stream_that_ends_by_itself_ends_the_answers_and_starts_the_grace() -> None:
    desk = Desk("a")
    answers = desk.assignment.report(reports(pb.BrokerReport(broker_name="b2", full=True)), CONTEXT)
    assert [answer async for answer in answers] == []
    assert desk.engine.facts.brokers == ["b", "b2"]
    assert desk.engine.facts.next_expiry_ms() == 10_000
    assert len(desk.streams) == 0


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xff",
        pb.BrokerReport(),
        pb.BrokerReport(broker_name="b3"),
        pb.BrokerReport(broker_name="b2", groups=[pb.GroupFacts(group="a b")]),
    ],
)
async def test_a_bad_report_ends_the_stream_with_its_error(bad) -> None:
    desk = Desk("a")
    good = pb.BrokerReport(broker_name="b2", full=True)
    with pytest.raises(BadRequest):
        async for _ in desk.assignment.report(reports(good, bad, forever=True), CONTEXT):
            pass
    assert len(desk.streams) == 0


async def test_a_newer_stream_of_the_same_broker_wins() -> None:
    desk = Desk("a")
    wanted, report = asyncio.Event(), pb.BrokerReport(broker_name="b2", full=True)

    async def late():
        yield report.SerializeToString()
        await wanted.wait()
        yield report.SerializeToString()

    async def drain(requests) -> None:
        async for _ in desk.assignment.report(requests, CONTEXT):
            pass

    async with asyncio.TaskGroup() as group:
        old = group.create_task(_raised(drain(late())))
        for _ in range(10):
            await asyncio.sleep(0)
        assert "b2" in desk.engine.facts.brokers
        new = group.create_task(drain(reports(report, forever=True)))
        for _ in range(10):
            await asyncio.sleep(0)
        wanted.set()
        assert isinstance(await old, PreconditionFailed)
        assert desk.engine.facts.next_expiry_ms() is None
        new.cancel()


async def _raised(coroutine):
    try:
        await coroutine
    except Exception as error:  # noqa: BLE001  the test looks at it
        return error
    return None


def test_every_call_has_an_access_row_and_a_method_of_the_contract() -> None:
    desk = Desk("a")
    methods = {rpc.method for rpc in desk.assignment.rpcs()}
    service = pb.DESCRIPTOR.services_by_name["Assignment"]
    assert methods == {f"/{service.full_name}/{method.name}" for method in service.methods}


async def test_a_report_tells_where_its_broker_is_and_explain_tells_zones_and_problems() -> None:
    desk = Desk("a")
    desk.engine.facts.set_places(lambda address: f"zone of {address}", lambda _: None)
    report = pb.BrokerReport(broker_name="b2", full=True)
    report.topics.add(name="T", read_queues=1)
    group = report.groups.add(group="g", strategy="AVG")
    group.members.add(client_id="a", zone="mine").subscriptions.add(topic="T")
    answers = desk.assignment.report(reports(report, forever=True), CONTEXT)
    reading = asyncio.ensure_future(anext(answers))
    for _ in range(10):
        await asyncio.sleep(0)
    data = await desk.assignment.explain(pb.ExplainRequest(group="g").SerializeToString(), CONTEXT)
    rows = pb.ExplainResponse.FromString(data).queues
    assert [(row.owner_zone, row.broker_zone) for row in rows][-1] == ("mine", "zone of 1.2.3.4")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def test_explain_tells_of_a_strategy_that_fails() -> None:
    desk = Desk("a")
    group = GroupFact(group="g", strategy="NO_SUCH", members=(MemberFact(client_id="a", topics=("T",)),))
    desk.engine.reported(0, BrokerReport(broker_name="b", groups=(group,)), now_ms=0)
    explained = desk.call("explain", pb.ExplainRequest(group="g"), pb.ExplainResponse)
    (problem,) = explained.problems
    assert problem.startswith("T: NO_SUCH cannot decide: ")
    assert explained.strategy == "STICKY"


def test_simulate_counts_what_crosses_zones_and_loses_one() -> None:
    desk = Desk()
    members = tuple(MemberFact(client_id=own, topics=("T",), zone=own) for own in ("z1", "z2"))
    group = GroupFact(group="g", strategy="AVG", members=members)
    desk.engine.reported(0, BrokerReport(broker_name="b", groups=(group,), zone="z1"), now_ms=0)
    request = pb.SimulateRequest(group="g", topic="T", lose_zone="z2")
    response = desk.call("simulate", request, pb.SimulateResponse)
    assert (response.cross_zone_now, response.cross_zone_then, response.moves) == (2, 0, 2)
    with pytest.raises(BadRequest, match="known zones: z1, z2"):
        desk.call("simulate", pb.SimulateRequest(group="g", topic="T", lose_zone="z9"), pb.SimulateResponse)


async def test_a_set_mode_is_told_to_brokers_with_the_decision_and_taken_back_from_them() -> None:
    desk = Desk("a", "b", "c", "d")
    asked = pb.SetMessageRequestModeRequest(group="g", topic="T", mode=pb.POP, pop_share_queue_num=1)
    await desk.assignment.set_message_request_mode(asked.SerializeToString(), CONTEXT)
    desk.engine.settle(now_ms=0, wall_ms=0)
    first = pb.BrokerReport(broker_name="b2", full=True)
    answers = desk.assignment.report(reports(first, forever=True), CONTEXT)
    response = pb.Decision.FromString(await anext(answers))
    assert (response.set_mode.topic, response.set_mode.mode, response.set_mode.pop_share_queue_num) == (
        "T",
        pb.POP,
        1,
    )
    assert response.set_mode.generation == response.generation
    await answers.aclose()
    report = pb.BrokerReport(broker_name="b")
    report.groups.add(group="g", modes=[response.set_mode])
    (fact,) = report_of(report).groups
    assert fact.modes[0].setting.pop_share_queue_num == 1


def decided(*ids: str, queues: int = 4, strategy: str = "AVG", mode=None, broadcasting: str = "", held=None):
    members = [MemberFact(client_id=own, topics=("T",)) for own in ids]
    if broadcasting:
        members.append(MemberFact(client_id=broadcasting, model=MessageModel.BROADCASTING))
    rows = tuple(MessageQueue("T", broker, number) for broker in ("b1", "b2") for number in range(queues // 2))
    inputs = Inputs(strategy=strategy, mode=mode, queues=rows, members=tuple(members), topic="T", held=held or {})
    return decide(
        group="g",
        topic="T",
        inputs=inputs,
        before=None,
        generation=Generation(7, 3),
        now_ms=1,
        by=lambda name: named(name, ()),
    )


def sent(decision) -> assignment_pb2.Decision:
    return assignment_pb2.Decision.FromString(DecisionEncoder().bytes_of(decision))


def shares(message) -> dict[str, list[tuple[str, list[int]]]]:
    return {
        member.client_id: [(part.broker_name, list(part.queue_ids)) for part in member.share.queues]
        for member in message.shares.members
    }


def test_each_member_finds_its_share_by_broker_and_who_has_none_is_named_too() -> None:
    message = sent(decided("a", "b", "c", queues=2))
    assert (message.group, message.topic, message.generation.counter) == ("g", "T", 3)
    assert shares(message) == {"a": [("b1", [0])], "b": [("b2", [0])], "c": []}
    assert {member.share.strategy for member in message.shares.members} == {"AVG"}


def test_broadcasting_members_are_not_among_those_that_share() -> None:
    assert list(shares(sent(decided("a", queues=2, broadcasting="z")))) == ["a"]


@pytest.mark.parametrize(
    "decision",
    [
        decided("a", "b", strategy=""),
        decided("a", "b", "c", mode=RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=2)),
    ],
    ids=["all brokers to everybody", "shared by several"],
)
def test_without_one_owner_each_members_must_ask(decision) -> None:
    assert not sent(decision).HasField("shares")


def test_too_many_queues_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "SHARED_QUEUES_MAX", 3)
    assert not sent(decided("a", queues=4)).HasField("shares")
    assert sent(decided("a", queues=2)).HasField("shares")


def test_the_bytes_are_made_once_for_all_streams_and_anew_for_the_next_decision(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(telling, "KEPT_MAX", 1)
    one, decision, after = DecisionEncoder(), decided("a"), decided("a", "b")
    assert one.bytes_of(decision) is one.bytes_of(decision)
    assert one.bytes_of(after) != one.bytes_of(decision)


def test_what_waits_for_successors_is_told_by_place_and_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Hold(client_id="x", place="instance web-0", until_ms=5, until_wall_ms=1_005)
    second = Hold(client_id="y", place="instance web-1", until_ms=6, until_wall_ms=1_006)
    held = {MessageQueue("T", "b1", 0): first, MessageQueue("T", "b1", 1): second, MessageQueue("T", "b2", 1): first}
    message = sent(decided("a", queues=4, held=held))
    assert [
        (place.client_id, place.place, place.until_wall_ms, [(q.broker_name, list(q.queue_ids)) for q in place.queues])
        for place in message.held
    ] == [
        ("x", "instance web-0", 1_005, [("b1", [0]), ("b2", [1])]),
        ("y", "instance web-1", 1_006, [("b1", [1])]),
    ]
    assert shares(message) == {"a": [("b2", [0])]}
    assert not sent(decided("a", strategy="", held=held)).held, "all members read all queues"
    monkeypatch.setattr(telling, "SHARED_QUEUES_MAX", 2)
    assert not sent(decided("a", queues=4, held=held)).held
