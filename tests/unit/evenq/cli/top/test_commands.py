"""`evenq top --once` over scripted answers, and where it is refused; the keys and rows of the live screen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenq.cli.output import Column, Listing, Page
from evenq.cli.top.commands import HELP, TABLE_LINES, Screen
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2


def described(end: int) -> admin_pb2.DescribeTopicResponse:
    response = admin_pb2.DescribeTopicResponse()
    response.queues.add(queue=common_pb2.Queue(topic="orders", broker_name="a", queue_id=0), max_offset=end)
    return response


def test_once_polls_twice_and_prints_what_grew(run: Any) -> None:
    topics = admin_pb2.ListTopicsResponse(topics=[admin_pb2.TopicSummary(topic="orders", messages=10)])
    code, out, _, calls = run(
        "top --once --interval 0.2 -o json",
        ListTopics=topics,
        ListGroups=admin_pb2.ListGroupsResponse(),
        DescribeTopic=[described(10), described(30)],
    )
    shown = json.loads(out)
    assert code == 0
    assert [name for name, _ in calls].count("ListTopics") == 2
    assert shown["topics"][0]["in_per_s"] == pytest.approx(20 / shown["interval_s"], rel=0.01)


def test_a_pipe_without_once_is_a_mistake_that_names_it(run: Any) -> None:
    code, out, err, calls = run("top")
    assert (code, out, calls) == (2, "", [])
    assert "evenq top --once" in err


@pytest.mark.parametrize("value", ["0.1", "61", "x"])
def test_an_interval_that_is_not_valid_is_named(run: Any, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(f"top --interval {value}")
    assert value in capsys.readouterr().err


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
