"""What the options do, by a real Spark from real brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark_evenq.brokers import connection

import evenq
from evenq.columns.extra_columns import partition_of
from evenq.model.queue import MessageQueue
from evenq.wire.convert import set_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

PLACE = "brokerName string, queueId int, queueOffset long"


@pytest.fixture
def load(spark: Any, topic: Any) -> Callable[..., Any]:
    def load(schema: str | None = PLACE, *, subscribe: bool = True, **options: Any) -> Any:
        reader = spark.read.format("evenq").option("endpoints", topic.endpoints)
        reader = reader.option("subscribe", topic.name) if subscribe else reader
        return (reader.schema(schema) if schema else reader).options(**options).load()

    return load


@pytest.fixture
def follow(spark: Any, topic: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    queries: list[Any] = []

    def follow(*, now: bool = False, **options: Any) -> Any:
        writer = (
            spark.readStream.format("evenq")
            .schema(PLACE)
            .options(**{"endpoints": topic.endpoints, "subscribe": topic.name, "commitIntervalMs": 50} | options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        queries.append((writer.trigger(availableNow=True) if now else writer).start())
        return queries[-1]

    yield follow
    for query in queries:
        query.stop()


def places(frame: Any) -> list[tuple[str, int, int]]:
    return sorted((row.brokerName, row.queueId, row.queueOffset) for row in frame.collect())


def read(query: Any, count: int) -> list[int]:
    """The rows of each batch, once there are this number of them."""
    deadline = time.monotonic() + 60
    while True:
        rows = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        if sum(rows) >= count:
            return rows
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, rows
        time.sleep(0.02)


def later_than_now() -> int:
    """Ms since the epoch; everything sent after the call is stored then or later, everything before it earlier."""
    time_ms = int(time.time() * 1000) + 1
    while time.time() * 1000 < time_ms:
        time.sleep(0.001)
    return time_ms


def by_queue(topic: Any, numbers: dict[int, int]) -> str:
    document: dict[str, dict[str, int]] = {}
    for number, value in numbers.items():
        queue = topic.queues[number]
        document.setdefault(queue.broker_name, {})[str(queue.queue_id)] = value
    return json.dumps({topic.name: document})


def spans(topic: Any, ends: dict[int, tuple[int, int]]) -> list[tuple[str, int, int]]:
    return sorted(
        (topic.queues[number].broker_name, topic.queues[number].queue_id, offset)
        for number, (low, high) in ends.items()
        for offset in range(low, high)
    )


def test_a_pattern_takes_the_topics_whose_whole_names_fit(load: Any, topic: Any) -> None:
    topic.send_each(5)
    number = topic.name.removeprefix("topic-")
    assert places(load(subscribe=False, subscribePattern=f"t[a-z]+-{number}")) == topic.every([5] * 4)
    assert load(subscribe=False, subscribePattern=f"opic-{number}").count() == 0


def test_a_stream_follows_the_topics_of_a_pattern(follow: Any, topic: Any) -> None:
    topic.send_each(5)
    query = follow(subscribe="", subscribePattern=f"{topic.name}", startingOffsets="earliest", group="pattern")
    assert sum(read(query, 20)) == 20


def test_assigned_queues_are_read_and_no_others(load: Any, topic: Any) -> None:
    topic.send_each(5)
    first, last = topic.queues[0], topic.queues[3]
    assigned = {topic.name: {first.broker_name: [first.queue_id], last.broker_name: [last.queue_id]}}
    assert places(load(subscribe=False, assign=json.dumps(assigned))) == spans(topic, {0: (0, 5), 3: (0, 5)})
    assigned[topic.name][first.broker_name] = [9]
    with pytest.raises(Exception, match="which is not a readable queue"):
        load(subscribe=False, assign=json.dumps(assigned)).collect()


def test_times_say_where_to_start_and_to_end(load: Any, topic: Any) -> None:
    topic.send_each(5)
    first = later_than_now()
    topic.send({0: ["x"] * 3, 1: ["x"] * 3})
    second = later_than_now()
    topic.send({0: ["y"]})
    assert places(load(startingTimestamp=first)) == spans(topic, {0: (5, 9), 1: (5, 8)})
    expected = spans(topic, {0: (0, 8), 1: (0, 8), 2: (0, 5), 3: (0, 5)})
    assert places(load(endingTimestamp=second)) == expected
    times = {"startingOffsetsByTimestamp": by_queue(topic, {0: first, 1: second})}
    assert places(load(**times)) == spans(topic, {0: (5, 9), 2: (0, 5), 3: (0, 5)})
    times["endingOffsetsByTimestamp"] = by_queue(topic, {0: second, 2: 1})
    assert places(load(**times)) == spans(topic, {0: (5, 8), 3: (0, 5)})


def test_a_queue_without_a_later_message_is_an_error_or_begins_at_its_end(load: Any, topic: Any) -> None:
    topic.send_each(5)
    times = {"startingTimestamp": later_than_now()}
    assert load(**times, startingOffsetsByTimestampStrategy="latest").count() == 0
    with pytest.raises(Exception, match="was stored at"):
        load(**times, startingOffsetsByTimestampStrategy="error").count()


def test_ending_offsets_end_each_queue(load: Any, topic: Any) -> None:
    topic.send_each(5)
    expected = spans(topic, {0: (0, 2), 1: (0, 5), 2: (0, 5)})
    assert places(load(endingOffsets=by_queue(topic, {0: 2, 1: -1, 3: 0}))) == expected


def test_a_stream_waits_for_a_minimum_of_messages_but_not_longer_than_the_delay(follow: Any, topic: Any) -> None:
    topic.send_each(5)
    query = follow(group="least", startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert read(query, 20) == [20]
    topic.send({0: ["few"] * 9})
    topic.send({1: ["enough"]})
    assert read(query, 30) == [20, 10], "one batch, as soon as there are ten"
    query.stop()
    query = follow(group="least", minOffsetsPerTrigger=1_000, maxTriggerDelay="500ms")
    topic.send({0: ["first"]})
    read(query, 1)
    topic.send({0: ["second"]})
    assert sum(read(query, 2)) == 2


def test_a_stream_takes_about_so_many_bytes_at_once(follow: Any, topic: Any) -> None:
    topic.send_each(50, text="x" * 1_000)
    query = follow(now=True, group="bytes", startingOffsets="earliest", maxBytesPerTrigger=100_000)
    query.awaitTermination(60)
    assert read(query, 200)[:2] == [pytest.approx(99, abs=4)] * 2


def test_tasks_are_split_and_merged(load: Any, topic: Any) -> None:
    topic.send_each(20)
    for options, wanted in (
        ({}, [4]),
        ({"maxPartitions": 3}, [3]),
        ({"maxPartitions": 1}, [1]),
        ({"minPartitions": 8}, [8]),
        ({"maxRecordsPerPartition": 5}, [16]),
        ({"maxRecordsPerPartition": 5, "maxPartitions": 6}, [6]),
    ):
        frame = load(**options)
        assert [frame.rdd.getNumPartitions()] == wanted, options
        assert places(frame) == topic.every([20] * 4)


def test_brokers_send_what_fits_an_sql_filter(load: Any, topic: Any) -> None:
    topic.send({0: ["a", "bb", "ccc"], 2: ["dddd"]})
    rows = load("body binary", sqlFilter="length BETWEEN 2 AND 3").collect()
    assert sorted(bytes(row.body) for row in rows) == [b"bb", b"ccc"]


def test_the_retry_topic_of_the_group_is_read_as_well(load: Any, topic: Any, cluster: Any) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_group(topic.name)
    topic.send({0: ["again", "never"]})
    retried = f"%RETRY%{topic.name}"
    assert load("topic string", group=topic.name, includeRetry="true").count() == 2, "no such topic yet"
    queue = topic.queues[0]
    request = data_pb2.SendBackRequest(
        group=topic.name,
        queue=common_pb2.Queue(topic=topic.name, broker_name=queue.broker_name, queue_id=queue.queue_id),
        queue_offset=0,
        delay_level=1,
        attempts=1,
    )
    response = connection.unary(
        topic.broker.address, "/evenq.v1.Data/SendBack", request.SerializeToString(), timeout_ms=60_000
    )
    check(data_pb2.SendBackResponse.FromString(response).status)
    frame = load("topic string, body binary", group=topic.name, includeRetry="true", startingOffsets="earliest")
    deadline = time.monotonic() + 60
    while len(rows := frame.collect()) < 3:
        assert time.monotonic() < deadline, rows
        frame = load("topic string, body binary", group=topic.name, includeRetry="true", startingOffsets="earliest")
    assert min((row.topic, bytes(row.body)) for row in rows) == (retried, b"again")


def send_full(topic: Any) -> int:
    """One message with everything on queue 2; its store time in ms is about the result."""
    queue = topic.queues[2]
    message = definition_pb2.Message(body=b"17", user_properties={"source": "radar", "kind": "arrival"})
    system = message.system_properties
    system.message_id, system.tag = f"{topic.name}-full", "UA"
    system.keys.extend(["UA1545", "N14228"])
    set_ms(system.born_timestamp, 1_700_000_000_123)
    request = data_pb2.PublishRequest(
        queue=common_pb2.Queue(topic=topic.name, broker_name=queue.broker_name, queue_id=queue.queue_id),
        messages=[message],
    )
    address = topic.endpoints.split(",")[1]
    answer = connection.unary(address, "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000)
    response = data_pb2.PublishResponse.FromString(answer)
    check(response.status)
    return int(response.store_ms)


def test_columns_of_the_system_come_when_asked_for(load: Any, topic: Any) -> None:
    send_full(topic)
    assert "priority" not in load(None).columns
    frame = load(None, includeSystem="true")
    assert frame.columns[-6:] == [
        "bornHost", "storeHost", "messageType", "deliveryTimestamp", "deliveryAttempt", "priority",
    ]  # fmt: skip
    row = frame.first()
    assert (row.tag, row.deliveryTimestamp) == ("UA", None)
    assert row.messageType == "NORMAL"


def test_columns_in_kafkas_style(load: Any, topic: Any) -> None:
    stored_ms = send_full(topic)
    assert "headers" not in load(None, schemaStyle="kafka").columns
    row = load(None, schemaStyle="kafka", includeHeaders="true").first()
    queue = topic.queues[2]
    assert (bytes(row.key), bytes(row.value), row.topic, row.offset) == (b"UA1545", b"17", topic.name, 0)
    assert row.partition == partition_of(MessageQueue(topic.name, queue.broker_name, queue.queue_id))
    assert round(row.timestamp.timestamp() * 1000) == stored_ms
    assert row.timestampType == 1
    assert [(one.key, bytes(one.value)) for one in row.headers] == [("kind", b"arrival"), ("source", b"radar")]
