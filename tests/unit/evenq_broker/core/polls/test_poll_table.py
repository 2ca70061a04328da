"""The long poll table: who is woken, and that none is forgotten."""

from __future__ import annotations

from collections.abc import Callable

from evenq_broker.core.polls.poll_table import Poll, PollTable

from tests.unit.evenq_broker.conftest import users_of


def test_growth_wakes_one_poll_of_each_group_oldest_first() -> None:
    polls = PollTable()
    first, second = (polls.park(1, 7, deadline_ms=50, client_id=name) for name in "ab")
    other = polls.park(2, 7, deadline_ms=50)
    polls.park(1, 8, deadline_ms=50)
    assert polls.arrived(7, 3, 1) == [first, other]
    assert polls.arrived(7, 3, 2) == [second]
    assert polls.arrived(7, 3, 3) == []
    assert len(polls) == 1
    polls.check()


def test_a_poll_for_one_queue_sleeps_through_the_others() -> None:
    polls = PollTable()
    poll = polls.park(1, 7, queue_id=2, deadline_ms=50)
    assert polls.arrived(7, 1, 9) == []
    assert polls.ready(1, 7, 1) is None
    assert polls.ready(1, 7, 2) is poll
    polls.check()


def test_a_watch_wakes_when_its_queue_passes_what_it_knows() -> None:
    polls = PollTable()
    watch = polls.watch([(7, 0, 5), (7, 1, 5)], deadline_ms=50)
    assert polls.arrived(7, 0, 5) == []
    assert polls.arrived(7, 1, 6) == [watch]
    assert len(polls) == 0
    polls.check()


def test_polls_end_by_time_by_client_by_topic_and_by_themselves() -> None:
    polls = PollTable()
    timed = polls.park(1, 7, deadline_ms=10)
    mine = polls.park(1, 7, deadline_ms=90, client_id="me")
    gone = polls.park(1, 8, deadline_ms=90)
    left = polls.park(1, 9, deadline_ms=90)
    assert polls.next_deadline() == 10
    assert polls.tick(9) == []
    assert polls.tick(10) == [timed]
    assert polls.end_client("me") == [mine]
    assert polls.end_topic(8) == [gone]
    assert left is not None
    polls.cancel(left)
    polls.cancel(left)
    assert not any(poll.woken for poll in (timed, mine, gone, left) if poll)
    assert len(polls) == 0
    polls.check()


def test_polls_that_leave_from_the_middle_do_not_change_who_is_woken_first() -> None:
    polls = PollTable()
    parked = [polls.park(1, 7, deadline_ms=90, client_id=f"client{number}") for number in range(9)]
    for number in (4, 0, 7):
        polls.end_client(f"client{number}")
    polls.check()
    assert [polls.ready(1, 7, 0) for _ in range(7)] == [*(parked[number] for number in (1, 2, 3, 5, 6, 8)), None]
    polls.check()


def test_a_full_table_parks_nobody() -> None:
    polls = PollTable(polls_max=1)
    assert polls.park(1, 7, deadline_ms=10) is not None
    assert polls.park(1, 7, deadline_ms=10) is None
    assert polls.watch([(7, 0, 0)], deadline_ms=10) is None
    assert len(polls.end_all()) == 1


def test_a_user_leaves_polls_to_others_whatever_they_wait_for() -> None:
    users = users_of(a="group:a-* consume", b="group:b-* consume", all="group:* consume")
    polls = PollTable(polls_max=8, users=lambda: users)
    ways: list[Callable[[str], Poll | None]] = [
        lambda user: polls.park(1, 7, deadline_ms=10, user=user),
        lambda user: polls.watch([(7, 0, 0)], deadline_ms=10, user=user),
        lambda user: polls.hold(7, 0, deadline_ms=10, client_id="c", user=user),
    ]
    parked = [ways[number % 3]("a") for number in range(6)]
    assert all(parked)
    polls.check()
    assert [way("a") for way in ways] == [None] * 3
    assert ways[0]("b")
    assert polls.arrived(7, 0, 1)
    polls.check()
    assert ways[0]("a"), "those that were woken hold nothing any more"
    polls.end_all()
    polls.check()
    assert sum(ways[number % 3]("all") is not None for number in range(9)) == 8, "a user of all groups has no share"
    assert ways[0]("b") is None
    polls.end_all()
    assert sum(ways[0]("") is not None for _ in range(9)) == 8, "calls are not signed, or a server's own"


def test_deadlines_of_woken_polls_do_not_pile_up() -> None:
    polls = PollTable()
    for number in range(10_000):
        polls.park(1, 7, deadline_ms=1_000_000)
        polls.arrived(7, 0, number + 1)
    assert len(polls._deadlines) < 1_100
    polls.check()
