"""Queue locks: one holder, a fair line, and no moment in between."""

import random

import pytest
from evenq_broker.core.groups.locks import Grant, LockTable

from evenq.errors import TooManyRequests
from evenq.model import Generation, MessageQueue

Q0 = MessageQueue("t", "broker-a", 0)
Q1 = MessageQueue("t", "broker-a", 1)


def test_a_free_queue_is_granted_at_once_and_again_to_its_holder() -> None:
    locks = LockTable()
    assert locks.acquire("g", "a", Q0)
    assert locks.acquire("g", "a", Q0)
    assert not locks.acquire("g", "b", Q0)
    assert locks.holder("g", Q0) == "a"
    locks.check()


def test_two_groups_lock_the_same_queue_independently() -> None:
    locks = LockTable()
    assert locks.acquire("g", "a", Q0)
    assert locks.acquire("h", "b", Q0)


def test_a_deleted_topic_ends_its_locks_its_lines_and_its_generations() -> None:
    locks = LockTable()
    other = MessageQueue("u", "broker-a", 0)
    locks.acquire("g", "a", Q0, Generation(1, 7))
    locks.acquire("g", "a", other, Generation(1, 7))
    locks.acquire("g", "a", Q1, Generation(1, 7))
    locks.release("g", "a", Q1)
    locks.wait("g", "b", Q0, Generation(1, 7))
    locks.moved()
    seen = locks.changes
    locks.forget_topic("t")
    locks.check()
    assert locks.held("g", "a") == [other]
    assert locks.changes > seen, "who looked at it before must look again"
    assert not locks.moved(), "the journal says it with the topic"
    assert [queue for _, queue, _, _ in locks.remembered()] == [other]
    assert not locks.stale("g", "b", Q0, Generation(1, 1)), "a topic of that name begins anew"
    assert locks.acquire("g", "b", Q0, Generation(1, 1))


def test_a_released_queue_passes_to_the_head_of_the_line() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    first = locks.wait("g", "b", Q0)
    second = locks.wait("g", "c", Q0)
    assert locks.release("g", "a", Q0) == [Grant(first, "g", Q0, "b")]
    assert not locks.acquire("g", "c", Q0)
    assert locks.release("g", "b", Q0) == [Grant(second, "g", Q0, "c")]
    locks.check()


def test_releasing_what_one_does_not_hold_is_no_error() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    assert locks.release("g", "b", Q0) == []
    assert locks.release("g", "b", Q1) == []
    assert locks.holder("g", Q0) == "a"


def test_a_member_that_is_gone_frees_its_queues_and_leaves_every_line() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    locks.acquire("g", "b", Q1)
    locks.wait("g", "a", Q1)
    ticket = locks.wait("g", "c", Q0)
    assert locks.drop("g", "a") == [Grant(ticket, "g", Q0, "c")]
    assert locks.release("g", "b", Q1) == []
    assert locks.holder("g", Q1) == ""
    locks.check()


def test_who_steps_out_of_the_line_is_passed_over() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    gone = locks.wait("g", "b", Q0)
    stays = locks.wait("g", "c", Q0)
    locks.cancel(gone)
    locks.cancel(gone)
    assert [grant.ticket for grant in locks.release("g", "a", Q0)] == [stays]


def test_a_member_that_waits_twice_is_answered_twice() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    tickets = [locks.wait("g", "b", Q0), locks.wait("g", "b", Q0)]
    assert [grant.ticket for grant in locks.release("g", "a", Q0)] == tickets
    locks.check()


def test_an_older_generation_of_somebody_else_is_stale() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0, Generation(1, 1))
    locks.release("g", "a", Q0)
    locks.acquire("g", "b", Q0, Generation(1, 2))
    assert locks.stale("g", "a", Q0, Generation(1, 1))
    assert not locks.stale("g", "a", Q0, Generation(1, 2))
    assert not locks.stale("g", "b", Q0, Generation(1, 1)), "the holder is never stale"
    assert not locks.stale("g", "a", Q0, Generation()), "no generation, no fencing"
    assert not locks.stale("g", "a", Q1, Generation(1, 1))


def test_the_line_has_an_end() -> None:
    locks = LockTable(waiters_max=1)
    locks.acquire("g", "a", Q0)
    locks.wait("g", "b", Q0)
    with pytest.raises(TooManyRequests, match="1 members wait"):
        locks.wait("g", "c", Q0)


def test_a_deleted_group_is_forgotten() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    locks.wait("g", "b", Q0)
    locks.forget_group("g")
    locks.check()
    assert locks.acquire("g", "c", Q0)


@pytest.mark.parametrize("seed", range(20))
def test_any_history_keeps_one_holder_and_nobody_waits_for_a_free_queue(seed: int) -> None:
    rng = random.Random(seed)
    locks = LockTable()
    tickets: list[int] = []
    for _ in range(300):
        group, client, queue = rng.choice("gh"), rng.choice("abcd"), rng.choice([Q0, Q1])
        match rng.randrange(5):
            case 0 | 1:
                if not locks.acquire(group, client, queue) and rng.random() < 0.7:
                    tickets.append(locks.wait(group, client, queue))
            case 2:
                locks.release(group, client, queue)
            case 3:
                locks.drop(group, client)
            case _:
                if tickets:
                    locks.cancel(rng.choice(tickets))
        locks.check()


def test_a_change_of_hands_is_told_once_and_a_journal_restores_it() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0, Generation(1, 2))
    locks.acquire("g", "a", Q0, Generation(1, 2))
    locks.acquire("g", "b", Q1)
    locks.release("g", "b", Q1)
    assert locks.moved() == [("g", Q0, "a", Generation(1, 2)), ("g", Q1, "", Generation())]
    assert locks.moved() == []
    again = LockTable()
    for _ in range(2):
        for group, queue, client_id, generation in locks.holders():
            again.restore(group, queue, client_id, generation)
    assert (again.holders(), again.members()) == (locks.holders(), [("g", "a")])
    again.restore("g", Q0, "c", Generation(1, 3))
    assert again.holder("g", Q0) == "c"
    again.restore("g", Q0, "", Generation(1, 3))
    assert again.holder("g", Q0) == ""
    assert again.moved() == []
    again.check()


def test_a_deleted_group_tells_nothing_about_its_locks() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0)
    locks.forget_group("g")
    assert locks.moved() == []


def test_the_newest_decision_among_those_that_wait_has_the_queue_next() -> None:
    locks = LockTable()
    locks.acquire("g", "a", Q0, Generation(1, 1))
    locks.wait("g", "b", Q0, Generation(1, 1))
    assert locks.overtaken() == []
    first = locks.wait("g", "c", Q0, Generation(1, 3))
    locks.wait("g", "d", Q0, Generation(1, 3))
    assert locks.overtaken() == [("g", Q0)]
    assert locks.release("g", "a", Q0) == [Grant(first, "g", Q0, "c")]
    assert locks.overtaken() == []
    locks.check()


def test_a_free_queue_keeps_its_newest_generation_through_journal_and_snapshot() -> None:
    locks, result = LockTable(), []
    locks.acquire("g", "a", Q0, Generation(7, 2))
    result += locks.moved()
    locks.release("g", "a", Q0)
    result += locks.moved()
    for rows in (result, locks.remembered()):
        again = LockTable()
        for row in rows:
            again.restore(*row)
        assert again.holder("g", Q0) == ""
        assert again.stale("g", "b", Q0, Generation(7, 1))
        assert not again.stale("g", "b", Q0, Generation(7, 2))
