"""readFrom=any with a real Spark: three copies of a broker, leaders that are killed between planning and reading, a
follower that was cut off, and a stream over a failover (HA-9).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.replicated_group import figure, group, in_sync, leader_of
from evenq_proofs.waiting import until
from pyspark_evenq.brokers import connection

import evenq
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

pytestmark = pytest.mark.timeout(400)

TOPIC = "flights"
QUEUES = 4
SCHEMA = "queueId int, queueOffset long, body binary"
Row = tuple[int, int, str]
"""Queue id, offset, body."""


@contextmanager
def copies(folder: Path, **settings: str) -> Iterator[tuple[LocalCluster, Node]]:
    """Three copies of broker-a, and broker-b, which is alone and knows the routes whatever happens to the others."""
    with group(folder, **settings) as cluster:
        alone = cluster._broker("b", 0, {"ROUTE_SETTLE_MS": "0"})
        alone.start()
        try:
            in_sync(cluster, 3)
            with evenq.Admin(endpoint=cluster.endpoints) as admin:
                admin.create_topic(TOPIC, queues=QUEUES, brokers={"broker-a": QUEUES})
            until(lambda: routed(alone), "broker-b knows the topic")
            yield cluster, alone
        finally:
            alone.kill()


def routed(node: Node) -> bool:
    from pyspark_evenq.brokers import cluster as calls

    try:
        return bool(calls.locate([node.address], [TOPIC]).followers)
    except evenq.errors.Error:
        return False


def send(cluster: LocalCluster, first: int, count: int) -> list[Row]:
    """So many more messages on each queue, all acknowledged."""
    address, rows = leader_of(cluster).address, []
    for queue_id in range(QUEUES):
        messages = []
        for number in range(first, first + count):
            message = definition_pb2.Message(body=f"{queue_id}/{number}".encode())
            message.system_properties.message_id = f"{queue_id}-{number}"
            messages.append(message)
            rows.append((queue_id, number, f"{queue_id}/{number}"))
        request = data_pb2.PublishRequest(
            queue=common_pb2.Queue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id), messages=messages
        )
        response = connection.unary(address, "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000)
        check(data_pb2.PublishResponse.FromString(response).status)
    return rows


def followers_of(cluster: LocalCluster) -> tuple[Node, Node, Node]:
    leader = leader_of(cluster)
    left, other = (node for node in cluster.brokers if node is not leader)
    return leader, left, other


def knows_all(leader: Node, follower: Node) -> bool:
    end = figure(leader, "evenq_broker_replica_committed_end")
    return 0 < end <= figure(follower, "evenq_broker_replica_committed_end")


def loaded(spark: Any, alone: Node, **options: Any) -> Any:
    given = {"endpoints": alone.address, "subscribe": TOPIC, "readFrom": "any", **options}
    return spark.read.format("evenq").schema(SCHEMA).options(**given).load()


def rows_of(frame: Any) -> list[Row]:
    return sorted((row.queueId, row.queueOffset, row.body.decode()) for row in frame.collect())


def collected(frame: Any, gate: Path, meanwhile: Callable[[], object]) -> list[Row]:
    """The rows; the first tasks stop when they have read until `meanwhile` is over, so that the others begin after."""

    def wait(rows: Iterator[Any]) -> Iterator[Row]:
        read = [(row.queueId, row.queueOffset, row.body.decode()) for row in rows]
        (gate.parent / "begun").touch()
        end = time.monotonic() + 200
        while not gate.exists() and time.monotonic() < end:
            time.sleep(0.02)
        return iter(read)

    outcome: dict[str, Any] = {}

    def collect() -> None:
        try:
            outcome["rows"] = frame.rdd.mapPartitions(wait).collect()
        except Exception as error:  # noqa: BLE001  handed to the test
            outcome["error"] = error

    reading = threading.Thread(target=collect)
    reading.start()
    try:
        until(lambda: (gate.parent / "begun").exists() or not reading.is_alive(), "a task has read")
        meanwhile()
    finally:
        gate.touch()
        reading.join(200)
    if "error" in outcome:
        raise outcome["error"]
    return sorted(tuple(row) for row in outcome["rows"])


@pytest.mark.spec("HA-9")
def test_a_batch_is_read_whole_though_nobody_leads_since_it_was_planned(spark: Any, tmp_path: Path) -> None:
    """The leader and a follower are killed with -9 when the plan is made and two of eight tasks have read: the others read
    what was planned from the copy that is left. Then a read is planned by what that copy knows, too.
    """
    with copies(tmp_path / "cluster") as (cluster, alone):
        rows = send(cluster, 0, 100)
        leader, left, other = followers_of(cluster)
        until(lambda: knows_all(leader, left), "the follower knows that all is committed")

        def killed() -> None:
            other.kill()
            leader.kill()

        frame = loaded(spark, alone, maxRecordsPerPartition=50)
        assert collected(frame, tmp_path / "gate", killed) == sorted(rows)
        assert figure(left, "evenq_broker_replica_role", 'role="ready"') == 0, "nobody leads"
        assert figure(left, "evenq_broker_replica_messages_out_total") > 0
        assert rows_of(loaded(spark, alone)) == sorted(rows)
        with pytest.raises(Exception, match=r"no broker answers for flights on broker-a"):
            rows_of(loaded(spark, alone, readFrom="leader", readTimeoutMs=1_500))


@pytest.mark.spec("HA-9")
def test_a_follower_that_was_cut_off_shows_what_it_knows_and_is_no_loss(spark: Any, tmp_path: Path) -> None:
    """It was paused while the others took more, and they are gone now: a read gives what it knows to be committed, and one
    that is to go further waits for a leader and names what is there. Once there is one, everything comes.
    """
    with copies(tmp_path / "cluster") as (cluster, alone):
        rows = send(cluster, 0, 20)
        leader, cut_off, other = followers_of(cluster)
        until(lambda: knows_all(leader, cut_off), "the follower knows that all is committed")
        cluster.pause(cut_off)
        more = send(cluster, 20, 20)
        for node in (other, leader):
            node.kill()
        cut_off.resume()
        assert rows_of(loaded(spark, alone)) == sorted(rows)
        ends = f'{{"{TOPIC}": {{"broker-a": {{"0": 40}}}}}}'
        with pytest.raises(Exception, match=r"its follower knows offsets 0 to 20"):
            rows_of(loaded(spark, alone, endingOffsets=ends, readTimeoutMs=1_500))
        leader.restart()
        other.restart()
        leader_of(cluster)
        assert rows_of(loaded(spark, alone)) == sorted(rows + more)


@pytest.mark.slow
@pytest.mark.spec("HA-9")
def test_a_stream_reads_everything_once_over_a_failover(spark: Any, tmp_path: Path) -> None:
    """Its leader is killed with -9 between a batch's plan and its tasks; group and progress wait for the next leader."""
    with copies(tmp_path / "cluster") as (cluster, alone):
        rows = send(cluster, 0, 60)
        leader, left, other = followers_of(cluster)
        until(lambda: knows_all(leader, left) and knows_all(leader, other), "the followers know that all is committed")
        batches: dict[int, list[Row]] = {}

        def take(frame: Any, number: int) -> None:
            if number == 1:
                leader.kill()
            batches[number] = rows_of(frame)

        given = {
            "endpoints": f"{alone.address},{cluster.endpoints.replace(';', ',')}", "subscribe": TOPIC, "group": "readers",
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": 80, "readFrom": "any",
        }  # fmt: skip
        frame = spark.readStream.format("evenq").schema(SCHEMA).options(**given).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start()
        try:
            until(lambda: len(batches) > 1 or not query.isActive, "the second batch")
            rows += send(cluster, 60, 10)

            def read() -> list[Row]:
                return sorted(row for batch in batches.values() for row in batch)

            until(lambda: read() == sorted(rows) or not query.isActive, "all messages came", seconds=200)
            assert query.exception() is None
            assert read() == sorted(rows)
        finally:
            query.stop()
