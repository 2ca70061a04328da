"""The replication protocol in its model: walks, a small exhaustive scope, and mutants of every rule.

`make replication-model` plays the long form. Four mutants hide too well for a short run of walks; each is killed by the
story that it allows, and the same story with the real rules breaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from evenq_broker.core.replication.config import Timing
from evenq_broker.core.replication.record import Pair
from evenq_broker.core.replication.rules import Role
from replication_model.founding import Founding, FoundingWorld
from replication_model.mutants import FOUNDING_MUTANTS, MEMBER_MUTANTS, MUTANTS, REMEMBERING_MUTANTS, UNCLEAN_MUTANTS
from replication_model.remembering import Remembering
from replication_model.search import Scope, Search
from replication_model.unclean import Unclean, UncleanWorld
from replication_model.walks import ChangingCopies, FullDisks, HandingOver, play
from replication_model.world import Rules, Violation, World

STILL = Timing(retry_ms=1, renew_ms=1 << 40, suspect_ms=1 << 41, lag_ms=1 << 40, backoff_ms=1, drain_ms=1 << 40)
WALKS = 400
FOUNDERS_WITHOUT_POWER = (1_951, 3_104)
"""Walks in which a founder loses power before it hears that its record was written, where memory counts."""
REFUSED_AT_THE_END = (8_720,)
"""A walk in which logs that are of no group are refused only once its faults are over."""


def played(walks: Sequence[Any], *, healed: int) -> list[Any]:
    """The outcomes: no invariant is broken, and more than `healed` of them needed rounds to heal."""
    outcomes = [walk.play() for walk in walks]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.healed_rounds > 0 for outcome in outcomes) > healed
    return outcomes


def test_walks_break_no_invariant_and_heal() -> None:
    outcomes = [play(seed, Rules()) for seed in range(WALKS)]
    assert [(outcome.seed, outcome.problem) for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.healed_rounds > 0 for outcome in outcomes) > WALKS // 8
    assert sum(outcome.epochs for outcome in outcomes) > WALKS, "walks in which nothing happens prove nothing"
    assert sum(outcome.committed for outcome in outcomes) > WALKS


def test_leaders_that_hand_over_or_go_on_after_all_break_no_invariant_and_heal() -> None:
    walks = [HandingOver(seed, Rules()) for seed in range(WALKS // 2)]
    outcomes = played(walks, healed=WALKS // 16)
    assert sum(outcome.committed for outcome in outcomes) > WALKS // 2
    assert sum(walk.resumed for walk in walks) > WALKS // 8


@pytest.mark.slow
def test_leaders_that_hand_over_because_their_disks_are_full_break_no_invariant_and_heal() -> None:
    walks = [FullDisks(seed, Rules()) for seed in range(WALKS)]
    played(walks, healed=WALKS // 16)
    assert sum(walk.handed for walk in walks) > WALKS // 16


def test_copies_that_come_and_go_break_no_invariant_and_heal() -> None:
    walks = [ChangingCopies(seed, Rules()) for seed in range(WALKS // 2)]
    outcomes = played(walks, healed=WALKS // 16)
    assert sum(outcome.committed for outcome in outcomes) > WALKS // 2
    assert sum(walk.changes for walk in walks) > WALKS // 4


def test_groups_that_are_founded_on_nothing_or_on_one_copy_break_no_invariant_and_heal() -> None:
    walks = [Founding(seed, Rules()) for seed in (*range(WALKS), *FOUNDERS_WITHOUT_POWER, *REFUSED_AT_THE_END)]
    outcomes = played(walks, healed=WALKS // 16)
    assert sum(outcome.committed for outcome in outcomes) > WALKS
    worlds = [walk.world for walk in walks]
    assert sum(bool(world.alone) for world in worlds if isinstance(world, FoundingWorld)) > WALKS // 2
    assert sum(world.refused for world in worlds if isinstance(world, FoundingWorld)) > WALKS // 8, "R19"


def test_unclean_elections_lose_what_their_copy_lacks_and_nothing_else_and_the_group_goes_on() -> None:
    """D12: whatever the chosen copy has stays, what is committed from then on is never lost, and what is lost is known
    at the moment of the election. Copies that knew of more are cut, once.
    """
    walks = [Unclean(seed, Rules()) for seed in range(WALKS)]
    outcomes = [walk.play() for walk in walks]
    assert [(one.seed, one.problem) for one in outcomes if one.problem] == []
    worlds = [walk.world for walk in walks if isinstance(walk.world, UncleanWorld)]
    assert sum(len(world.record.unclean) for world in worlds) > WALKS // 8
    assert sum(len(world.given_up) for world in worlds) > WALKS // 8
    assert all(one.healed_rounds for one in outcomes if one.seed % 4 == 0)


@pytest.mark.slow
def test_starts_that_cannot_read_the_record_follow_whom_they_remember_and_break_no_invariant() -> None:
    """R23: judged besides, that none of them proposes a record before it has read it."""
    walks = [Remembering(seed, Rules()) for seed in range(2 * WALKS)]
    outcomes = played(walks, healed=WALKS // 8)
    assert sum(one.committed for one in outcomes) > WALKS
    assert sum(walk.world.followed > 0 for walk in walks) > WALKS // 8


@pytest.mark.parametrize("name", REMEMBERING_MUTANTS)
def test_walks_in_which_starts_cannot_read_the_record_kill_the_mutant(name: str) -> None:
    assert any(Remembering(seed, REMEMBERING_MUTANTS[name]).play().problem for seed in range(200))


@pytest.mark.parametrize("name", UNCLEAN_MUTANTS)
def test_walks_with_unclean_elections_kill_the_mutant(name: str) -> None:
    assert any(Unclean(seed, UNCLEAN_MUTANTS[name]).play().problem for seed in range(600))


def test_a_walk_is_the_same_twice() -> None:
    assert [play(seed, Rules()) for seed in range(20)] == [play(seed, Rules()) for seed in range(20)]


def test_a_small_scope_has_no_violation_in_any_order() -> None:
    result = Search(Rules(), Scope(epochs=1, records=1, calls=1, wipes=1, cuts=0)).run(1_500)
    assert result.problem == ""
    assert result.states >= 500


# The mutants.

QUICKLY = {
    "R8 altogether": 600,
    "R4 cut at committed": 600,
    "R10 store id": 600,
    "R1 only from in sync": 200,
    "R5 durable confirmations": 200,
    "R6 union": 800,
    "R2 new epoch": 800,
    "R9 floor": 200,
    "R21 only what is next": 100,
}
"""Rule -> walks within which its mutant is killed, with room."""


@pytest.mark.parametrize("name", QUICKLY)
def test_walks_kill_the_mutant(name: str) -> None:
    assert any(play(seed, MUTANTS[name]).problem for seed in range(QUICKLY[name]))


MEMBERS_QUICKLY = {
    "R15 admission of who is added": 200,
    "R16 floor of a removal": 300,
    "R17 only members count": 200,
    "R18 minimum of what is in sync": 600,
}


@pytest.mark.parametrize("name", MEMBERS_QUICKLY)
def test_walks_with_changes_of_the_copies_kill_the_mutant(name: str) -> None:
    assert any(ChangingCopies(seed, MEMBER_MUTANTS[name]).play().problem for seed in range(MEMBERS_QUICKLY[name]))


@pytest.mark.parametrize("name", FOUNDING_MUTANTS)
def test_walks_from_before_the_first_record_kill_the_mutant(name: str) -> None:
    assert any(Founding(seed, FOUNDING_MUTANTS[name]).play().problem for seed in range(200))


def group(rules: Rules) -> World:
    """Broker 0 leads epoch 1; everybody has its first record."""
    world = World(rules, timing=STILL, in_order=True)
    for id_ in (0, 1, 2):
        world.observe(id_)
    elect(world, 0)
    assert len(world.committed) == 1
    return world


def elect(world: World, id_: int) -> None:
    world.stand(id_)
    world.call(0, "known")
    for other in (0, 1, 2):
        world.observe(other)
    sync(world)


def sync(world: World) -> None:
    for id_ in (0, 1, 2):
        if world.nodes[id_].replica is not None:
            world.sync(id_)
    world.judge()


def isolate(world: World, *links: tuple[int, int]) -> None:
    world.cut = {link for one, other in links for link in ((one, other), (other, one))}


def swap(world: World, leader: int, isr: tuple[Pair, ...]) -> bool:
    world.propose(leader, isr)
    if not world.calls:
        return False
    world.call(0, "known")
    world.judge()
    return True


def ask_again(world: World, id_: int) -> None:
    world.now_ms += 1
    world.tick(id_)


def late_reader(rules: Rules) -> None:
    """A deposed leader, and a follower that restarts and reads the record as it was before."""
    world = group(rules)
    pairs = world.record.isr
    isolate(world, (0, 1), (0, 2))
    world.stand(1)
    world.call(0, "known")
    world.observe(2)
    sync(world)
    assert swap(world, 1, pairs[1:])
    world.append(1)
    sync(world)
    assert len(world.committed) >= 3
    assert world.nodes[0].replica.role is Role.READY  # type: ignore[union-attr]  # it has heard of nothing
    isolate(world, (0, 1))
    world.kill(2)
    world.reads_late = 2
    world.start(2)
    world.judge()
    sync(world)


def early_admission(rules: Rules) -> None:
    """A new leader that does not know yet what was committed, and a follower that has next to nothing on disk."""
    world = group(rules)
    pairs = world.record.isr
    isolate(world, (0, 2), (1, 2))
    assert swap(world, 0, pairs[:2])
    world.append(0)
    sync(world)
    assert len(world.committed) == 2
    world.kill(0)
    world.kill(1)
    world.wipe(2)
    world.start(1)
    isolate(world)
    world.stand(1)
    world.call(0, "known")
    world.start(2)
    ask_again(world, 2)
    assert len(world.nodes[2].log) == 3
    assert world.nodes[2].synced == 0
    swap(world, 1, (pairs[1], Pair(2, world.nodes[2].store_id)))


def replaced_disk(rules: Rules) -> None:
    """A broker confirms with one disk, comes back with another, and a third broker was away meanwhile."""
    world = group(rules)
    pairs = world.record.isr
    isolate(world, (0, 2))
    world.append(0)
    sync(world)
    assert len(world.committed) == 1
    world.wipe(1)
    world.start(1)
    world.sync(1, 1)
    assert swap(world, 0, (pairs[0], Pair(1, world.nodes[1].store_id), pairs[2]))
    isolate(world)
    ask_again(world, 2)
    world.sync(2)
    world.judge()


STORIES: dict[str, Callable[[Rules], None]] = {
    "R3 refuse lower epochs": late_reader,
    "R3 synced epoch": late_reader,
    "R8 epoch start": early_admission,
    "R6 by broker, not by pair": replaced_disk,
}


def queued_of_an_earlier_epoch(rules: Rules) -> None:
    """A follower has a record of a leader that dies before it is written, and then copies the log of the next one."""
    world = group(rules)
    world.in_order = False
    world.append(0)
    world.write(0)
    world.append(0)
    while world.net:
        world.deliver(0)
    world.write(2)
    isolate(world, (0, 2))
    world.write(0)
    while world.net:
        world.deliver(0)
    follower = world.nodes[1].replica
    assert follower is not None
    assert (len(world.nodes[1].queue), len(follower.follower.queued)) == (1, 1)
    world.in_order = True
    world.kill(0)
    isolate(world)
    world.stand(2)
    world.call(0, "known")
    world.observe(1)
    world.sync(2)
    world.start(0)
    world.observe(0)
    world.sync(0)
    pairs = world.record.isr
    assert swap(world, 2, (pairs[0], pairs[2]))
    world.append(2)
    sync(world)
    ask_again(world, 1)
    sync(world)
    assert world.nodes[1].log == world.nodes[2].log == world.committed


@pytest.mark.parametrize("name", STORIES)
def test_the_story_kills_the_mutant_and_not_the_rule(name: str) -> None:
    STORIES[name](Rules())
    with pytest.raises(Violation, match="I1"):
        STORIES[name](MUTANTS[name])


def test_what_an_earlier_leader_sent_ahead_is_never_written_behind_the_next_ones_records() -> None:
    queued_of_an_earlier_epoch(Rules())
    with pytest.raises(Violation, match="I4"):
        queued_of_an_earlier_epoch(MUTANTS["R21 of this match of the logs"])


def test_every_mutant_has_its_test() -> None:
    assert {*QUICKLY, *STORIES, "R21 of this match of the logs"} == set(MUTANTS)
    assert len(MUTANTS) == 14
    assert set(MEMBERS_QUICKLY) == set(MEMBER_MUTANTS)
