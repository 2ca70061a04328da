"""ListClients: who talks to the cluster, one row a client and group."""

from typing import Any

from evenq_broker.core.groups.members import Member, Protocol

from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

METHOD = "/evenq.v1.Admin/ListClients"


async def beat(stage: Any, client: str, kind: Any, group: str = "") -> None:
    request = service_pb2.HeartbeatRequest(client_type=kind)
    if group:
        request.group.name = group
    await stage.ask("Heartbeat", request, service_pb2.HeartbeatResponse, client=client)


async def test_producers_and_consumers_of_both_protocols_are_listed(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await beat(stage, "sender", definition_pb2.PRODUCER)
    await beat(stage, "pusher", definition_pb2.PUSH_CONSUMER, "g")
    broker.sessions.join("g", Member(client_id="owner", protocol=Protocol.EVENQ, language="PYTHON"))
    await stage.during(broker.sessions.locking.lock("g", "owner", [MessageQueue("t", "a", 0)], wait_ms=0))
    broker.clients.streams.open("pusher")
    answer = await stage.call(METHOD, admin_pb2.ListClientsRequest(), admin_pb2.ListClientsResponse)
    rows = [(c.client_id, c.kind, c.group, c.protocol, len(c.owned), len(c.command_brokers)) for c in answer.clients]
    assert rows == [
        ("sender", "PRODUCER", "", "v2", 0, 0),
        ("owner", "EVENQ_CONSUMER", "g", "evenq", 1, 0),
        ("pusher", "PUSH_CONSUMER", "g", "v2", 0, 1),
    ]
    one_group = await stage.call(METHOD, admin_pb2.ListClientsRequest(group="g"), admin_pb2.ListClientsResponse)
    assert [c.client_id for c in one_group.clients] == ["owner", "pusher"]


async def test_a_client_of_two_brokers_is_one_row_and_a_silent_broker_is_named(stage: Any) -> None:
    broker = await stage.broker()
    await beat(stage, "pusher", definition_pb2.PUSH_CONSUMER, "g")

    async def ask_peers(method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
        assert admin_pb2.ListClientsRequest.FromString(request).local
        there = admin_pb2.ListClientsResponse()
        there.status.code = definition_pb2.OK
        there.clients.add(client_id="pusher", group="g", kind="UNKNOWN", brokers=["b"], inflight=3, last_seen_ms=1)
        return [("b", there.SerializeToString()), ("c", ConnectionFailed("no"))]

    broker.cluster.peers.ask_peers = ask_peers
    answer = await stage.call(METHOD, admin_pb2.ListClientsRequest(), admin_pb2.ListClientsResponse)
    [one] = answer.clients
    assert (list(one.brokers), one.inflight, one.kind) == (["a", "b"], 3, "PUSH_CONSUMER")
    assert one.last_seen_ms > 1
    assert list(answer.silent) == ["c"]
