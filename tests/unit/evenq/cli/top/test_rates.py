"""The tables of `evenq top`: growth between two samples, never negative, and `None` where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evenq.cli.top.rates import base_of, top_page
from evenq.cli.top.sampling import ClusterSample, GroupSample
from evenq.client.core.admin.views import BrokerView, GroupView, TopicView
from evenq.model import MessageQueue, MessageType


def queue(topic: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def topic(name: str, messages: int = 0) -> TopicView:
    return TopicView(topic=name, message_type=MessageType.NORMAL, brokers=1, queues=2, messages=messages)


def group(name: str, lag: int = 0, members: int = 1, silent: tuple[str, ...] = ()) -> GroupView:
    return GroupView(
        group=name,
        ordered=False,
        max_attempts=17,
        strategy="",
        members=members,
        topics=1,
        lag=lag,
        silent=silent,
    )


def broker(messages_in: int, messages_out: int = 0, *, start_ms: int = 1, answered: bool = True) -> BrokerView:
    return BrokerView(
        name="broker-a",
        broker_id=0,
        cluster="c",
        addresses=(),
        version="",
        start_ms=start_ms,
        topics=2,
        messages_in=messages_in,
        messages_out=messages_out,
        log_bytes=9,
        connections=3,
        answered=answered,
    )


BEFORE = ClusterSample(
    at_ms=1_000,
    now_ms=50_000,
    topics=[topic("orders", 100), topic("jobs")],
    groups=[group("billing", 70), group("audit")],
    brokers=[broker(1_000, 500)],
    ends={"orders": {queue("orders"): 100, queue("orders", 1): 50}, "jobs": {queue("jobs"): 7}},
    progress={
        "billing": GroupSample(committed={queue("orders"): 30}, lags={"orders": 70}, inflight=2, oldest_ms=40_000)
    },
)
NOW = replace(
    BEFORE,
    at_ms=3_000,
    now_ms=52_000,
    brokers=[broker(1_100, 560)],
    ends={"orders": {queue("orders"): 180, queue("orders", 1): 70, queue("orders", 2): 900}, "jobs": {}},
    progress={
        "billing": GroupSample(
            committed={queue("orders"): 90, queue("orders", 1): 10}, lags={"orders": 110}, inflight=2, oldest_ms=40_000
        )
    },
)


def rows(before: ClusterSample, now: ClusterSample, key: str, **how: Any) -> dict[str, dict[str, Any]]:
    page = top_page(before, now, **{"sort": "name", **how})
    listing = next(one for one in page.listings if one.key == key)
    return {str(row[listing.columns[0].key]): row for row in listing.as_rows()}


def test_rates_are_growth_by_second_of_counters_that_both_samples_have() -> None:
    topics, groups = rows(BEFORE, NOW, "topics"), rows(BEFORE, NOW, "groups")
    assert topics["orders"]["in_per_s"] == 50.0, "80 and 20 messages in two seconds; the new queue is not compared"
    assert topics["orders"]["out_per_s"] == 30.0
    assert (topics["orders"]["lag"], topics["orders"]["groups"]) == (110, 1)
    assert (groups["billing"]["in_per_s"], groups["billing"]["out_per_s"]) == (50.0, 30.0)
    assert (groups["billing"]["oldest_s"], groups["billing"]["inflight"]) == (12, 2)
    assert (groups["audit"]["in_per_s"], groups["audit"]["oldest_s"]) == (None, None), "not polled"
    assert rows(BEFORE, NOW, "brokers")["broker-a"]["in_per_s"] == 50.0
    assert rows(BEFORE, NOW, "brokers")["broker-a"]["out_per_s"] == 30.0


def test_a_counter_that_fell_is_no_negative_rate() -> None:
    again = replace(NOW, ends={"orders": {queue("orders"): 3}}, progress={}, brokers=[broker(5)])
    assert rows(BEFORE, again, "topics")["orders"]["in_per_s"] == 0.0
    assert rows(BEFORE, again, "brokers")["broker-a"]["in_per_s"] == 0.0


@pytest.mark.parametrize("changed", [broker(1_100, start_ms=2), broker(1_100, answered=False)])
def test_a_broker_that_restarted_or_is_silent_has_no_rate_yet(changed: BrokerView) -> None:
    assert rows(BEFORE, replace(NOW, brokers=[changed]), "brokers")["broker-a"]["in_per_s"] is None


def test_one_sample_has_no_rates_and_its_page_says_so() -> None:
    page = top_page(NOW, NOW, sort="lag")
    assert rows(NOW, NOW, "topics")["orders"]["in_per_s"] is None
    assert page.facts["in_per_s"] is None
    assert page.sentence.startswith("- in/s, - out/s, lag 70, 1 broker, 2 topics, 2 groups, 2 members")


@pytest.mark.parametrize(
    ("sort", "reverse", "first"),
    [("in", False, "orders"), ("in", True, "jobs"), ("name", False, "jobs"), ("name", True, "orders")],
)
def test_rows_are_sorted_by_the_chosen_column(sort: str, reverse: bool, first: str) -> None:
    assert next(iter(rows(BEFORE, NOW, "topics", sort=sort, reverse=reverse))) == first


def test_the_head_names_what_it_lacks() -> None:
    now = replace(NOW, groups=[group("billing", silent=("broker-c",)), group("audit")])
    sentence = top_page(BEFORE, now, sort="lag").sentence
    assert "rates of 2 topics and 1 groups: see --limit" in sentence
    assert "no answer from broker-c: rates and lag are lower bounds" in sentence


def test_the_newest_sample_is_compared_with_the_oldest_of_ten_seconds() -> None:
    samples = [replace(BEFORE, at_ms=at) for at in (0, 2_000, 5_000, 11_000)]
    assert base_of(samples).at_ms == 2_000
    assert base_of([samples[0], samples[3]]).at_ms == 0, "the interval is longer than the window"
    assert base_of(samples[:1]).at_ms == 0
