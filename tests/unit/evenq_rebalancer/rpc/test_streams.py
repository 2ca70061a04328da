"""What waits for a broker."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.decisions import decide
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.sharing import named
from evenq_rebalancer.rpc.streams import DecisionOutbox, ReportStreams

from evenq.errors import TooManyRequests
from evenq.model import Generation


def decision(group: str, counter: int):
    inputs = Inputs(strategy="AVG", mode=None, queues=(), members=())
    return decide(
        group=group,
        topic="T",
        inputs=inputs,
        before=None,
        generation=Generation(1, counter),
        now_ms=0,
        by=lambda name: named(name, ()),
    )


async def test_only_the_newest_decision_of_a_pair_waits() -> None:
    outbox = DecisionOutbox()
    for group, counter in (("g1", 1), ("g2", 2), ("g1", 3)):
        outbox.put(decision(group, counter))
    assert [(d.group, d.generation.counter) for d in await outbox.take()] == [("g1", 3), ("g2", 2)]
    outbox.wake()
    assert await outbox.take() == []


async def test_a_stream_with_too_much_waiting_is_ended() -> None:
    outbox = DecisionOutbox(waiting_max=2)
    for counter in range(3):
        outbox.put(decision(f"g{counter}", counter))
    with pytest.raises(TooManyRequests, match="open the stream again"):
        await outbox.take()


async def test_all_open_streams_are_told_and_closed_ones_are_not() -> None:
    streams = ReportStreams()
    (first, one), (second, two) = streams.open(), streams.open()
    assert second > first
    streams.close(first)
    streams.publish([decision("g", 1)])
    assert len(await two.take()) == 1
    assert len(streams) == 1
    one.wake()
    assert await one.take() == []
