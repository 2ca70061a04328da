"""Each check finds what it is for, in the shortest history that shows it, and nothing in a good one."""

import pytest
from evenq_proofs.sim.checks import Ending, judge
from evenq_proofs.sim.history import Event, Kind

Q = "t@a:0"


def events(*given: tuple[Kind, str, int] | tuple[Kind, str, int, str]) -> list[Event]:
    return [
        Event(at, row[0], row[1], Q, row[2], row[3] if len(row) == 4 else "")  # type: ignore[misc]  # the longer form
        for at, row in enumerate(given)
    ]


def found(
    *given: tuple[Kind, str, int] | tuple[Kind, str, int, str],
    count: int = 1,
    readers: tuple[str, ...] = ("x",),
    graceful: bool = True,
) -> list[str]:
    ending = Ending(at_us=99, graceful=graceful, queues={Q: count}, readers={Q: readers})
    return [problem.check for problem in judge(events(*given), ending)]


GOOD = (
    (Kind.GRANT, "x", 0), (Kind.PULL, "x", 0), (Kind.START, "x", 0), (Kind.DONE, "x", 0), (Kind.COMMIT, "x", 1),
)  # fmt: skip


def test_a_good_history_has_no_problem() -> None:
    assert found(*GOOD, (Kind.STORED, "p", 0), (Kind.GRANT, "y", 1), (Kind.PULL, "y", 1)) == []


@pytest.mark.parametrize("kind", [Kind.PULL, Kind.COMMIT])
def test_progress_of_an_owner_before_is_two_owners(kind: Kind) -> None:
    assert found(*GOOD, (Kind.GRANT, "y", 1), (kind, "x", 1)) == ["two owners"]


def test_a_commit_over_an_unfinished_message_is_a_skip() -> None:
    assert found(*GOOD, (Kind.COMMIT, "x", 2)) == ["skipped"]


def test_a_message_that_nobody_finished_is_not_read() -> None:
    assert found(*GOOD, count=2) == ["not read"]


def test_an_acknowledged_message_that_is_not_there_is_lost() -> None:
    assert found(*GOOD, (Kind.STORED, "p", 1)) == ["lost"]


def test_progress_and_generations_that_go_back_are_told() -> None:
    assert found(*GOOD, (Kind.COMMIT, "x", 0)) == ["progress went back"]
    assert found(*GOOD, (Kind.HELD, "x", -1, "10.1"), (Kind.HELD, "y", -1, "9.7")) == ["held generation went back"]
    assert found(*GOOD, (Kind.DECIDED, "r", -1, "2.10"), (Kind.DECIDED, "r", -1, "2.9")) == ["generation went back"]


def test_a_repeat_counts_where_all_changes_were_graceful() -> None:
    assert found(*GOOD, (Kind.START, "y", 0)) == ["repeated"]
    assert found(*GOOD, (Kind.START, "y", 0), graceful=False) == []


@pytest.mark.parametrize("readers", [(), ("x", "y")])
def test_a_queue_with_no_reader_or_with_two_in_the_end_is_told(readers: tuple[str, ...]) -> None:
    assert found(*GOOD, readers=readers) == ["not owned"]
