"""One decision for a group, and what it remembers of the one before."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.decisions import Decision, Stamp, decide, gaps, history_after, idle
from evenq_rebalancer.core.inputs import ALL_BROKERS, BROADCASTING, Inputs
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import MemberFact
from evenq_rebalancer.core.sharing import ALL_MEMBERS, Division, divided, named

from evenq.errors import BadRequest
from evenq.model import Generation, MessageModel, MessageQueue

QUEUES = tuple(MessageQueue("T", "b", index) for index in range(4))


def share(group, inputs, by):
    return divided(group, inputs, by).shares


def by(name):
    return named(name, ("r1",))


def queues(count: int, broker: str = "b") -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("T", broker, index) for index in range(count))


def inputs(count: int, *ids: str, strategy: str = "AVG", mode=None, model=MessageModel.CLUSTERING, topics=()) -> Inputs:
    members = tuple(MemberFact(client_id=own, model=model, topics=topics) for own in ids)
    return Inputs(strategy=strategy, mode=mode, queues=queues(count), members=members)


def decided(now: Inputs, before=None, at_ms: int = 1_000):
    counter = before.generation.counter + 1 if before else 1
    return decide(
        group="g", topic="T", inputs=now, before=before, generation=Generation(1, counter), now_ms=at_ms, by=by
    )


def pop(number: int) -> RequestModeSetting:
    return RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=number)


def test_a_strategy_divides_and_every_member_is_named() -> None:
    assert share("g", inputs(3, "a", "b", "c", "d"), by) == {
        "a": queues(3)[:1],
        "b": queues(3)[1:2],
        "c": queues(3)[2:],
        "d": (),
    }


def test_without_a_strategy_everybody_gets_every_broker() -> None:
    both = Inputs(
        strategy="",
        mode=None,
        queues=queues(2, "b1") + queues(2, "b2"),
        members=(MemberFact(client_id="a"), MemberFact(client_id="b")),
    )
    brokers = (MessageQueue("T", "b1", -1), MessageQueue("T", "b2", -1))
    assert share("g", both, by) == {"a": brokers, "b": brokers}
    assert both.dividing == ALL_BROKERS
    assert both.request_mode is RequestMode.POP


def test_broadcasting_members_get_all_queues_and_the_others_share_them() -> None:
    mixed = Inputs(
        strategy="AVG",
        mode=None,
        queues=queues(4),
        members=(
            MemberFact(client_id="a"),
            MemberFact(client_id="b"),
            MemberFact(client_id="x", model=MessageModel.BROADCASTING),
        ),
    )
    assert share("g", mixed, by) == {"a": queues(4)[:2], "b": queues(4)[2:], "x": queues(4)}
    everybody = decided(inputs(4, "x", "y", model=MessageModel.BROADCASTING))
    assert everybody.strategy == BROADCASTING
    assert [holding.owner for holding in everybody.holdings] == [ALL_MEMBERS] * 4


@pytest.mark.parametrize(
    ("number", "ids", "expected"),
    [
        (1, "abcd", {"a": [0, 1, 2, 3], "b": [2, 3, 4, 5], "c": [4, 5, 6, 7], "d": [6, 7, 0, 1]}),
        (
            2,
            "abcd",
            {"a": [0, 1, 2, 3, 4, 5], "b": [2, 3, 4, 5, 6, 7], "c": [4, 5, 6, 7, 0, 1], "d": [6, 7, 0, 1, 2, 3]},
        ),
    ],
)
def test_pop_sharing_adds_the_shares_of_the_next_members(number, ids, expected) -> None:
    shares = share("g", inputs(8, *ids, strategy="", mode=pop(number)), by)
    assert {own: [queue.queue_id for queue in mine] for own, mine in shares.items()} == expected


@pytest.mark.parametrize("number", [0, 3, 99])
def test_pop_sharing_by_none_or_by_all_is_the_all_brokers_answer(number) -> None:
    assert inputs(8, *"abcd", mode=pop(number)).dividing == ALL_BROKERS


def test_pop_sharing_with_more_members_than_queues_gives_each_member_one() -> None:
    shares = share("g", inputs(2, *"abcde", mode=pop(1)), by)
    assert [mine[0].queue_id for mine in shares.values()] == [0, 1, 0, 1, 0]


def test_mode_pull_without_a_strategy_divides_by_avg() -> None:
    asked = inputs(2, "a", "b", strategy="", mode=RequestModeSetting(mode=RequestMode.PULL))
    assert (asked.dividing, asked.request_mode) == ("AVG", RequestMode.PULL)


def test_no_queues_give_nobody_anything_and_no_members_leave_all_unowned() -> None:
    assert share("g", inputs(0, "a", "b"), by) == {"a": (), "b": ()}
    nobody = decided(inputs(3))
    assert nobody.unowned == 3
    assert nobody.shares == {}


def test_a_queue_that_stays_keeps_its_time_and_reason_and_one_that_moves_tells_why() -> None:
    first = decided(inputs(4, "a", "b"))
    second = decided(inputs(4, "a", "b", "c"), first, at_ms=2_000)
    rows = {holding.queue.queue_id: holding for holding in second.holdings}
    assert (rows[0].owner, rows[0].since_ms, rows[0].reason) == ("a", 1_000, "first decision for this group and topic")
    assert (rows[2].owner, rows[2].since_ms, rows[2].previous_owner) == ("b", 1_000, "")
    assert (rows[3].owner, rows[3].since_ms, rows[3].previous_owner) == ("c", 2_000, "b")
    assert rows[3].reason == second.reason == "c joined"
    assert (first.moves, second.moves) == (0, 1)
    assert second.generation > first.generation


def test_reasons_name_who_left_and_what_changed() -> None:
    first = decided(inputs(8, *"abcdef"))
    assert decided(inputs(8, "a", "z"), first).reason == "z joined; b, c, d and 2 more left"
    assert decided(inputs(9, *"abcdef"), first).reason == "queues changed from 8 to 9"
    circle = inputs(8, *"abcdef", strategy="AVG_BY_CIRCLE")
    assert decided(circle, first).reason == "strategy changed from AVG to AVG_BY_CIRCLE"
    assert decided(inputs(8, *"abcdef", topics=("T",)), first).reason == "a member changed its model or subscription"


def test_rg_8_a_member_without_the_subscription_is_told() -> None:
    members = (MemberFact(client_id="a", topics=("T",)), MemberFact(client_id="b", topics=("U",)))
    result = decided(Inputs(strategy="AVG", mode=None, queues=queues(2), members=members, topic="T"))
    assert "b does not subscribe to T" in result.reason


def test_idle_members_and_owners_are_counted() -> None:
    lonely = decided(inputs(1, "a", "b", "c"))
    assert (lonely.idle, lonely.owners, lonely.unowned) == (["b", "c"], 1, 0)


def test_joining_an_all_brokers_group_moves_nothing() -> None:
    first = decided(inputs(4, "a", strategy=""))
    assert decided(inputs(4, "a", "b", strategy=""), first).moves == 0


@pytest.mark.parametrize("name", ["CONFIG", "NONSENSE", "avg"])
def test_strategies_that_a_server_cannot_decide_by_are_refused(name) -> None:
    with pytest.raises(BadRequest):
        named(name, ("r1",))


def test_machine_room_needs_rooms() -> None:
    with pytest.raises(BadRequest, match="machine_rooms"):
        named("MACHINE_ROOM", ())
    assert named("MACHINE_ROOM", ("r1",)).name == "MACHINE_ROOM"


def division(owners, queues=QUEUES, one=True) -> Division:
    return Division({}, queues, list(owners), one_row_each=one)


def stamp(number: int) -> Stamp:
    return Stamp(number, f"reason {number}", Generation(1, number))


def test_a_queue_that_stays_keeps_its_stamp_and_one_that_moves_gets_the_new_one() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    second, moves = history_after(first, division("aabc"), stamp(2), waiting={})
    assert moves == 1
    assert [row.since_ms for row in second.stamps] == [1, 1, 1, 2]
    assert list(second.previous) == ["", "", "", "b"]
    assert history_after(second, division("aabc"), stamp(3), waiting={})[0].stamps is second.stamps


def test_other_queues_make_the_same_rows_the_long_way() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    wider = (*QUEUES, MessageQueue("T", "b", 4))
    second, moves = history_after(first, division("aabca", wider), stamp(2), waiting={})
    assert moves == 1
    assert [row.since_ms for row in second.stamps] == [1, 1, 1, 2, 2]
    assert list(second.previous) == ["", "", "", "b", ""]


def test_who_had_a_held_queue_is_still_who_had_it_before() -> None:
    first, _ = history_after(None, division("aabb"), stamp(1), waiting={})
    held, moves = history_after(first, division(["a", "a", "", ""]), stamp(2), waiting={})
    assert (moves, held.previous[2]) == (0, "b")
    for queues in (QUEUES, QUEUES[1:]):
        owners = ["a", "a", "c", "b"][-len(queues) :]
        taken, moves = history_after(held, division(owners, queues), stamp(3), waiting={QUEUES[2]: 1, QUEUES[3]: 1})
        assert (moves, list(taken.previous)[-2:]) == (1, ["b", "b"]), "c followed b, and b came back"


def test_nobodys_queue_that_gets_an_owner_has_not_moved() -> None:
    first, _ = history_after(None, division(["", "", "", ""]), stamp(1), waiting={})
    assert history_after(first, division("aaaa"), stamp(2), waiting={})[1] == 0


def test_queues_with_several_owners_have_a_row_for_each() -> None:
    twice = [queue for queue in QUEUES for _ in range(2)]
    first, _ = history_after(None, division("abbccdda", twice, one=False), stamp(1), waiting={})
    second, _ = history_after(first, division("abbccdde", twice, one=False), stamp(2), waiting={})
    assert [row.since_ms for row in second.stamps] == [1] * 7 + [2]
    assert second.previous[7] == "a"


ROOMS = tuple(MessageQueue("T", broker, number) for broker in ("r1@a", "r2@b") for number in range(4))


def decision(strategy: str, *ids: str, queues: tuple[MessageQueue, ...] = ROOMS, topic: str = "T") -> Decision:
    members = tuple(MemberFact(client_id=one, model=MessageModel.CLUSTERING, topics=()) for one in ids)
    return decide(
        group="g",
        topic=topic,
        inputs=Inputs(strategy=strategy, mode=None, queues=queues, members=members),
        before=None,
        generation=Generation(1, 1),
        now_ms=1,
        by=lambda name: named(name, ("r1",)),
    )


def test_al_20_rooms_that_nobody_covers_are_named() -> None:
    result = gaps(decision("MACHINE_ROOM", "c1", "c2"))
    assert result.startswith("MACHINE_ROOM gives 4 of 8 queues to no member (r2@b/0, r2@b/1, r2@b/2, r2@b/3)")
    assert "all of rooms r2 among them; run evenq group doctor g" in result


def test_many_queues_are_counted() -> None:
    many = tuple(MessageQueue("T", "r2@b", number) for number in range(9))
    assert "r2@b/4, 4 more)" in gaps(decision("MACHINE_ROOM", "c1", queues=many))


def test_al_9_members_without_a_queue_are_counted() -> None:
    assert idle(decision("AVG", *(f"c{number}" for number in range(10)))) == (
        "2 of 10 members have no queue, among them c8"
    )
    assert not idle(decision("AVG", "c1", "c2", queues=ROOMS[:1], topic="%RETRY%g")), "usual, and no one's mistake"


def test_a_division_that_covers_all_says_nothing() -> None:
    assert gaps(decision("AVG", "c1", "c2")) == idle(decision("AVG", "c1", "c2")) == ""
    assert gaps(decision("", "c1", "c2")) == idle(decision("", "c1", "c2")) == "", "everybody reads every broker"
    assert gaps(decision("AVG")) == "", "no one is there: the group sleeps"
