"""The start of a query that logged no batch yet, kept by a broker in memory."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_evenq.source.pinned_start import pinned_group

from evenq.model.names import group_problem
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

ALL = ReadAllAvailable()
PINNED = "g-evenq-spark-latest"


@pytest.fixture
def made(stream_reader: Any) -> Any:
    given = {"startingOffsets": "latest", "commitIntervalMs": "1", "readTimeoutMs": "2000"}
    return lambda **more: stream_reader(**given | more)


def ends(offset: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = offset["q"]["flights"]["broker-a"]
    return found


def send(broker: Any, count: int) -> None:
    for number in range(count):
        broker.send(str(number), queue=0)


def test_latest_is_what_it_was_at_the_first_start_until_a_batch_is_logged(broker: Any, made: Any) -> None:
    groups = broker.know_groups()
    broker.committed["g", 0] = 1
    send(broker, 3)
    one = made()
    assert ends(one.initialOffset()) == {"0": 3, "1": 0}
    assert broker.progress("g") == {0: 1, 1: 0}, "others who go on in the group leave nothing out"
    one.stop()
    send(broker, 2)
    two = made()
    start = two.initialOffset()
    assert ends(start) == {"0": 3, "1": 0}
    first = two.latestOffset(start, ALL)
    assert ends(first) == {"0": 5, "1": 0}
    assert not groups.deleted, "Spark may not have it yet"
    two.latestOffset(first, ALL)
    two.latestOffset(first, ALL)
    assert groups.deleted == [PINNED]


def test_latest_is_the_latest_again_once_the_group_has_read_on(broker: Any, made: Any) -> None:
    broker.know_groups()
    send(broker, 3)
    one = made()
    one.initialOffset()
    one.stop()
    broker.committed["g", 0] = 4  # a batch was reported, and its start could not be deleted
    send(broker, 3)
    assert ends(made().initialOffset()) == {"0": 6, "1": 0}
    assert broker.progress(PINNED) == {0: 6, 1: 0}


def test_a_queue_that_came_since_is_read_whole(broker: Any, made: Any) -> None:
    broker.know_groups()
    send(broker, 3)
    one = made()
    one.initialOffset()
    one.stop()
    broker.queues[2], broker.low[2] = [], 0
    broker.send("new", queue=2)
    assert ends(made().initialOffset()) == {"0": 3, "1": 0, "2": 0}


@pytest.mark.parametrize(
    "more",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": "group"},
        {"startingOffsets": '{"flights": {"broker-a": {"0": -1}}}'},
        {"startingTimestamp": "5"},
        {"group": "", "schemaStyle": "kafka"},
        {"group": "", "groupIdPrefix": "nightly"},
    ],
)
def test_other_starts_are_not_kept(broker: Any, made: Any, more: dict[str, str]) -> None:
    groups = broker.know_groups()
    for number in (0, 1):
        broker.send("before", queue=number)
    reader = made(**more)
    first = reader.initialOffset()
    broker.send("a")
    reader.latestOffset(reader.latestOffset(first, ALL), ALL)
    assert not [group for group, _ in broker.committed if group == PINNED]
    assert not groups.deleted


def test_a_group_of_others_with_a_similar_name_is_neither_read_nor_deleted(
    broker: Any, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`GROUP-start` was the name of the stored start, and may be that of anybody's group."""
    groups = broker.know_groups()
    broker.committed["g-start", 0] = broker.committed["g-start", 1] = 1
    send(broker, 3)
    reader = made()
    start = reader.initialOffset()
    assert ends(start) == {"0": 3, "1": 0}
    broker.send("a")
    caplog.set_level(logging.INFO)
    reader.latestOffset(reader.latestOffset(start, ALL), ALL)
    assert groups.deleted == [PINNED]
    assert f"group {PINNED} is deleted" in caplog.text
    assert broker.progress("g-start") == {0: 1, 1: 1}


def test_the_group_of_a_start_has_a_valid_name_that_begins_with_that_of_the_query() -> None:
    assert pinned_group("g") == PINNED
    names = [pinned_group("o" * 119 + end) for end in "ab"]
    assert len(set(names)) == 2
    for name in names:
        assert group_problem(name) is None
        assert name.startswith("o" * 90), "a grant for group:orders* includes it"


@pytest.mark.slow
def test_a_start_that_cannot_be_kept_or_deleted_stops_nobody(
    broker: Any, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    groups = broker.know_groups()
    broker.refuse_commits = True
    reader = made()
    start = reader.initialOffset()
    assert "the start could not be saved" in caplog.text
    broker.refuse_commits = False
    groups.refuses = definition_pb2.Status(code=definition_pb2.Code.FORBIDDEN, message="may not DELETE")
    broker.send("a")
    reader.latestOffset(reader.latestOffset(start, ALL), ALL)
    assert f"delete it with `evenq group delete {PINNED}`" in caplog.text
