"""SIGKILL of a broker at each point of staging, deciding and publishing: each row is a message once, in its order.

The calls are the sink's, without Spark: a task that was not answered stages the same blocks again, a driver decides the
same batch again. `tests/integration/test_spark_sink.py` does it with the sink, `tests/spark/test_14_sink.py` with a real Spark.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark_evenq.brokers import connection
from pyspark_evenq.options.sink import OnDecidedBatch
from pyspark_evenq.sink import cluster as sink_cluster

import evenq
from evenq.runtime.failpoints import COUNTS_VARIABLE, VARIABLE, read_counts
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from tests.unit.evenq_broker.staged import block, stage_rows

BLOCKS, ROWS = 6, 200
QUEUES = 3
POINTS = [
    "staging.staged:3", "staging.deciding:1", "staging.decided:1", "staging.publishing:2", "staging.published:1",
    "staging.rolled:1", "group.written:12",
]  # fmt: skip


pytestmark = pytest.mark.cluster(
    own=True,
    rebalancer=False,
    broker_settings={
        "AUTO_CREATE_TOPICS": "false",
        "STAGING__ASK_INTERVAL_MS": "300",
        "STAGING__GROUP_BYTES": "200000",
        "STORE__SEGMENT_BYTES": "4194304",
    },
)


def revive(broker: Node, ended: threading.Event, done: threading.Event) -> None:
    """Start the broker again when it was killed."""
    while not done.wait(0.05):
        if not broker.alive:
            broker.environment.pop(VARIABLE, None)
            broker.restart()
            ended.set()


def bodies(address: str, topic: str, broker_name: str, queue_id: int) -> list[str]:
    found: list[str] = []
    while True:
        request = data_pb2.PullRequest(
            queue=common_pb2.Queue(topic=topic, broker_name=broker_name, queue_id=queue_id), offset=len(found),
            batch_max=500,
        )  # fmt: skip
        answer = data_pb2.PullResponse.FromString(
            connection.unary(address, "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000)
        )
        if not answer.messages:
            return found
        found += [message.body.decode() for message in answer.messages]


@pytest.mark.parametrize("point", [POINTS[0], *(pytest.param(point, marks=pytest.mark.slow) for point in POINTS[1:])])
@pytest.mark.slow
def test_each_row_is_a_message_once_wherever_its_broker_is_killed(
    cluster: LocalCluster, tmp_path: Path, point: str
) -> None:
    [broker] = cluster.brokers
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("t", queues=QUEUES)
    route = sink_cluster.route_of([cluster.endpoint], "t", timeout_ms=60_000)
    [(name, address)] = route.addresses.items()
    counts = tmp_path / "counts"
    broker.environment |= {VARIABLE: point, COUNTS_VARIABLE: str(counts)}
    broker.restart()
    ended, done = threading.Event(), threading.Event()
    watch = threading.Thread(target=revive, args=(broker, ended, done))
    watch.start()
    try:
        beginning = sink_cluster.BegunBatch(query_id="q", batch_id=0, topic="t", fixed_topic=True)
        sink_cluster.coordinator_of(route.addresses, beginning, timeout_ms=60_000)
        for sequence in range(BLOCKS):
            numbers = range(sequence * ROWS, (sequence + 1) * ROWS)
            rows = block(
                [f"{number} {'x' * (number % 900)}" for number in numbers], tags=[f"t{one % 3}" for one in numbers],
                keys=[[f"k{number}"] for number in numbers], queue_ids=[number % QUEUES for number in numbers],
                first_row=numbers.start,
            )  # fmt: skip
            request = stage_rows(rows, coordinator=name, sequence=sequence).SerializeToString()
            sink_cluster.stage(address, request, timeout_ms=120_000)
        token = stage_rows(rows).token
        winners = [sink_cluster.Winner(token, (name,))]
        for _ in range(2):
            sink_cluster.decide(
                address, "q", 0, ["t"], winners, rows=BLOCKS * ROWS, checksum=1, on_decided=OnDecidedBatch.FAIL,
                timeout_ms=120_000,
            )  # fmt: skip
        assert ended.wait(60), f"{point} was never passed"
    finally:
        done.set()
        watch.join()
    assert read_counts(counts)[point.partition(":")[0]].hit == 1
    for queue_id in range(QUEUES):
        found = [int(body.split()[0]) for body in bodies(address, "t", name, queue_id)]
        assert found == list(range(queue_id, BLOCKS * ROWS, QUEUES))
    broker.kill()  # what is published stays so
    broker.restart()
    assert len(bodies(address, "t", name, 0)) == BLOCKS * ROWS // QUEUES
