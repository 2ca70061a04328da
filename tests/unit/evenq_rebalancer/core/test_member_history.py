"""A group's members over time."""

from __future__ import annotations

from evenq_rebalancer.core.inherited_holds import InheritedHolds
from evenq_rebalancer.core.member_history import MemberChanges, MemberHistory
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.reports import HeldPlaceFact, MemberFact

from evenq.model import MessageModel, MessageQueue


def place_of(member: MemberFact) -> MemberPlace | None:
    """By label; who has the address `gone` has no successor, `pod` is one of a rollout, `quiet` of none."""
    if member.instance:
        return MemberPlace(member.instance)
    return {"pod": MemberPlace("web", leaving=True), "quiet": MemberPlace("web", leaving=False)}.get(member.address)


def member(own: str, instance: str = "", address: str = "", model=MessageModel.CLUSTERING) -> MemberFact:
    return MemberFact(client_id=own, instance=instance, address=address, model=model)


def seen(member_history: MemberHistory, *members: MemberFact, hold_ms: int = 100, now_ms: int = 0) -> MemberChanges:
    return member_history.see(
        members, version=member_history.version + 1, hold_ms=hold_ms, place_of=place_of, now_ms=now_ms, wall_ms=now_ms
    )


def test_who_leaves_a_place_that_is_refilled_is_waited_for() -> None:
    member_history = MemberHistory()
    assert seen(member_history, member("a", "web-0"), member("b"), member("c", address="pod")) == MemberChanges()
    changes = seen(member_history)
    assert [hold.client_id for hold in changes.began] == ["a", "c"], "b has no place"
    assert (changes.taken, changes.ended) == ([], [])


def test_nobody_is_waited_for_where_no_rollout_is_going_on_or_nothing_is_held() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", address="quiet"))
    assert seen(member_history) == MemberChanges()
    seen(member_history, member("a", "web-0"), hold_ms=0)
    assert seen(member_history, hold_ms=0) == MemberChanges()


def test_a_broadcasting_member_has_nothing_to_hold() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", "web-0", model=MessageModel.BROADCASTING))
    assert seen(member_history) == MemberChanges()


def test_the_successor_takes_over_also_when_it_is_seen_with_the_leave() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", "web-0"), member("b", "web-1"))
    changes = seen(member_history, member("b", "web-1"), member("new", "web-0"))
    (hold,) = changes.began
    assert changes.taken == [(hold, "new")]
    assert len(member_history.holds) == 0


def test_a_successor_by_its_pods_controller_needs_no_label() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", address="pod"))
    (hold,) = seen(member_history).began
    assert seen(member_history, member("new", address="quiet")).taken == [(hold, "new")]


def test_a_hold_ends_with_time_or_with_the_policy() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", "web-0"), member("b", "web-1"))
    first = seen(member_history, member("b", "web-1")).began
    assert seen(member_history, member("b", "web-1"), now_ms=100).ended == first
    second = seen(member_history, now_ms=100).began
    assert seen(member_history, hold_ms=0, now_ms=101).ended == second


def test_nobody_is_waited_for_whose_successor_came_before_the_leave_was_seen() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", "web-0"), member("b", "web-1"))
    seen(member_history, member("a", "web-0"), member("b", "web-1"), member("new", "web-0"), now_ms=10)
    assert seen(member_history, member("b", "web-1"), member("new", "web-0"), now_ms=50) == MemberChanges()
    assert len(seen(member_history, member("b", "web-1"), now_ms=60).began) == 1, "but its own leave is waited out"


def test_who_came_long_ago_is_nobodys_successor() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", address="pod"))
    seen(member_history, member("a", address="pod"), member("b", address="pod"), now_ms=10)
    assert len(seen(member_history, member("b", address="pod"), now_ms=111).began) == 1


def test_those_that_a_new_leader_finds_are_nobodys_successors() -> None:
    member_history = MemberHistory()
    seen(member_history, member("a", address="pod"), member("b", address="pod"))
    assert len(seen(member_history, member("b", address="pod"), now_ms=1).began) == 1


LEFT = MessageQueue("T", "b", 1)


def left(*ids: str, settled=(), until_ms: int = 60) -> InheritedHolds:
    places = (
        HeldPlaceFact(client_id=own, place=own.partition(".")[0], until_wall_ms=until_ms, queues=(LEFT,)) for own in ids
    )
    return InheritedHolds(tuple(places), frozenset(settled))


def found(
    member_history: MemberHistory, inherited: InheritedHolds, *members: MemberFact, hold_ms: int = 100, now_ms: int = 0
) -> MemberChanges:
    return member_history.see(
        members,
        version=member_history.version + 1,
        hold_ms=hold_ms,
        place_of=place_of,
        now_ms=now_ms,
        wall_ms=now_ms,
        inherited=inherited,
    )


def test_a_new_leader_goes_on_waiting_for_whom_the_one_before_waited() -> None:
    member_history = MemberHistory()
    changes = found(member_history, left("web-0.1", settled="b"), member("b", "web-1"))
    ((queue, hold),) = changes.resumed["T"].items()
    assert (queue, hold.client_id, hold.until_ms, changes.taken) == (LEFT, "web-0.1", 60, [])
    assert seen(member_history, member("b", "web-1"), member("web-0.2", "web-0"), now_ms=10).taken == [
        (hold, "web-0.2")
    ]


def test_a_successor_that_came_while_nobody_led_takes_over_at_once() -> None:
    for own in ("web-0.2", "web-0.1"):
        changes = found(MemberHistory(), left("web-0.1", settled="b"), member("b", "web-0"), member(own, "web-0"))
        assert [(hold.client_id, successor) for hold, successor in changes.taken] == [("web-0.1", own)]


def test_who_has_queues_already_is_not_the_successor_that_a_new_leader_finds() -> None:
    changes = found(MemberHistory(), left("web-0.1", settled="b"), member("b", "web-0"))
    assert (len(changes.resumed["T"]), changes.taken) == (1, [])


def test_nothing_is_taken_up_that_is_over_or_that_the_policy_does_not_hold_any_more() -> None:
    assert found(MemberHistory(), left("web-0.1", until_ms=5), member("n", "web-0"), now_ms=5) == MemberChanges()
    assert found(MemberHistory(), left("web-0.1"), member("n", "web-0"), hold_ms=0) == MemberChanges()


def test_only_the_first_look_at_a_group_takes_anything_up() -> None:
    member_history = MemberHistory()
    seen(member_history, member("b", "web-1"))
    assert found(member_history, left("web-0.1"), member("b", "web-1")) == MemberChanges()
