"""Questions to the brokers."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_evenq import cluster

from evenq.errors import ConnectionFailed, TopicNotFound


def test_the_next_endpoint_is_asked_when_one_is_silent(broker: Any) -> None:
    found = cluster.route(["127.0.0.1:1", broker.endpoint], ["flights"])
    assert found == {broker.queue(0): broker.endpoint, broker.queue(1): broker.endpoint}


def test_an_answer_that_is_not_ok_is_its_error(broker: Any) -> None:
    with pytest.raises(TopicNotFound, match="no such topic"):
        cluster.route([broker.endpoint], ["other"])


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
