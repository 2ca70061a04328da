"""Signs of life, and their end (wire contract 3.5, 3.6)."""

from typing import Any

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

OK = 20000


async def beat(stage: Any, *, client: str = "c", group: str = "g") -> int:
    request = service_pb2.HeartbeatRequest(client_type=definition_pb2.PUSH_CONSUMER)
    request.group.name = group
    return int((await stage.ask("Heartbeat", request, service_pb2.HeartbeatResponse, client=client)).status.code)


async def end(stage: Any, *, client: str = "c", language: str = "JAVA") -> int:
    request, response = service_pb2.NotifyClientTerminationRequest(), service_pb2.NotifyClientTerminationResponse
    answer = await stage.ask("NotifyClientTermination", request, response, client=client, language=language)
    return int(answer.status.code)


async def test_a_heartbeat_makes_and_keeps_a_member(stage: Any) -> None:
    broker = await stage.broker(client_silence_ms=5_000)
    for _ in range(4):
        assert await beat(stage) == OK
        await stage.clock.advance(4_000)
    client = broker.clients.table.get("c")
    assert (client.group, client.client_type) == ("g", definition_pb2.PUSH_CONSUMER)


async def test_a_client_without_an_id_or_group_is_answered_ok_and_remembered_as_far_as_it_goes(stage: Any) -> None:
    broker = await stage.broker()
    assert await beat(stage, client="") == OK
    assert len(broker.clients.table) == 0
    assert await beat(stage, group="") == OK
    assert broker.clients.table.get("c").group == ""
    assert await end(stage, client="") == OK
    assert await end(stage, client="never seen") == OK


async def test_a_goodbye_ends_the_membership_at_once(stage: Any) -> None:
    broker = await stage.broker()
    await beat(stage)
    await beat(stage, client="other")
    assert await end(stage) == OK
    assert broker.clients.table.get("c") is None
    assert [member.client_id for member in broker.membership.members.members("g")] == ["other"]


async def test_a_full_table_is_told(stage: Any) -> None:
    await stage.broker(clients_max=1)
    assert await beat(stage) == OK
    assert await beat(stage, client="second") == 42900
