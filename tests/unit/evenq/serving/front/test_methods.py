"""Everything that a door serves."""

from __future__ import annotations

import pytest
from evenq_proofs.rpcs import fake_rpc

from evenq.serving.front.health import Health
from evenq.serving.front.methods import all_served
from evenq.serving.rpc import Access, Action, Resource

ACCESS = Access(resource=Resource.NONE, action=Action.DESCRIBE)


async def answer(request, context):
    return request


def rpc(method):
    return fake_rpc(method, answer, bytes, access=ACCESS)


def test_health_and_reflection_are_served_beside_a_programs_calls() -> None:
    result = {one.method for one in all_served([rpc("/a.B/C")], Health())}
    assert {"/a.B/C", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"} < result
    assert any("ServerReflection" in method for method in result)


@pytest.mark.parametrize("twice", ["/a.B/C", "/grpc.health.v1.Health/Check"])
def test_a_method_is_served_by_one_call_only(twice: str) -> None:
    with pytest.raises(ValueError, match="two Rpcs have one method"):
        all_served([rpc("/a.B/C"), rpc(twice)], Health())
