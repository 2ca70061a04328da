"""What `evenq verify` asks for and prints."""

from __future__ import annotations

import pytest

from evenq.cli.output import Page
from evenq.cli.parser import make_parser
from evenq.cli.verify import page
from evenq.verify import Kind, Plan, Repeat, Result, Verdict


def result(kind: Kind, **changed: object) -> Result:
    fields: dict[str, object] = {
        "sent": 10, "expected": 10, "received": 10, "lost": 0, "unsure": 0, "refused": 0, "repeats": {},
        "reordered": None, "early": None, "late": None, "excused": None, "late_p50_ms": None, "late_p99_ms": None,
        "leaked": None, **changed,
    }  # fmt: skip
    return Result(kind=kind, **fields)  # type: ignore[arg-type]  # the fields above


def page_of(*results: Result, full: bool = False) -> Page:
    verdict = Verdict(results=list(results), run="ab", seconds=9.6, outages=2, outage_ms_max=1_200)
    return page(verdict, Plan(endpoint="h:1"), full=full)


def test_a_good_verdict_is_a_sentence_and_a_small_table() -> None:
    shown = page_of(result(Kind.NORMAL), result(Kind.FIFO, reordered=0))
    assert shown.sentence == (
        "20 messages in 10 s at h:1: every promise was kept, nothing lost, out of order or late; "
        "brokers were down 2 times, for at most 1,200 ms."
    )
    [table] = shown.listings
    assert [column.key for column in table.columns] == [
        "kind", "sent", "expected", "received", "lost", "repeated", "late_p50_ms", "late_p99_ms",
    ]  # fmt: skip
    assert table.rows[1][:5] == ("fifo", 10, 10, 10, 0)


def test_rare_columns_show_up_when_there_is_something_in_them() -> None:
    shown = page_of(result(Kind.NORMAL, repeats={Repeat.OUTAGE: 3}), result(Kind.DELAY, excused=1))
    keys = [column.key for column in shown.listings[0].columns]
    assert {"outage", "excused"} <= set(keys)
    assert not {"unsure", "timeout", "after_ack", "early"} & set(keys)
    assert shown.facts["ok"], "repeats and lateness of an outage break no promise"


def test_a_broken_promise_is_told_with_the_message_that_broke_it() -> None:
    shown = page_of(result(Kind.NORMAL, lost=1, received=9, problems=["7 was sent and never came"]), full=True)
    assert "PROMISES WERE BROKEN" in shown.sentence
    assert not shown.facts["ok"]
    assert shown.listings[1].rows == [(Kind.NORMAL, "7 was sent and never came")]
    assert len(shown.listings[0].columns) == len(shown.listings[0].rows[0]) == 20


@pytest.mark.parametrize("words", [["--endpoint", "a:1"], ["--endpoints", "a:1"], ["--endpoints", "a:1;b:2"]])
def test_both_words_name_the_access_point(words: list[str]) -> None:
    assert make_parser().parse_args(["verify", *words]).endpoint == words[1]


def test_kinds_are_taken_once_in_any_case() -> None:
    assert make_parser().parse_args(["verify", "--kinds", "FIFO, delay,fifo"]).kinds == ("fifo", "delay")
