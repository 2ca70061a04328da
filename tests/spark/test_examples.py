"""The example jobs give the numbers that Python gives."""

from __future__ import annotations

import importlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from flight_demo.third_act import rows_of
from pyspark_evenq import EvenqProgressListener

EXAMPLES = Path(__file__).parents[2] / "spark" / "examples"
FLIGHTS = [("UA", "2"), ("UA", "-4"), ("UA", ""), ("AA", "11"), ("AA", "NA"), ("B6", None), ("UA", "7.0")]
WANTED = {"UA": (4, 5 / 3), "AA": (2, 11.0), "B6": (1, 0.0)}


@pytest.fixture
def flights(topic: Any) -> Any:
    for number, (carrier, delay) in enumerate(FLIGHTS):
        body = json.dumps({"year": "2013", "carrier": carrier} | ({} if delay is None else {"dep_delay": delay}))
        topic.send({number % 4: [body]}, tags={body: carrier})
    return topic


def means(rows: Any) -> dict[str, tuple[int, float]]:
    return {row["carrier"]: (row["flights"], row["mean_delay"]) for row in rows}


def test_the_batch_job(spark: Any, flights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    job = importlib.import_module("delay_by_carrier")
    out = tmp_path / "out" / "delays.json"
    job.write(job.delay_by_carrier(spark, endpoint=flights.broker.address, topic=flights.name), out)
    assert means(json.loads(out.read_text())) == WANTED


def test_the_streaming_job_goes_on_where_it_ended(
    spark: Any, flights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    job = importlib.import_module("delay_by_carrier_stream")
    out = tmp_path / "delays.json"

    def run() -> dict[str, tuple[int, float]]:
        job.delay_by_carrier_stream(
            spark,
            endpoint=flights.broker.address,
            topic=flights.name,
            group=flights.name,
            checkpoint=tmp_path / "checkpoint",
            out=out,
            batch_max=4,
        )
        return means(json.loads(out.read_text()))

    assert run() == WANTED
    flights.send({0: ['{"dep_delay": 3}']}, tags={'{"dep_delay": 3}': "AA"})
    assert run() == WANTED | {"AA": (3, 7.0)}
    assert sum(flights.progress(flights.name)) == len(FLIGHTS) + 1


def test_the_stream_that_counts_has_each_flight_once_also_after_a_restart(
    spark: Any, topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    job = importlib.import_module("count_flights_stream")
    listener = EvenqProgressListener()
    spark.streams.addListener(listener)
    options = {"endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name}

    def run(wanted: int) -> list[tuple[int, str, str]]:
        stop = threading.Event()

        def say() -> None:
            if sum(query.rows for query in listener.queries()) >= wanted:
                stop.set()

        query = job.count_flights(spark, options, checkpoint=tmp_path / "checkpoint", out=tmp_path / "counted")
        job.until(stop, query, say)
        rows = rows_of(tmp_path / "counted")
        return sorted((int(row["flight"]), row["carrier"], row.get("dep_delay", "")) for row in rows)

    def send(numbers: range) -> None:
        for number in numbers:
            body = json.dumps({"dep_delay": str(number)})
            topic.send({number % 4: [body]}, tags={body: "UA"}, properties={body: {"flight": str(number)}})

    try:
        send(range(8))
        assert run(8) == [(number, "UA", str(number)) for number in range(8)]
        send(range(8, 13))
        assert run(13) == [(number, "UA", str(number)) for number in range(13)]
    finally:
        spark.streams.removeListener(listener)
