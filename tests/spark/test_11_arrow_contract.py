"""What a real Spark gets is what its own conversion would make of the schema, and the same in every format."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType, _parse_datatype_string
from pyspark_evenq.brokers import cluster as calls
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.cluster import Located
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.planner import OffsetRange
from pyspark_evenq.rows.requested import columns
from pyspark_evenq.source.scanning import read, scan_tasks

from evenq.columns.arrow_schema import DDL, TYPES, arrow_schema
from evenq.wire.convert import set_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

FORMATS = ("log", "message", "auto")
SUBSETS = 200
QUEUE = 1
BODY_MAX = (4 << 20) - (64 << 10)  # the largest that brokers take by default


def strange_messages() -> list[definition_pb2.Message]:
    """Messages of every shape that a broker takes here (message groups: tests/unit/evenq/columns/test_records.py)."""
    rng = random.Random(11)
    found = []
    for number in range(60):
        message = definition_pb2.Message(body=rng.randbytes(rng.choice([1, 3, 1_000])))
        system = message.system_properties
        system.message_id = f"id-{number}"
        if number % 2:
            system.tag = rng.choice(["UA", "AA", "ü"])
        system.keys.extend(rng.choice(["k", "2013-01-01", "é" * 20]) for _ in range(number % 4))
        if number % 3:
            set_ms(system.born_timestamp, rng.choice([0, 1_700_000_000_123, 4_000_000_000_000]))
        for pair in range(number % 6):
            message.user_properties[f"name-{pair}"] = rng.choice(["", "value", "\N{BALLOON}" * 50])
        found.append(message)
    found[30].body = rng.randbytes(BODY_MAX)
    return found


@pytest.fixture(scope="module")
def filled(make_topic: Any) -> Any:
    topic = make_topic()
    queue = topic.queues[QUEUE]
    place = common_pb2.Queue(topic=topic.name, broker_name=queue.broker_name, queue_id=queue.queue_id)
    for message in strange_messages():
        request = data_pb2.PublishRequest(queue=place, messages=[message])
        response = connection.unary(
            topic._address(queue), "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000
        )
        check(data_pb2.PublishResponse.FromString(response).status)
    return topic


def batches(topic: Any, schema: StructType, kind: str) -> list[Any]:
    """What a worker makes of the whole queue."""
    queue = topic.queues[QUEUE]
    wanted = columns(schema)
    options = ReadOptions.parse(
        {"endpoints": topic.endpoints, "subscribe": topic.name, "format": kind, "gcFreeze": "false"}, streaming=False
    )
    bounds = calls.query(topic._address(queue), [queue])[queue].bounds
    whole = OffsetRange(queue=queue, start=bounds.low, end=bounds.high)
    [task] = scan_tasks([[whole]], Located(addresses={queue: topic._address(queue)}), {})
    return list(read(task, options, wanted))


def rows(found: list[Any], schema: StructType) -> list[dict[str, Any]]:
    """Rows as plain values, after the check of each batch."""
    values = []
    for batch in found:
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
        batch.validate(full=True)
        for row in batch.to_pylist():
            if "properties" in row:
                row["properties"] = dict(row["properties"])
            values.append(row)
    return values


@pytest.fixture(scope="module")
def whole(spark: Any) -> StructType:
    assert spark is not None  # the parser of types needs one
    return StructType(_parse_datatype_string(DDL).fields)


def test_every_column_alone_is_the_same_in_all_formats(filled: Any, whole: StructType) -> None:
    full = rows(batches(filled, whole, "message"), whole)
    assert len(full) == len(strange_messages())
    for one, nullable in itertools.product(whole.fields, (True, False)):
        if not nullable and one.name in {"tag", "messageGroup"}:
            continue
        schema = StructType([StructField(one.name, one.dataType, nullable)])
        for kind in FORMATS:
            assert rows(batches(filled, schema, kind), schema) == [{one.name: row[one.name]} for row in full]


def test_any_subset_in_any_order_is_the_same_in_all_formats(filled: Any, whole: StructType) -> None:
    full = rows(batches(filled, whole, "message"), whole)
    rng = random.Random(200)
    for number in range(SUBSETS):
        chosen = rng.sample(whole.fields, rng.randint(1, len(whole.fields)))
        schema = StructType(chosen)
        kind = FORMATS[number % len(FORMATS)]
        assert rows(batches(filled, schema, kind), schema) == [
            {one.name: row[one.name] for one in chosen} for row in full
        ]


def test_what_was_sent_comes_out_of_spark_in_every_format(spark: Any, filled: Any) -> None:
    sent = strange_messages()
    for kind in FORMATS:
        reader = spark.read.format("evenq").options(
            endpoints=filled.endpoints, subscribe=filled.name, format=kind, blockBytes=1 << 20
        )
        result = sorted(reader.load().collect(), key=lambda row: row.queueOffset)
        assert [row.body for row in result] == [message.body for message in sent]
        assert [row.properties for row in result] == [dict(message.user_properties) for message in sent]
        assert [row.keys for row in result] == [list(message.system_properties.keys) for message in sent]
        assert [row.tag for row in result] == [message.system_properties.tag or None for message in sent]
        assert reader.load().count() == len(sent)
        assert reader.schema("queueOffset long").load().agg({"queueOffset": "max"}).first()[0] == len(sent) - 1


def test_a_format_that_is_none_or_does_not_go_with_tags_is_told_in_words(spark: Any, filled: Any) -> None:
    for options, text in (
        ({"format": "arrow"}, "give one of: auto, log, message"),
        ({"format": "log", "tags": "UA"}, "does not go with filters"),
    ):
        reader = spark.read.format("evenq").options(endpoints=filled.endpoints, subscribe=filled.name, **options)
        with pytest.raises(Exception, match=text):
            reader.load().collect()


def test_the_schema_is_the_one_that_spark_makes_itself(whole: StructType) -> None:
    assert [one.name for one in whole.fields] == list(TYPES)
    assert arrow_schema(columns(whole)).equals(to_arrow_schema(whole, timezone="UTC"))
    assert json.loads(whole.json())["fields"]
