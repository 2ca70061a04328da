"""The metrics of staged rows follow them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_broker.metrics.staging_metrics import staging_metrics

from evenq.wire.stubs.evenq.v1 import staging_pb2
from tests.unit.evenq_broker.staged import DECIDE, STAGE, block, decide, stage


def test_rows_wait_are_published_and_dropped(run: Callable[[Callable[[Any], Awaitable[None]]], None]) -> None:
    async def story(scene: Any) -> None:
        broker = await scene.broker()
        await scene.during(broker.catalog.create_topic("t", queues=1))

        def read() -> dict[str, Any]:
            return {
                metric.name.removeprefix("evenq_broker_"): dict(metric.read())
                for metric in staging_metrics(staging=broker.staging)
            }

        await scene.call(STAGE, stage(block(["a", "b"])), staging_pb2.StageResponse)
        await scene.call(STAGE, stage(block(["c"]), token="lost"), staging_pb2.StageResponse)
        found = read()
        assert found["staged_rows"] == {(): 3}
        assert found["staged_bytes"][()] > 0
        await scene.call(DECIDE, decide({"a": ["a"]}), staging_pb2.DecideResponse)
        found = read()
        assert (found["staged_rows"], found["staged_bytes"]) == ({(): 0}, {(): 0})
        assert found["staged_rows_total"] == {("staged",): 3, ("published",): 2, ("dropped",): 1}
        assert found["stagings_dropped_total"] == found["staging_decisions_total"] == {(): 1}
        assert found["staging_decisions_open"] == {(): 0}

    run(story)
