"""The live screen: keys, and rows that fit."""

from __future__ import annotations

import pytest

from evenq.cli.output import Column, Listing, Page
from evenq.cli.top.screen import HELP, TABLE_LINES, Screen


def page(**rows: int) -> Page:
    columns = (Column("name", "name"),)
    return Page(
        facts={},
        listings=[
            Listing(key=key, columns=columns, rows=[(str(number),) for number in range(count)], title=key)
            for key, count in rows.items()
        ],
    )


@pytest.mark.parametrize(("key", "sort"), [("n", "name"), ("i", "in"), ("o", "out"), ("l", "lag"), ("m", "members")])
def test_a_key_chooses_the_column(key: str, sort: str) -> None:
    screen = Screen(sort="lag").press("r").press(key)
    assert (screen.sort, screen.reverse) == (sort, False)
    assert f"{key} " in HELP


def test_q_ends_and_unknown_keys_change_nothing() -> None:
    screen = Screen(sort="lag")
    assert screen.press("x") == screen.press("\x1b") == screen
    assert screen.press("q").ended
    assert screen.press("r").reverse
    assert not screen.press("r").press("r").reverse
    assert len(HELP) <= 80


def test_sections_are_switched_and_one_is_always_left() -> None:
    screen = Screen(sort="lag").press("b").press("t")
    assert [one.key for one in screen.fitting(page(brokers=1, groups=1, topics=1), 40).listings] == ["groups"]
    assert screen.press("g").hidden == frozenset()
    assert screen.press("b").hidden == {"topics"}


def test_small_sections_are_whole_and_large_ones_share_the_rest() -> None:
    height = 3 * TABLE_LINES + 21
    fitted = Screen(sort="lag").fitting(page(brokers=1, groups=100, topics=50), height)
    assert [len(one.rows) for one in fitted.listings] == [1, 10, 10]
    assert fitted.listings[1].title == "groups, 10 of 100"
    assert fitted.listings[0].title == "brokers"
