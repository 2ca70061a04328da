"""What the protocol has and this version does not is answered with its code and a sentence."""

from typing import Any

import pytest

from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2


@pytest.mark.parametrize(
    ("method", "fields", "code", "given"),
    [
        ("EndTransaction", {}, 40008, "transaction id is empty"),
        ("EndTransaction", {"transaction_id": "x" * 500}, 40008, "not made by this broker"),
        ("SyncLiteSubscription", {"action": 9}, 40000, "action 9 is unknown"),
    ],
)
async def test_calls_of_later_versions_say_so(
    stage: Any, method: str, fields: dict[str, str], code: int, given: str
) -> None:
    await stage.broker()
    request = getattr(service_pb2, f"{method}Request")(**fields)
    answer = await stage.ask(method, request, getattr(service_pb2, f"{method}Response"))
    assert (answer.status.code, given in answer.status.message) == (code, True)
    assert len(answer.status.message) < 250


async def test_every_call_of_the_service_is_answered(stage: Any) -> None:
    broker = await stage.broker()
    answered = {rpc.method for rpc in broker.rpcs()}
    for name in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name:
        assert f"/apache.rocketmq.v2.MessagingService/{name}" in answered
