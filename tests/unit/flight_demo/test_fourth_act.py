"""The verdict of the fourth act: what lies in the queues beside what was acknowledged and beside the file."""

from __future__ import annotations

from pathlib import Path

from flight_demo.flights import Delay
from flight_demo.fourth_act import StoredFlights, acknowledged_places, compared, judged

from evenq.runtime.clock import SystemClock
from evenq.testing.checker import check
from evenq.testing.history import Delivery, HistoryAction, Op, Recorder, read_history

Q = "departures/broker-a/0"
TRUTH = {"UA": Delay(2, 1, 5), "AA": Delay(1, 1, 7)}
BODIES = {0: ("UA", "5"), 1: ("AA", "7"), 2: ("UA", "NA")}


def stored(*flights: int) -> StoredFlights:
    """A queue with these flights in this order."""
    found = StoredFlights()
    for offset, flight in enumerate(flights):
        carrier, delay = BODIES[flight]
        found.add(Q, offset, flight, f'{{"carrier": "{carrier}", "dep_delay": "{delay}"}}'.encode())
    return found


def rights(found: StoredFlights, acknowledged: dict[tuple[str, int], int]) -> list[bool]:
    return [right for _, _, right in compared(found, acknowledged, TRUTH, 3)]


def test_each_flight_acknowledged_at_its_place_is_right_also_beside_one_whose_answer_never_came() -> None:
    acknowledged = {(Q, 0): 0, (Q, 1): 1, (Q, 3): 2}
    lines = list(compared(stored(0, 1, 2, 2), acknowledged, TRUTH, 3))
    assert [right for *_, right in lines] == [True, True, True, True]
    assert lines[2][1] == "1 (the leader died before its answer), 0"


def test_a_place_that_holds_nothing_or_another_flight_than_was_acknowledged_is_lost() -> None:
    acknowledged = {(Q, 0): 0, (Q, 1): 1, (Q, 2): 2}
    assert rights(stored(0, 1), acknowledged) == [False, False, True, False]
    assert rights(stored(0, 2, 1), acknowledged) == [True, False, True, True]


def test_a_flight_that_was_acknowledged_twice_is_told() -> None:
    acknowledged = {(Q, 0): 0, (Q, 1): 1, (Q, 2): 2, (Q, 3): 2}
    assert rights(stored(0, 1, 2, 2), acknowledged) == [True, True, False, True]


def test_acknowledgements_are_read_from_the_history_of_the_producer(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h.jsonl", clock=SystemClock()) as recorder:
        first = recorder.invoke(Op.SEND, process="producer", topic="departures", body="7")
        unknown = recorder.invoke(Op.SEND, process="producer", topic="departures", body="8")
        recorder.info(unknown, error="ConnectionFailed")
        recorder.ok(first, queue=Q, offset=4)
    assert acknowledged_places(read_history(tmp_path / "h.jsonl")) == {(Q, 4): 7}


def test_what_was_committed_before_the_kill_and_comes_again_is_told(tmp_path: Path) -> None:
    def lines_with(committed: int) -> list[bool]:
        path = tmp_path / f"h{committed}.jsonl"
        with Recorder(path, clock=SystemClock()) as recorder:
            recorder.ok(
                recorder.invoke(Op.ADMIN, action=HistoryAction.SUBSCRIBE, group="g", topic="departures", order="none")
            )
            recorder.ok(recorder.invoke(Op.SEND, process="producer", topic="departures", body="0"), queue=Q, offset=0)
            given = [Delivery(Q, 0, "0", 1)]
            recorder.ok(recorder.invoke(Op.RECEIVE, process="gil", group="g"), messages=given)
            commit = recorder.invoke(Op.OFFSET, action=HistoryAction.COMMIT, group="g", queue=Q, offset=committed)
            recorder.ok(commit)
            recorder.fault("kill -9, disk deleted", target="broker-a")
            recorder.ok(recorder.invoke(Op.RECEIVE, process="hal", group="g"), messages=given)
        return [right for *_, right in judged(check(read_history(path)))]

    assert lines_with(0) == [True, True], "in hand at the kill: it may come again"
    assert lines_with(1) == [False, False], "it was committed"
