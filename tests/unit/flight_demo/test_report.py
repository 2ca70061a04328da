"""What the demo shows: equal figures pass, a difference fails and is seen."""

from __future__ import annotations

import io

from flight_demo.flights import Delay
from flight_demo.report import OwnershipSpan, show_delays, show_owners, show_verdict
from rich.console import Console


def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_the_table_shows_the_file_the_group_and_each_job() -> None:
    shown = console()
    truth = {"UA": Delay(2, 2, 10), "US": Delay(1, 1, 3)}
    show_delays(shown, truth, {"UA": Delay(2, 2, 10)}, {"batch": {"UA": (2, 5.0)}})
    ua, us = (line for line in text(shown).splitlines() if "│ U" in line)
    assert ua.count("5.000") == 3
    assert "3.000" in us
    assert "0.000" in us


def test_a_queue_changes_its_owner_on_the_timeline() -> None:
    shown = console()
    show_owners(
        shown, [OwnershipSpan("t/a/0", "ada", 0, 500), OwnershipSpan("t/a/0", "bea", 500, 1_000)], ["ada", "bea"]
    )
    line = next(line for line in text(shown).splitlines() if "a/0" in line)
    assert line.split()[-1] == "1" * 24 + "2" * 24


def test_one_wrong_line_makes_the_verdict_wrong() -> None:
    assert show_verdict(console(), [("a", "1 = 1", True), ("b", "2 = 2", True)])
    assert not show_verdict(console(), [("a", "1 = 1", True), ("b", "2 = 3", False)])
