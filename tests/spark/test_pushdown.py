"""Filters of a query narrow what the brokers send."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pytest

from evenq.columns.extra_columns import partition_of

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def sent(frame: Any) -> int:
    """How many rows came out of the scan when the frame was collected, before Spark filtered them."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.apply(0).metrics().apply("numOutputRows").value())


def test_filters_narrow_what_the_brokers_send_and_change_no_result(spark: Any, topic: Any, pushing: None) -> None:
    tags = {str(number): "odd" if number % 2 else "even" for number in range(20)}
    topic.send({number: list(tags) for number in range(4)}, tags=tags)
    boundary_ms = int(time.time() * 1000) + 2
    while time.time() * 1000 < boundary_ms:
        time.sleep(0.001)
    topic.send({0: ["20"], 3: ["20"]}, tags={"20": "even"})
    boundary = dt.datetime.fromtimestamp(boundary_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    broker = topic.queues[0].broker_name

    def frame(where: str, **options: str) -> Any:
        reader = spark.read.format("evenq").option("endpoints", topic.endpoints).option("subscribe", topic.name)
        return reader.options(**options).load().where(where)

    for where, rows in (
        (f"topic = '{topic.name}'", 82),
        ("topic = 'another'", 0),
        (f"brokerName = '{broker}'", 41),
        (f"brokerName = '{broker}' AND queueId = 1", 20),
        ("queueId IN (1, 7)", 41),
        ("queueOffset >= 18", 10),
        ("queueOffset = 20 OR queueOffset = 20", 2),
        ("tag = 'odd'", 40),
        ("tag IN ('odd', 'none') AND queueOffset < 4", 8),
        (f"storeTimestamp >= TIMESTAMP '{boundary}'", 2),
        (f"storeTimestamp < TIMESTAMP '{boundary}' AND queueId = 0", 40),
    ):
        narrowed, whole = frame(where, filterPushdown="true"), frame(where)
        results = sorted(narrowed.collect(), key=lambda row: row.messageId)
        assert len(results) == rows, where
        assert sent(narrowed) == rows, where
        assert results == sorted(whole.collect(), key=lambda row: row.messageId), where
        assert sent(whole) == 82, where
    kafkas = frame(f"partition = {partition_of(topic.queues[2])}", filterPushdown="true", schemaStyle="kafka")
    assert len(kafkas.collect()) == sent(kafkas) == 20
    body = frame("cast(body as string) = '7' AND queueId = 0", filterPushdown="true")
    assert (len(body.collect()), sent(body)) == (2, 41), "what the brokers cannot tell, Spark does"


def test_without_sparks_own_setting_the_query_says_what_to_set(spark: Any, topic: Any) -> None:
    topic.send({0: ["a"]})
    reader = spark.read.format("evenq").option("endpoints", topic.endpoints).option("subscribe", topic.name)
    with pytest.raises(Exception, match=CONF):
        reader.option("filterPushdown", "true").load().collect()
