"""Who may read and commit a queue: holders, and those who never owned any."""

import pytest
from evenq_broker.core.groups.fencing import QueueFence
from evenq_broker.core.groups.locks import LockTable
from evenq_broker.core.groups.members import Member, MemberTable, Protocol

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue

QUEUE = MessageQueue("t", "a", 0)


def stage(*client_ids: str, owners_max: int = 10) -> tuple[LockTable, MemberTable, QueueFence]:
    locks, members = LockTable(), MemberTable()
    fencing = QueueFence(locks, members, owners_max=owners_max)
    for client_id in client_ids:
        member = Member(client_id=client_id, protocol=Protocol.EVENQ)
        members.join("g", member, now_ms=0, lease_ms=10)
        fencing.joined("g", member)
    return locks, members, fencing


def refusal(
    fencing: QueueFence, client_id: str, *, commits: bool = False, generation: Generation = NO_GENERATION
) -> str | None:
    return fencing.refusal("g", client_id, QUEUE, generation, commits=commits)


def test_the_holder_reads_and_commits_and_another_member_does_neither() -> None:
    locks, _, fencing = stage("x", "y")
    locks.acquire("g", "x", QUEUE)
    assert refusal(fencing, "x") is None
    assert refusal(fencing, "x", commits=True) is None
    for commits in (False, True):
        assert "'y' does not hold queue" in (refusal(fencing, "y", commits=commits) or "")
        assert "'x' holds it" in (refusal(fencing, "y", commits=commits) or "")


def test_a_member_whose_session_ended_stays_fenced_until_it_holds_the_queue_again() -> None:
    locks, members, fencing = stage("x")
    locks.acquire("g", "x", QUEUE)
    members.leave("g", "x")
    locks.drop("g", "x")
    assert "no member holds it; lock it first" in (refusal(fencing, "x") or "")
    assert refusal(fencing, "x", commits=True) is not None


def test_oc_18_the_holder_itself_is_refused_under_an_older_generation() -> None:
    locks, _, fencing = stage("x", "y")
    locks.acquire("g", "x", QUEUE, Generation(1, 5))
    assert refusal(fencing, "x", generation=Generation(1, 5)) is None
    assert refusal(fencing, "x", generation=Generation(2, 0)) is None
    assert "generation 1.4 of queue" in (refusal(fencing, "x", generation=Generation(1, 4)) or "")
    assert "generation 1.4 of queue" in (refusal(fencing, "y", generation=Generation(1, 4)) or "")


def test_who_never_was_a_member_reads_as_it_likes_but_does_not_commit_over_a_holder() -> None:
    locks, _, fencing = stage("x")
    assert refusal(fencing, "tool", commits=True) is None
    locks.acquire("g", "x", QUEUE)
    assert refusal(fencing, "tool") is None
    assert refusal(fencing, "tool", commits=True) is not None
    assert refusal(fencing, "", commits=True) is not None


@pytest.mark.parametrize(
    "member",
    [
        Member(client_id="y", protocol=Protocol.V2),
        Member(client_id="y", protocol=Protocol.EVENQ, model=MessageModel.BROADCASTING),
    ],
)
def test_members_that_own_nothing_need_no_lock_to_read(member: Member) -> None:
    _, members, fencing = stage("x")
    members.join("g", member, now_ms=0, lease_ms=10)
    fencing.joined("g", member) if member.protocol is Protocol.EVENQ else None
    assert refusal(fencing, "y") is None


def test_the_memory_of_former_members_is_bounded() -> None:
    _, members, fencing = stage(*(f"c{number}" for number in range(5)), owners_max=3)
    for number in range(5):
        members.leave("g", f"c{number}")
    assert [refusal(fencing, f"c{number}") is None for number in range(5)] == [True, True, False, False, False]


def test_a_holder_from_before_a_restart_stays_fenced_when_its_lock_is_given_up() -> None:
    locks, _, fencing = stage("y")
    locks.restore("g", QUEUE, "x", Generation(1, 1))
    fencing.owned("g", "x")
    locks.drop("g", "x")
    locks.acquire("g", "y", QUEUE)
    assert "'y' holds it" in (refusal(fencing, "x") or "")


def test_who_says_that_it_owns_a_queue_reads_only_what_it_holds_also_if_nobody_knows_it() -> None:
    locks, _, fencing = stage("y")

    def owner() -> str | None:
        return fencing.refusal("g", "slept", QUEUE, NO_GENERATION, commits=False, owner=True)

    assert "no member holds it; lock it first" in (owner() or "")
    locks.acquire("g", "y", QUEUE)
    assert "'y' holds it" in (owner() or "")
    assert refusal(fencing, "slept") is None, "a reader that owns nothing goes on"
    locks.drop("g", "y")
    locks.acquire("g", "slept", QUEUE)
    assert owner() is None
