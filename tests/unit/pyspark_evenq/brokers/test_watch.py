"""What the runner knows of the queues."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from evenq_proofs.waiting import until
from pyspark_evenq.brokers.watch import ROUTE_AWAY_S, ROUTE_S, QueueWatch
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.planner import Bounds

from evenq import errors


@pytest.fixture
def watching(broker: Any) -> Any:
    made: list[QueueWatch] = []

    def watching(now: Any = time.monotonic, **more: str) -> QueueWatch:
        given = {"endpoints": broker.endpoint, "subscribe": "flights", "group": "g", "readTimeoutMs": "200"} | more
        made.append(QueueWatch(ReadOptions.parse(given, streaming=True), now=now))
        return made[-1]

    yield watching
    for watch in made:
        watch.close()


def test_growth_is_told_at_once_and_no_growth_after_the_wait(broker: Any, watching: Any) -> None:
    watch = watching(idleWaitMs="700")
    broker.send("a")
    known = {broker.queue(0): 0, broker.queue(1): 0}
    watch.refresh(known)
    assert watch.bounds[broker.queue(0)] == Bounds(low=0, high=1)
    begun = time.monotonic()
    watch.refresh({broker.queue(0): 1, broker.queue(1): 0})
    assert time.monotonic() - begun >= 0.65, "the default is 300 ms"


def test_growth_of_queues_that_are_others_wakes_nobody_and_a_gained_one_is_asked_at_once(
    broker: Any, watching: Any
) -> None:
    watch = watching(idleWaitMs="50")
    watch.look()
    broker.send("a", queue=1)
    mine = {broker.queue(0): 0}
    begun = time.monotonic()
    watch.refresh(mine, only=mine)
    assert time.monotonic() - begun >= 0.04
    assert watch.bounds[broker.queue(1)].high == 0, "not asked"
    watch.ask([broker.queue(1)])
    assert watch.bounds[broker.queue(1)].high == 1


def test_brokers_that_refuse_are_not_asked_in_a_tight_loop(broker: Any, watching: Any) -> None:
    watch = watching(idleWaitMs="100")
    watch.route()
    broker.stop()
    begun = time.monotonic()
    watch.refresh({})
    assert 0.09 <= time.monotonic() - begun < 60
    assert watch.bounds == {}


def test_queues_without_a_broker_keep_their_address_and_forgotten_ones_leave(broker: Any, watching: Any) -> None:
    now = [0.0]
    watch = watching(now=lambda: now[0])
    broker.queues[2], broker.low[2] = [], 0
    watch.look()
    assert len(watch.bounds) == 3
    del broker.queues[2]
    broker.away = {"broker-a": 3}
    now[0] += ROUTE_S + 1
    assert len(watch.route()) == 3
    assert watch.unavailable == {broker.queue(number): "broker-a is not there" for number in range(3)}
    broker.away = {}
    now[0] += ROUTE_AWAY_S + 1
    assert len(watch.route()) == 2, "looked sooner, because some were away"
    assert watch.unavailable == {}
    assert broker.queue(2) not in watch.bounds


def test_a_broker_that_does_not_answer_is_named_until_it_does(broker: Any, watching: Any) -> None:
    watch = watching(idleWaitMs="50")
    watch.look()
    broker.stop()
    watch.refresh({})
    assert sorted(watch.unavailable) == [broker.queue(0), broker.queue(1)]
    broker.start()

    def answers() -> bool:
        watch.refresh({})
        return not watch.unavailable

    until(answers, lambda: watch.unavailable)


@pytest.mark.parametrize("call", ["QueryOffsets", "QueryRoute"])
def test_a_grant_that_is_taken_away_ends_the_query_unless_it_is_soon_given_back(
    broker: Any, watching: Any, call: str
) -> None:
    """12c: the query stood still without an error."""
    now = [0.0]
    watch = watching(lambda: now[0], readTimeoutMs="60000")

    def look(denied: bool) -> None:
        broker.denies = {call} if denied else set()
        now[0] += ROUTE_S + 1
        watch.look()

    for denied in (False, True, True, False, True, True):
        look(denied)
    with pytest.raises(
        errors.Forbidden, match=r"is refused to this query for 62 s .* may not consume topic flights; g"
    ):
        look(denied=True)


def test_new_queues_are_seen_when_the_route_is_old_and_silence_keeps_the_last_one(broker: Any, watching: Any) -> None:
    now = [0.0]
    watch = watching(now=lambda: now[0])
    assert len(watch.route()) == 2
    broker.queues[2], broker.low[2] = [], 0
    assert len(watch.route()) == 2
    now[0] += ROUTE_S + 1
    assert len(watch.route()) == 3
    broker.stop()
    now[0] += ROUTE_S + 1
    assert len(watch.route()) == 3


def test_a_topic_that_is_made_later_comes_with_the_pattern_and_a_deleted_one_is_missed(
    broker: Any, watching: Any
) -> None:
    now = [0.0]
    watch = watching(lambda: now[0], subscribe="", subscribePattern="fl.*s")
    assert watch.route() == {}
    broker.near = ["flights", "flight", "%RETRY%fls"]
    now[0] += ROUTE_S + 1
    assert sorted(watch.route()) == [broker.queue(0), broker.queue(1)]
    broker.near, broker.topic = [], "another"
    now[0] += ROUTE_S + 1
    watch.route()
    assert list(watch.missing) == ["flights"]


def test_an_idle_query_asks_seldom_and_hears_of_growth_at_once(broker: Any, watching: Any) -> None:
    watch = watching(idleWaitMs="20")
    watch.look()
    known = {broker.queue(0): 0, broker.queue(1): 0}
    asked = broker.calls.count("QueryOffsets")
    for _ in range(20):
        watch.refresh(known)
    assert broker.calls.count("QueryOffsets") == asked + 1
    watch = watching(idleWaitMs="30000")
    watch.look()
    sender = threading.Timer(0.1, broker.send, ["a"])
    sender.start()
    begun = time.monotonic()
    watch.refresh(known)
    assert time.monotonic() - begun < 20
    assert watch.bounds[broker.queue(0)].high == 1
    sender.join()


def test_what_came_between_two_triggers_is_all_in_the_next_one(broker: Any, watching: Any) -> None:
    watch = watching(idleWaitMs="1000")
    watch.look()
    known = {broker.queue(0): 0, broker.queue(1): 0}
    watch.refresh(known)
    broker.send("a")
    (parked,) = watch._parked.values()
    parked.result()  # this call was notified of one message
    broker.send("b")
    broker.send("c", queue=1)
    watch.refresh(known)
    assert (watch.bounds[broker.queue(0)].high, watch.bounds[broker.queue(1)].high) == (2, 1)
