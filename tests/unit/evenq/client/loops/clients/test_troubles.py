"""Troubles of a client that works on its own: said once, counted, and said again when they are over."""

from __future__ import annotations

import asyncio
import logging

import pytest

from evenq.client.loops.clients.troubles import Troubles
from evenq.errors import ConnectionFailed, Error, Forbidden, PreconditionFailed, TopicNotFound
from evenq.runtime.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def texts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_outage_of_a_broker_is_one_line_at_its_begin_and_one_with_a_count_at_its_end(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = Troubles(clock, who="group billing")
    for number in range(72):
        troubles.failed_at(f"orders-{number % 4}", "broker-a", ConnectionFailed("no evenq server answers at a:8081"))
    asyncio.run(clock.advance(4_000))
    troubles.well_at("orders-0", "broker-a")
    troubles.well_at("orders-0", "broker-a")
    assert texts(caplog) == [
        (
            "WARNING",
            "group billing: broker broker-a fails, trying again until it works: no evenq server answers at a:8081",
        ),
        ("WARNING", "group billing: broker broker-a works after 4.0 s, 72 calls failed"),
    ]


def test_a_broker_that_flaps_is_told_of_every_half_minute_at_most(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = Troubles(clock, who="group billing")
    for _ in range(20):
        troubles.failed_at("orders", "broker-a", ConnectionFailed("away"))
        troubles.well_at("orders", "broker-a")
        asyncio.run(clock.advance(2_000))
    assert len(caplog.records) == 4


def test_each_permanent_error_is_reported_once_until_it_was_over(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[Error] = []
    troubles = Troubles(clock, who="group billing", report=reported.append)
    for _ in range(5):
        for broker in ("a", "b"):  # the same sentence of two brokers is one trouble
            troubles.failed_at("orders", broker, Forbidden("user u may not consume topic orders"))
        troubles.failed("topic orders", TopicNotFound("no topic 'orders'"))
    assert [type(error) for error in reported] == [Forbidden, TopicNotFound]
    troubles.well("topic orders")
    troubles.failed("topic orders", TopicNotFound("no topic 'orders'"))
    assert [type(error) for error in reported] == [Forbidden, TopicNotFound, TopicNotFound]
    assert not caplog.records


def test_a_topic_that_left_a_broker_is_a_trouble_only_if_the_route_goes_on_naming_it_there(clock: FakeClock) -> None:
    reported: list[Error] = []
    troubles = Troubles(clock, who="group billing", report=reported.append)
    troubles.failed_at("orders", "a", TopicNotFound("no topic 'orders' on broker a"))
    asyncio.run(clock.advance(1_900))
    troubles.failed_at("orders", "a", TopicNotFound("no topic 'orders' on broker a"))
    assert not reported
    asyncio.run(clock.advance(200))
    troubles.failed_at("orders", "a", TopicNotFound("no topic 'orders' on broker a"))
    assert [type(error) for error in reported] == [TopicNotFound]


def test_without_a_report_a_permanent_error_is_one_line_and_so_is_its_end(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = Troubles(clock, who="group billing")
    for _ in range(5):
        troubles.failed("topic orders", Forbidden("user u may not consume topic orders"))
    asyncio.run(clock.advance(1_500))
    troubles.well("topic orders")
    assert texts(caplog) == [
        (
            "ERROR",
            (
                "group billing: topic orders is refused, trying again until it is allowed: user u may not consume topic "
                "orders"
            ),
        ),
        ("WARNING", "group billing: topic orders works after 1.5 s, 5 calls failed"),
    ]


def test_a_topic_that_is_not_there_yet_is_no_error_until_it_lasts(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    troubles = Troubles(clock, who="group billing")
    troubles.failed("topic orders", TopicNotFound("no topic 'orders'"))
    asyncio.run(clock.advance(1_500))
    troubles.failed("topic orders", TopicNotFound("no topic 'orders'"))
    troubles.well("topic orders")
    assert texts(caplog) == [
        ("INFO", "group billing: waits for topic orders: no topic 'orders'"),
        ("INFO", "group billing: topic orders works after 1.5 s, 2 calls failed"),
    ]
    caplog.clear()
    for _ in range(3):
        troubles.failed("topic ordres", TopicNotFound("no topic 'ordres'"))
        asyncio.run(clock.advance(60_000))
    assert texts(caplog)[1:] == [
        ("WARNING", "group billing: topic ordres is still missing after 60 s: no topic 'ordres'")
    ]


def test_a_failed_precondition_is_part_of_a_hand_over_and_no_permanent_error(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reported: list[Error] = []
    Troubles(clock, who="group g", report=reported.append).failed_at("t", "a", PreconditionFailed("not yours"))
    assert not reported
