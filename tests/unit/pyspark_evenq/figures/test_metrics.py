"""The series of a query, and that they are bounded."""

from __future__ import annotations

from pyspark_evenq.figures.metrics import listener_metrics
from pyspark_evenq.figures.query_figures import Failure, QueryFigures

from evenq.model.queue import MessageQueue
from evenq.serving.program.metrics import families


def series(*queries: QueryFigures, queues_max: int = 1_000) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families(listener_metrics(lambda: queries, queues_max=queues_max)):
        found[family.name] = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    return found


def lagging(queues: int, topics: int = 1) -> QueryFigures:
    made = QueryFigures("delays")
    made.lags = {MessageQueue(f"t{number % topics}", "broker-a", number): number for number in range(queues)}
    return made


def test_each_queue_and_topic_has_its_lag_and_the_query_their_least_most_and_mean() -> None:
    result = series(lagging(4, topics=2))
    assert result["evenq_spark_queue_lag_messages"]["delays", "t1", "broker-a", "3"] == 3
    assert result["evenq_spark_topic_lag_messages"] == {("delays", "t0"): 2, ("delays", "t1"): 4}
    sums = [result[f"evenq_spark_lag{part}_messages"]["delays",] for part in ("", "_min", "_max", "_avg")]
    assert sums == [6, 0, 3, 1.5]
    assert result["evenq_spark_queues"] == {("delays",): 4}


def test_a_query_with_10000_queues_has_its_sums_and_no_series_for_each() -> None:
    result = series(lagging(10_000, topics=3))
    assert result["evenq_spark_queue_lag_messages"] == {}
    assert len(result["evenq_spark_topic_lag_messages"]) == 3
    assert result["evenq_spark_lag_messages"] == {("delays",): 9_999 * 5_000}
    assert sum(map(len, result.values())) < 30
    assert series(lagging(10_000, topics=1_001))["evenq_spark_topic_lag_messages"] == {}
    assert len(series(lagging(1_000))["evenq_spark_queue_lag_messages"]) == 1_000


def test_a_query_that_ended_has_no_lag_and_says_why() -> None:
    query = lagging(4)
    query.durations_ms = {"addBatch": 250}
    query.end(Failure.QUEUE_TAKEN)
    result = series(query)
    assert result["evenq_spark_query_active"] == {("delays",): 0}
    assert result["evenq_spark_lag_messages"] == {}
    assert result["evenq_spark_failures"] == {("delays", "queue_taken"): 1}
    assert result["evenq_spark_batch_seconds"] == {("delays", "addBatch"): 0.25}
