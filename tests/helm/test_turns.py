"""Two processes of tests on one cluster: it begins and ends once, and who needs it alone gets it alone."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from evenq_helm.turns import Room, shared

SOON_S, HANG_S = 0.3, 60.0


def test_the_first_one_begins_and_the_last_one_ends(tmp_path: Path) -> None:
    events: list[str] = []
    first, second = ExitStack(), ExitStack()
    for one in (first, second):
        one.enter_context(shared(tmp_path, begin=lambda: events.append("begin"), end=lambda: events.append("end")))
    assert events == ["begin"]
    first.close()
    assert events == ["begin"], "the second one is still there"
    second.close()
    assert events == ["begin", "end"]


def test_what_did_not_begin_is_ended_and_begun_by_the_next_one(tmp_path: Path) -> None:
    events: list[str] = []

    def fail() -> None:
        raise ValueError("it does not begin")

    with (
        pytest.raises(ValueError, match="does not begin"),
        shared(tmp_path, begin=fail, end=lambda: events.append("end")),
    ):
        pass
    with shared(tmp_path, begin=lambda: events.append("begin"), end=lambda: events.append("end")):
        assert events == ["end", "begin"]
    assert events == ["end", "begin", "end"]


def test_who_wants_to_be_alone_waits_for_the_others_and_then_keeps_them_out(tmp_path: Path) -> None:
    mine, other = Room(tmp_path), Room(tmp_path)
    left, alone, back, entered = (threading.Event() for _ in range(4))

    def visit() -> None:
        with other.among_others():
            entered.set()
            assert left.wait(HANG_S)
        with other.among_others():
            back.set()

    def be_alone() -> None:
        with mine.among_others(), mine.alone():
            alone.set()
            assert not back.wait(SOON_S), "another one came in"

    visitor, loner = threading.Thread(target=visit), threading.Thread(target=be_alone)
    visitor.start()
    assert entered.wait(HANG_S)
    loner.start()
    assert not alone.wait(SOON_S), "somebody is there"
    left.set()
    assert alone.wait(HANG_S)
    assert back.wait(HANG_S), "the other one comes in when it is over"
    for thread in (visitor, loner):
        thread.join(HANG_S)
    mine.close()
    other.close()
