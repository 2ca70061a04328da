"""The flights as messages and as the truth to compare with."""

from __future__ import annotations

import json

import pytest
from flight_demo.flights import FLIGHTS_TOTAL, Delay, delays_by_carrier, flights


def test_one_row_is_one_message_with_carrier_as_tag_and_date_as_key() -> None:
    first, second = flights(2)
    assert (first.number, first.carrier, first.date) == (0, "UA", "2013-01-01")
    assert json.loads(first.body)["flight"] == "1545"
    assert second.number == 1


def test_the_truth_counts_every_flight_and_means_only_known_delays() -> None:
    truth = delays_by_carrier(3_000)
    rows = [json.loads(flight.body) for flight in flights(3_000)]
    assert sum(delay.flights for delay in truth.values()) == 3_000
    known = [int(row["dep_delay"]) for row in rows if row["carrier"] == "UA" and row["dep_delay"] != "NA"]
    assert truth["UA"].mean == sum(known) / len(known)
    assert list(truth) == sorted(truth)


@pytest.mark.slow
def test_the_file_holds_the_year() -> None:
    assert sum(1 for _ in flights()) == FLIGHTS_TOTAL == 336_776


def test_a_cancelled_flight_counts_as_a_flight_without_a_delay() -> None:
    delay = Delay()
    for text in ("NA", "", "10", "-4"):
        delay.add(text)
    assert (delay.flights, delay.delayed_known, delay.minutes, delay.mean) == (4, 2, 6, 3.0)
    assert Delay().mean == 0.0
