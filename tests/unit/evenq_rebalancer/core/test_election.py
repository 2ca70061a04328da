"""One candidate by tables; several over one lease by chance: never do two of them believe that they lead."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from evenq_rebalancer.core.election import Begin, Elector, End, LeaseTiming, Read, Record, SeenRecord, Write
from hypothesis import given, settings
from hypothesis import strategies as st

TIMING = LeaseTiming(duration_ms=6_000, renew_ms=4_000, retry_ms=1_000)


def seen(holder: str, version: str = "1", *, began_ms: int = 100, duration_ms: int = 6_000) -> SeenRecord:
    return SeenRecord(record=Record(holder=holder, duration_ms=duration_ms, began_ms=began_ms), version=version)


def leading(now_ms: int = 0, wall_ms: int = 5_000) -> Elector:
    elector = Elector("a", TIMING)
    (write,) = elector.observed(None, now_ms=now_ms, wall_ms=wall_ms)
    assert isinstance(write, Write)
    assert elector.written(write, "1", now_ms=now_ms) == [Begin(wall_ms)]
    return elector


def test_a_lease_that_does_not_exist_is_made_and_its_maker_leads() -> None:
    elector = Elector("a", TIMING)
    assert elector.due(now_ms=0) == [Read()]
    (write,) = elector.observed(None, now_ms=10, wall_ms=5_000)
    assert write == Write(record=Record(holder="a", duration_ms=6_000, began_ms=5_000), version="", started_ms=10)
    assert not elector.leads(10)
    assert elector.written(write, "1", now_ms=30) == [Begin(5_000)]
    assert elector.leads(4_009)
    assert not elector.leads(4_010), "4 s from the moment at which the write began"


@pytest.mark.parametrize(
    ("holder", "began_ms", "wall_ms", "epoch"),
    [("", 100, 9_000, 9_000), ("", 9_500, 9_000, 9_501), ("a", 9_000, 9_000, 9_001)],
)
def test_a_free_lease_is_taken_at_once_and_its_epoch_only_grows(holder, began_ms, wall_ms, epoch) -> None:
    elector = Elector("a", TIMING)
    (write,) = elector.observed(seen(holder, began_ms=began_ms), now_ms=0, wall_ms=wall_ms)
    assert elector.written(write, "2", now_ms=0) == [Begin(epoch)]


def test_somebodys_lease_is_taken_only_after_its_duration_without_any_sign_of_life() -> None:
    elector = Elector("a", TIMING)
    assert elector.observed(seen("b", "1"), now_ms=0, wall_ms=1) == []
    assert elector.observed(seen("b", "2"), now_ms=5_000, wall_ms=1) == []
    assert elector.observed(seen("b", "2"), now_ms=10_999, wall_ms=1) == []
    assert elector.holder(10_999) == "b"
    assert elector.holder(11_000) == ""
    (write,) = elector.observed(seen("b", "2"), now_ms=11_000, wall_ms=1)
    assert write == Write(record=Record(holder="a", duration_ms=6_000, began_ms=101), version="2", started_ms=11_000)


def test_a_candidate_that_could_not_look_for_long_takes_only_what_its_holder_has_stopped_to_believe() -> None:
    """Time of its own blindness counts, unlike for copies of a broker (decision 84): a holder that cannot renew stops by
    itself, so nobody is left to wait for; and one that did renew is seen to, at the look or by the version of the write.
    """
    paused, holder = Elector("b", TIMING), leading()
    assert paused.observed(seen("a", "1"), now_ms=0, wall_ms=1) == []
    (renewal,) = holder.due(now_ms=3_000)
    assert isinstance(renewal, Write)
    assert holder.written(renewal, "2", now_ms=3_000) == []
    assert paused.observed(seen("a", "2"), now_ms=30_000, wall_ms=1) == [], "it was renewed meanwhile"
    (write,) = paused.observed(seen("a", "2"), now_ms=36_000, wall_ms=1)
    assert isinstance(write, Write)
    assert write.version == "2", "else it loses the race"
    assert not holder.leads(7_000)


@pytest.mark.parametrize(("duration_ms", "over_ms"), [(9_000, 9_000), (0, 6_000), (-5, 6_000)])
def test_the_holders_own_duration_counts_if_it_is_longer(duration_ms, over_ms) -> None:
    elector = Elector("a", TIMING)
    foreign = seen("b", duration_ms=duration_ms)
    assert elector.observed(foreign, now_ms=0, wall_ms=1) == []
    assert elector.observed(foreign, now_ms=over_ms - 1, wall_ms=1) == []
    assert len(elector.observed(foreign, now_ms=over_ms, wall_ms=1)) == 1


def test_a_leader_renews_without_reading_and_keeps_its_epoch() -> None:
    elector = leading()
    for round_ in range(1, 5):
        now_ms = round_ * 1_000
        (write,) = elector.due(now_ms=now_ms)
        assert isinstance(write, Write)
        assert (write.record.began_ms, write.version) == (5_000, str(round_))
        assert elector.written(write, str(round_ + 1), now_ms=now_ms) == []
    assert elector.leads(7_999)
    assert elector.holder(7_999) == "a"


def test_a_leader_that_cannot_renew_stops_before_anybody_may_follow() -> None:
    elector = leading()
    assert elector.failed(now_ms=1_000) == []
    assert elector.due(now_ms=2_000) == [Read()]
    assert elector.failed(now_ms=3_999) == []
    (end,) = elector.tick(4_000)
    assert isinstance(end, End)
    assert elector.tick(4_001) == []
    assert elector.holder(4_001) == ""


def test_a_paused_leader_does_not_lead_when_it_wakes_even_before_anything_ran() -> None:
    elector = leading()
    assert not elector.leads(60_000)
    commands = elector.due(now_ms=60_000)
    assert [type(command) for command in commands] == [End, Read]


def test_a_renewal_that_came_back_too_late_does_not_count() -> None:
    elector = leading()
    (write,) = elector.due(now_ms=1_000)
    (end,) = elector.written(write, "2", now_ms=5_000)
    assert isinstance(end, End)
    assert not elector.leads(5_000)


def test_a_renewal_that_comes_back_after_the_end_does_not_bring_the_old_epoch_back() -> None:
    elector = leading()
    (write,) = elector.due(now_ms=3_500)
    assert [type(command) for command in elector.tick(4_000)] == [End]
    assert elector.written(write, "2", now_ms=4_100) == []
    assert elector.due(now_ms=4_500) == [Read()]
    (again,) = elector.observed(seen("a", "2", began_ms=5_000), now_ms=4_500, wall_ms=5_000)
    assert elector.written(again, "3", now_ms=4_500) == [Begin(5_001)]


def test_a_lost_race_is_looked_at_before_the_next_write() -> None:
    elector = leading()
    assert len(elector.due(now_ms=1_000)) == 1
    assert elector.lost_race(now_ms=1_000) == []
    assert elector.due(now_ms=2_000) == [Read()]
    (again,) = elector.observed(seen("a", "7", began_ms=5_000), now_ms=2_000, wall_ms=1)
    assert again.version == "7", "a client only put a label on the lease"
    assert elector.lost_race(now_ms=2_000) == []
    (end,) = elector.observed(seen("b", "8", began_ms=5_001), now_ms=2_500, wall_ms=1)
    assert isinstance(end, End)
    assert elector.holder(2_500) == "b"


def test_a_write_of_ones_own_that_was_thought_to_have_failed_begins_a_new_epoch() -> None:
    elector = Elector("a", TIMING)
    (write,) = elector.observed(None, now_ms=0, wall_ms=5_000)
    assert elector.failed(now_ms=2_000) == []
    (again,) = elector.observed(SeenRecord(record=write.record, version="1"), now_ms=2_500, wall_ms=5_000)
    assert elector.written(again, "2", now_ms=2_500) == [Begin(5_001)]


def test_who_resigns_lets_go_of_the_lease_and_never_leads_again() -> None:
    elector = leading()
    end, write = elector.resign(now_ms=1_500)
    assert isinstance(end, End)
    assert isinstance(write, Write)
    assert (write.record.holder, write.record.began_ms, write.version) == ("", 5_000, "1")
    assert not elector.leads(1_500)
    assert elector.written(write, "2", now_ms=1_500) == []
    assert elector.due(now_ms=2_000) == [Read()]
    assert elector.observed(seen("", "2"), now_ms=2_000, wall_ms=1) == []
    assert elector.observed(seen("b", "3"), now_ms=3_000, wall_ms=1) == []
    assert elector.holder(3_000) == "b", "so that callers can be known where to go"
    assert Elector("b", TIMING).resign(now_ms=0) == [], "who does not lead has nothing to let go of"


def test_a_lease_that_was_deleted_ends_the_leadership_and_is_made_anew() -> None:
    elector = leading()
    elector.failed(now_ms=500)
    end, write = elector.observed(None, now_ms=1_000, wall_ms=6_000)
    assert isinstance(end, End)
    assert elector.written(write, "1", now_ms=1_000) == [Begin(6_000)]


def test_a_deleted_lease_of_somebody_else_is_made_anew_only_when_its_holder_cannot_believe_any_more() -> None:
    elector = Elector("a", TIMING)
    elector.observed(seen("b"), now_ms=0, wall_ms=1)
    assert elector.observed(None, now_ms=5_999, wall_ms=1) == []
    (write,) = elector.observed(None, now_ms=6_000, wall_ms=1)
    assert (write.version, write.record.began_ms) == ("", 101)


@pytest.mark.parametrize("times", [(6_000, 6_000, 1_000), (6_000, 1_000, 1_000), (6_000, 4_000, 0)])
def test_times_that_would_let_two_lead_are_refused(times) -> None:
    with pytest.raises(ValueError, match="does not hold"):
        LeaseTiming(duration_ms=times[0], renew_ms=times[1], retry_ms=times[2])


# --------------------------------------------------------------------------------------------- several, by chance


@dataclass
class Candidate:
    """An elector with a clock of its own, whose calls to the lease take time and get lost."""

    elector: Elector
    rate: float
    offset_ms: int
    wall_offset_ms: int
    waiting: Write | Read | None = None
    answer: object = None
    lands_ms: int = 0
    returns_ms: int = 0
    done_at_lease: bool = False
    next_ms: int = 0
    epochs: list[int] = field(default_factory=list)

    def local(self, true_ms: int) -> int:
        return int(true_ms * self.rate) + self.offset_ms


class World:
    """One lease, candidates, and true time that no candidate knows."""

    def __init__(self, candidates: list[Candidate], pick) -> None:
        self.candidates, self.pick = candidates, pick
        self.record: Record | None = None
        self.version = 0
        self.began: list[int] = []

    def run(self, until_ms: int) -> None:
        for true_ms in range(0, until_ms, 250):
            for candidate in self.candidates:
                self._move(candidate, true_ms)
            leaders = [one for one in self.candidates if one.elector.leads(one.local(true_ms))]
            assert len(leaders) <= 1, f"{len(leaders)} lead at {true_ms}"

    def _move(self, one: Candidate, true_ms: int) -> None:
        now_ms = one.local(true_ms)
        self._do(one, [*one.elector.tick(now_ms)], true_ms)
        if one.waiting is not None:
            if not one.done_at_lease and true_ms >= one.lands_ms:
                one.answer, one.done_at_lease = self._at_lease(one.waiting), True
            if true_ms >= one.returns_ms:
                self._return(one, true_ms)
        elif true_ms >= one.next_ms:
            one.next_ms = true_ms + TIMING.retry_ms
            self._do(one, one.elector.due(now_ms=now_ms), true_ms)

    def _at_lease(self, call: Write | Read) -> object:
        if isinstance(call, Read):
            return None if self.record is None else SeenRecord(record=self.record, version=str(self.version))
        if call.version != ("" if self.record is None else str(self.version)):
            return False
        self.record, self.version = call.record, self.version + 1
        return str(self.version)

    def _return(self, one: Candidate, true_ms: int) -> None:
        now_ms, call, one.waiting = one.local(true_ms), one.waiting, None
        fate = self.pick(5)
        if fate == 0 or not one.done_at_lease:  # the answer is lost, whatever happened at the lease
            self._do(one, one.elector.failed(now_ms=now_ms), true_ms)
        elif isinstance(call, Read):
            wall_ms = true_ms + one.wall_offset_ms
            self._do(one, one.elector.observed(one.answer, now_ms=now_ms, wall_ms=wall_ms), true_ms)
        elif one.answer is False:
            self._do(one, one.elector.lost_race(now_ms=now_ms), true_ms)
        else:
            self._do(one, one.elector.written(call, str(one.answer), now_ms=now_ms), true_ms)

    def _do(self, one: Candidate, commands, true_ms: int) -> None:
        for command in commands:
            match command:
                case Begin(epoch):
                    self.began.append(epoch)
                case Read() | Write():
                    way = self.pick(12) * 500 if self.pick(4) == 0 else 0
                    one.waiting, one.done_at_lease = command, False
                    one.lands_ms, one.returns_ms = true_ms + way, true_ms + way + self.pick(6) * 250
                case End():
                    pass


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 3))
def test_two_candidates_never_believe_at_once_and_epochs_grow_whatever_happens(seed, count) -> None:
    random = Random(seed)
    candidates = [
        Candidate(
            Elector("abc"[index], TIMING),
            rate=random.choice((0.85, 1.0, 1.15)),
            offset_ms=random.randrange(10**6),
            wall_offset_ms=random.randrange(-(10**6), 10**6) + 10**9,
        )
        for index in range(count)
    ]
    world = World(candidates, random.randrange)
    world.run(60_000)
    assert world.began == sorted(set(world.began)), "each leadership has a bigger epoch than all before"


def test_without_faults_somebody_leads_soon_and_goes_on_leading() -> None:
    candidates = [Candidate(Elector(name, TIMING), 1.0, 0, 10**9) for name in "abc"]
    world = World(candidates, lambda sides: sides - 1)
    world.run(3_000)
    assert len(world.began) == 1
    world.run(3_000)
