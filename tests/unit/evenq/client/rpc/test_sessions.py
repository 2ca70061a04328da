"""A member's words on its line to a broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evenq.client.core.calls import Join, Leave
from evenq.client.rpc.sessions import RpcConsumerCalls
from evenq.model import FilterExpression, MessageModel
from evenq.wire.stubs.evenq.v1 import groups_pb2


class Net:
    """Takes what is said, and answers nothing."""

    def __init__(self) -> None:
        self.heard: list[groups_pb2.SessionRequest] = []

    async def stream(self, _address: str, _method: str, requests: Any, **_: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.heard.append(groups_pb2.SessionRequest.FromString(request))
        for event in ():
            yield event


def said(*words: Join | Leave | None) -> list[groups_pb2.SessionRequest]:
    """The words as they arrive."""

    async def requests() -> AsyncIterator[Join | Leave | None]:
        for word in words:
            yield word

    async def story() -> list[groups_pb2.SessionRequest]:
        net: Any = Net()
        calls = RpcConsumerCalls(net, endpoint="broker:1", client_id="me")
        assert [event async for event in calls.session("broker:1", requests())] == []
        return net.heard  # type: ignore[no-any-return]

    return asyncio.run(story())


def test_a_join_tells_who_we_are_and_beats_and_the_goodbye_follow_it() -> None:
    join = Join("g", MessageModel.CLUSTERING, {"t": FilterExpression("a")}, 7, instance="web-0", incarnation=5)
    first, beat, goodbye = said(join, None, Leave())
    member = first.join.member
    assert (first.join.group, first.join.incarnation, member.client_id, member.instance) == ("g", 5, "me", "web-0")
    assert [(wanted.topic, wanted.filter.expression, wanted.version) for wanted in member.subscriptions] == [
        ("t", "a", 7)
    ]
    assert (beat.WhichOneof("request"), goodbye.WhichOneof("request")) == ("beat", "leave")


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_broker_that_closes_is_told_whether_to_wait_for_us(hands_over: bool) -> None:
    (first,) = said(Join("g", MessageModel.CLUSTERING, {}, 7, hands_over=hands_over))
    assert first.join.hands_over is hands_over
