"""What commands share: creating on every broker, waiting for what has just started, over a net that is a script."""

import asyncio
import random

import pytest

from evenq.cli.__main__ import main
from evenq.cli.admin import on_every_broker
from evenq.cli.topic.commands import create_topic
from evenq.cli.up.ready import wait_served
from evenq.client.async_admin import Admin
from evenq.client.rpc.transport import AccessPointSilent
from evenq.client.wiring import ClientContext
from evenq.errors import ConnectionFailed, IllegalTopic, RequestTimeout
from evenq.runtime.clock import FakeClock
from evenq.wire.stubs.evenq.v1 import admin_pb2

OK = 20000


class ScriptNet:
    """Answers methods from a table; remembers the calls."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    async def unary(self, address, method, request, *, timeout_ms, metadata=None):
        name = method.rpartition("/")[2]
        self.calls.append((address, name, request))
        answer = self.answers[name]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        answer.status.code = answer.status.code or OK
        return answer.SerializeToString()

    async def close(self):
        """Nothing to end."""


def admin(**answers):
    net = ScriptNet(**answers)
    service = Admin(endpoint="h:1", context=ClientContext(clock=FakeClock(), rng=random.Random(1), net=net))
    service.net = net
    return service


def test_the_answers_status_is_raised_as_the_error_it_means():
    response = admin_pb2.CreateTopicResponse()
    response.status.code, response.status.message = 40002, "topic 'a b' holds a blank"
    with pytest.raises(IllegalTopic, match="holds a blank"):
        asyncio.run(create_topic(admin(CreateTopic=response), "a b", queues=0, message_type="NORMAL"))


def test_nobody_there_names_the_next_command(monkeypatch, capsys):
    monkeypatch.setattr(ClientContext, "open_net", lambda _: ScriptNet(CreateTopic=ConnectionFailed("x")))
    assert main(["topic", "create", "a", "--endpoint", "h:1"]) == 5
    assert "no server answers at h:1; start one with `evenq up`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConnectionFailed("connection attempt timed out before receiving SETTINGS frame"),
            "h:1 accepted a connection and did not answer in time. It may be busy: try again",
        ),
        (
            RequestTimeout("h:1 did not answer ListTopics within 10000 ms"),
            "h:1 did not answer ListTopics within 10000 ms. The server may be busy: try again, or use --timeout 30",
        ),
    ],
)
def test_a_server_that_is_busy_is_not_reported_as_absent(monkeypatch, capsys, error, said):
    monkeypatch.setattr(ClientContext, "open_net", lambda _: ScriptNet(ListTopics=error))
    assert main(["topic", "list", "--endpoint", "h:1"]) != 0
    output = capsys.readouterr().err
    assert said in output
    assert "start one" not in output


def test_a_topic_that_did_not_land_everywhere_is_an_error_that_names_the_broker():
    response = admin_pb2.CreateTopicResponse()
    response.placements.add(broker_name="broker-a")
    response.placements.add(broker_name="broker-b", error="no answer")
    with pytest.raises(ConnectionFailed, match=r"broker-b \(no answer\)"):
        asyncio.run(create_topic(admin(CreateTopic=response), "a", queues=4, message_type="FIFO"))


def cluster(brokers, *, rebalancer):
    response = admin_pb2.DescribeClusterResponse(rebalancer_answers=rebalancer)
    for _ in range(brokers):
        response.brokers.add(answered=True)
    return response


async def waited(service, clock):
    waiting = asyncio.ensure_future(wait_served(service, brokers=2, clock=clock))
    for _ in range(4_000):
        if waiting.done():
            break
        await clock.advance(10)
    await waiting


def test_a_cluster_is_served_when_all_brokers_and_the_rebalancer_answer():
    answers = [ConnectionFailed("x"), cluster(1, rebalancer=True), cluster(2, rebalancer=False)]
    service = admin(DescribeCluster=[*answers, cluster(2, rebalancer=True)])
    asyncio.run(waited(service, FakeClock()))
    assert len(service.net.calls) == 4


def test_a_cluster_that_never_is_whole_times_out_and_says_what_is_missing():
    with pytest.raises(RequestTimeout, match="1 of 2 brokers, rebalancer answers"):
        asyncio.run(waited(admin(DescribeCluster=cluster(1, rebalancer=True)), FakeClock()))


def partly():
    response = admin_pb2.CreateGroupResponse()
    response.status.code, response.status.message = 50400, "not on every broker (broker-b: name not found)"
    return response


async def created(service, clock):
    work = on_every_broker(lambda: service.create_group("g"), clock=clock)
    creating = asyncio.ensure_future(work)
    for _ in range(100):
        if creating.done():
            break
        await clock.advance(500)
    await creating


def test_a_broker_whose_name_is_not_known_yet_is_waited_for():
    service = admin(CreateGroup=[partly(), partly(), admin_pb2.CreateGroupResponse()])
    asyncio.run(created(service, FakeClock()))
    assert len(service.net.calls) == 3


def test_a_broker_that_stays_away_is_named_in_the_end():
    clock = FakeClock()
    with pytest.raises(ConnectionFailed, match="broker-b"):
        asyncio.run(created(admin(CreateGroup=partly()), clock))
    assert clock.monotonic_ms() >= 45_000


def test_an_access_point_that_does_not_answer_is_not_waited_for():
    service = admin(CreateGroup=ConnectionFailed("x"))
    with pytest.raises(AccessPointSilent, match="x"):
        asyncio.run(created(service, FakeClock()))
    assert len(service.net.calls) == 1
