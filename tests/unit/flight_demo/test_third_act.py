"""The verdict of the third act: each flight once by each group, and its delays."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from flight_demo.flights import Delay
from flight_demo.third_act import ReaderCounts, compared, counted_by, rows_of

from evenq.runtime.clock import SystemClock
from evenq.testing.history import Op, Recorder

TRUTH = {"AA": Delay(1, 1, 7), "UA": Delay(2, 1, 5)}


def test_what_the_readers_of_a_group_counted_together_must_be_each_flight_once() -> None:
    one = ReaderCounts(Counter([0, 2]), {"UA": Delay(1, 1, 5), "AA": Delay(1, 1, 7)})
    other = ReaderCounts(Counter([1]), {"UA": Delay(1, 0, 0)})
    lines = list(compared("desk", [one, other], TRUTH, 3))
    assert [right for _, _, right in lines] == [True, True]
    assert lines[0][:2] == ("desk counted each flight once", "3 of 3, missing 0, again 0")
    assert Delay(2, 1, 5) == TRUTH["UA"], "the truth stays as it was"


def test_a_flight_that_is_missing_or_there_twice_is_told() -> None:
    one = ReaderCounts(Counter([0, 2, 2]), {"UA": Delay(3, 2, 10)})
    once, delays = compared("desk", [one], TRUTH, 3)
    assert once == ("desk counted each flight once", "2 of 3, missing 1, again 1", False)
    assert not delays[2]
    assert not next(iter(compared("desk", [ReaderCounts(Counter([0, 1, 2, 3]), {})], TRUTH, 3)))[2], (
        "one that is not there"
    )


def test_a_consumer_counted_what_its_history_says_it_was_given(tmp_path: Path) -> None:
    with Recorder(tmp_path / "eva.history.jsonl", clock=SystemClock()) as recorder:
        for flights in ((0, 1), (2, 0)):
            asked = recorder.invoke(Op.RECEIVE, process="eva", group="desk")
            recorder.ok(
                asked, messages=[("flights/a/0", offset, str(flight), 1) for offset, flight in enumerate(flights)]
            )
        recorder.invoke(Op.RECEIVE, process="eva", group="desk")
    (tmp_path / "eva.sums.json").write_text(json.dumps({"messages": 4, "delays": {"UA": [4, 3, 9]}}))
    assert counted_by(tmp_path, "eva") == ReaderCounts(Counter({0: 2, 1: 1, 2: 1}), {"UA": Delay(4, 3, 9)})


def test_only_finished_batches_of_spark_are_read(tmp_path: Path) -> None:
    for number, done in ((0, True), (1, True), (2, False)):
        batch = tmp_path / f"batch-{number:06}"
        batch.mkdir()
        (batch / "part-0.json").write_text(json.dumps({"flight": str(number), "carrier": "UA"}) + "\n")
        if done:
            (batch / "_SUCCESS").touch()
    assert [row["flight"] for row in rows_of(tmp_path)] == ["0", "1"]
