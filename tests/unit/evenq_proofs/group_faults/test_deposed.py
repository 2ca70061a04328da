"""Who was deposed must not answer: the judgement of acknowledgements beside elections."""

from __future__ import annotations

from evenq_proofs.group_faults.clients import Acknowledged, acks_of_deposed

ELECTIONS = [(1, 0, 100), (2, 1, 200), (3, 0, 300)]


def found(*answers: tuple[int, int, int]) -> list[str]:
    return acks_of_deposed([Acknowledged(*answer) for answer in answers], ELECTIONS)


def test_each_leader_may_answer_in_its_own_epoch() -> None:
    assert found((0, 110, 120), (1, 210, 220), (0, 310, 320)) == []


def test_an_answer_of_a_deposed_leader_to_what_was_asked_after_its_successors_first_is_told() -> None:
    (result,) = found((0, 110, 120), (1, 210, 220), (0, 230, 240))
    assert "broker 0, leader of epoch 1, answered at 240" in result


def test_what_was_asked_before_the_successors_first_answer_may_be_answered_late() -> None:
    assert found((0, 110, 120), (1, 210, 220), (0, 215, 240)) == []


def test_who_was_never_elected_must_not_answer() -> None:
    (result,) = found((2, 110, 120))
    assert "never been elected" in result
    assert acks_of_deposed([Acknowledged(0, 1, 2)], []) != []
