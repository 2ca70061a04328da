"""Questions to the brokers."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pyspark_evenq.brokers import cluster
from pyspark_evenq.options.source import ReadOptions

from evenq.errors import ConnectionFailed, SettingsError, TopicNotFound
from evenq.model.queue import MessageQueue


def test_the_next_endpoint_is_asked_when_one_is_silent(broker: Any) -> None:
    result = cluster.route(["127.0.0.1:1", broker.endpoint], ["flights"])
    assert result == {broker.queue(0): broker.endpoint, broker.queue(1): broker.endpoint}


def test_an_answer_that_is_not_ok_is_its_error(broker: Any) -> None:
    with pytest.raises(TopicNotFound, match="no such topic"):
        cluster.route([broker.endpoint], ["other"])


def test_queues_without_a_broker_are_named_by_brokers_that_know_of_them(broker: Any) -> None:
    broker.away = {"broker-b": 2}
    result = cluster.locate([broker.endpoint], ["flights"])
    away = [MessageQueue("flights", "broker-b", queue_id) for queue_id in (0, 1)]
    assert (sorted(result.away), result.whole, len(result.addresses)) == (away, True, 2)
    broker.whole = False
    result = cluster.locate([broker.endpoint], ["flights"])
    assert (result.away, result.whole, len(result.addresses)) == ({}, False, 2)


def test_a_survey_waits_for_those_that_are_away_only_if_it_is_to(broker: Any) -> None:
    broker.away = {"broker-b": 1}
    given = {"endpoints": broker.endpoint, "subscribe": "flights"}
    options = ReadOptions.parse({**given, "readTimeoutMs": "120000"}, streaming=False)
    begun = time.monotonic()
    assert len(cluster.survey(options, group="", wait_for_away=False).states) == 2
    assert time.monotonic() - begun < 60
    options = ReadOptions.parse({**given, "readTimeoutMs": "300"}, streaming=False)
    result = cluster.survey(options, group="")
    assert len(result.states) == 2
    with pytest.raises(cluster.BrokersAway, match=r"flights on broker-b \(queue 0\) within 300 ms"):
        result.must_be_complete(300)


@pytest.mark.parametrize(
    ("asked", "said"),
    [("flihgts", "did you mean 'flights'"), ("FLIGHTS", "did you mean 'flights'"), ("weather", "no such topic$")],
)
def test_a_name_that_is_really_near_is_suggested(broker: Any, asked: str, said: str) -> None:
    broker.near = ["flights", "trains"]
    with pytest.raises(TopicNotFound, match=said):
        cluster.route([broker.endpoint], [asked])


def test_progress_that_is_committed_is_told_again(broker: Any) -> None:
    cluster.commit(broker.endpoint, "g", {broker.queue(1): 7}, client_id="me")
    states = cluster.query(broker.endpoint, [broker.queue(0), broker.queue(1)], group="g")
    assert [states[broker.queue(number)].committed for number in (0, 1)] == [-1, 7]


def test_what_may_pass_is_tried_again_until_the_time_is_over_and_nothing_else() -> None:
    tries: list[int] = []

    def attempt(error: Exception, good_after: int) -> int:
        tries.append(1)
        if len(tries) < good_after:
            raise error
        return len(tries)

    assert cluster.persist("it", lambda: attempt(ConnectionFailed("away"), 3), timeout_ms=20_000) == 3
    with pytest.raises(ConnectionFailed):
        cluster.persist("it", lambda: attempt(ConnectionFailed("away"), 1 << 30), timeout_ms=100)
    tries.clear()
    with pytest.raises(TopicNotFound):
        cluster.persist("it", lambda: attempt(TopicNotFound("gone"), 1 << 30), timeout_ms=20_000)
    assert len(tries) == 1


def test_only_assigned_queues_are_located_and_they_must_exist(broker: Any) -> None:
    def located(queue_ids: list[int], name: str = "broker-a") -> cluster.Located:
        given = {"endpoints": broker.endpoint, "assign": json.dumps({"flights": {name: queue_ids}})}
        return cluster.located(ReadOptions.parse(given, streaming=False))

    assert list(located([1]).addresses) == [broker.queue(1)]
    with pytest.raises(SettingsError, match="flights@broker-a:2, which is not a readable queue"):
        located([0, 2])
    broker.away = {"broker-b": 2}
    assert (list(located([1], "broker-b").away), located([1], "broker-b").addresses) == (
        [MessageQueue("flights", "broker-b", 1)],
        {},
    )


def test_a_retry_topic_that_does_not_exist_yet_is_nothing(broker: Any) -> None:
    given = {"endpoints": broker.endpoint, "subscribe": "flights", "group": "g", "includeRetry": "true"}
    result = cluster.located(ReadOptions.parse(given, streaming=True))
    assert (len(result.addresses), result.missing) == (2, {})
