"""Queries of one view, and of one DataFrame, one after the other: Spark plans a Python source once for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TAGS = {str(number): "odd" if number % 2 else "even" for number in range(10)}


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def loaded(spark: Any, topic: Any, **options: str) -> Any:
    return spark.read.format("evenq").options(endpoints=topic.endpoints, subscribe=topic.name, **options).load()


def view(spark: Any, topic: Any, name: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {name} USING evenq "
        f"OPTIONS (endpoints '{topic.endpoints}', subscribe '{topic.name}')"
    )


def counted(spark: Any, name: str) -> int:
    return int(spark.sql(f"SELECT count(*) AS n FROM {name}").first().n)


def test_a_second_query_of_a_view_or_a_frame_has_the_messages_of_the_first_and_says_so(
    spark: Any, topic: Any, spark_errors: Path
) -> None:
    topic.send({0: list(TAGS)}, tags=TAGS)
    view(spark, topic, "flights_again")
    frame = loaded(spark, topic)
    assert (counted(spark, "flights_again"), frame.count()) == (10, 10)
    topic.send({0: list(TAGS)}, tags=TAGS)
    warned = "a DataFrame or view is used again: it was planned at"
    before = spark_errors.read_text(errors="replace").count(warned)
    while spark_errors.read_text(errors="replace").count(warned) == before:  # of one of its workers
        assert (counted(spark, "flights_again"), frame.count()) == (10, 10)
    view(spark, topic, "flights_again")
    assert (counted(spark, "flights_again"), loaded(spark, topic).count()) == (20, 20)


def test_a_frame_that_filters_narrowed_is_no_answer_to_another_query(spark: Any, topic: Any, pushing: None) -> None:
    """12b: the second query had the rows of the first one's filter: 5 of 10."""
    topic.send({0: list(TAGS)}, tags=TAGS)
    frame = loaded(spark, topic, filterPushdown="true")
    assert frame.where("tag = 'odd'").count() == 5
    with pytest.raises(Exception, match=r"was planned at .* for another query, whose filters narrowed it"):
        frame.count()
    for tag in ("even", "odd"):  # one with filters is planned anew
        assert frame.where(f"tag = '{tag}'").count() == 5
    assert loaded(spark, topic, filterPushdown="true").count() == 10
