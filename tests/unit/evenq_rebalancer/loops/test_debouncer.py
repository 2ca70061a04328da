"""Changes within a few ms become one round; time alone can bring one."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, EngineLimits
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, MemberFact, TopicFact
from evenq_rebalancer.loops.debouncer import Debouncer
from evenq_rebalancer.stats import RebalancerStats

from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn


class Working(FakeClock):
    """A clock that also moves by work."""

    worked_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.worked_ms


def report(*ids: str) -> BrokerReport:
    members = tuple(MemberFact(client_id=own, topics=("T",)) for own in ids)
    return BrokerReport(
        broker_name="b",
        groups=(GroupFact(group="g", strategy="AVG", members=members),),
        topics=(TopicFact(topic="T", read_queues=4),),
    )


async def test_changes_within_the_debounce_are_one_decision_and_the_grace_ends_by_itself() -> None:
    clock, stats, result = FakeClock(), RebalancerStats(), []
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0, grace_ms=1_000))
    debouncer = Debouncer(engine, clock=clock, stats=stats, debounce_ms=5, publish=result.extend)
    tasks = [spawn(debouncer.run(), name="run"), spawn(debouncer.watch(), name="watch")]
    engine.facts.opened("b", 1)
    for ids in ("a", "ab", "abc"):
        engine.reported(1, report(*ids), now_ms=clock.monotonic_ms())
        debouncer.poke()
        await clock.advance(1)
    await clock.advance(5)
    assert [decision.generation.counter for decision in result] == [1]
    assert list(result[0].shares) == ["a", "b", "c"]
    assert sum(stats.duration_buckets) == 1
    assert stats.duration_total_ms == 7, "from the first change at 0 ms to 5 ms of quiet after the last at 2 ms"
    engine.facts.closed("b", 1, clock.monotonic_ms())
    await clock.advance(900)
    assert list(engine.decisions())
    await clock.advance(300)
    assert not list(engine.decisions())
    assert len(result) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_end_of_the_warm_up_settles_what_waited() -> None:
    clock, result = FakeClock(), []
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=500))
    debouncer = Debouncer(engine, clock=clock, stats=RebalancerStats(), debounce_ms=5, publish=result.extend)
    tasks = [spawn(debouncer.run(), name="run"), spawn(debouncer.watch(), name="watch")]
    engine.facts.opened("b", 1)
    engine.reported(1, report("a"), now_ms=clock.monotonic_ms())
    debouncer.poke()
    await clock.advance(400)
    assert result == []
    await clock.advance(300)
    assert len(result) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_changes_without_an_end_are_settled_after_the_longest_debounce() -> None:
    clock, result = FakeClock(), []
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0))
    debouncer = Debouncer(
        engine, clock=clock, stats=RebalancerStats(), debounce_ms=5, debounce_max_ms=50, publish=result.append
    )
    task = spawn(debouncer.run(), name="run")
    engine.facts.opened("b", 1)
    for count in range(200):  # a join each ms
        engine.reported(1, report(*(f"c{number:03}" for number in range(count + 1))), now_ms=clock.monotonic_ms())
        debouncer.poke()
        await clock.advance(1)
    assert len(result) in {3, 4}, "one round in 50 ms, each with all that came until then"
    await clock.advance(50)
    assert len(result[-1][-1].shares) == 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_settled_for_long_rests_as_long_so_that_deciding_takes_half_a_core_at_most() -> None:
    clock, rounds = Working(), []
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0))

    def publish(_decisions) -> None:
        rounds.append(clock.monotonic_ms())
        clock.worked_ms += 40  # this long does a round take

    debouncer = Debouncer(
        engine, clock=clock, stats=RebalancerStats(), debounce_ms=5, debounce_max_ms=5, publish=publish
    )
    task = spawn(debouncer.run(), name="run")
    engine.facts.opened("b", 1)
    for count in range(100):
        engine.reported(1, report(*(f"c{number:03}" for number in range(count + 1))), now_ms=clock.monotonic_ms())
        debouncer.poke()
        await clock.advance(2)
    assert len(rounds) > 1
    assert all(later - earlier >= 80 for earlier, later in itertools.pairwise(rounds))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.spec("AL-9", "AL-20")
async def test_what_nobody_reads_is_said_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def zoned(broker: str, zone: str, *ids: str) -> BrokerReport:
        members = tuple(MemberFact(client_id=one, topics=("T",), zone=f"z{one[-1]}") for one in ids)
        return BrokerReport(
            broker_name=broker,
            zone=zone,
            groups=(GroupFact(group="g", strategy="MACHINE_ROOM", members=members),),
            topics=(TopicFact(topic="T", read_queues=2),),
        )

    def lines() -> list[str]:
        found = [one.getMessage() for one in caplog.records if one.getMessage().startswith("group g, topic T:")]
        caplog.clear()
        return found

    clock = FakeClock()
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0, grace_ms=1_000))
    debouncer = Debouncer(engine, clock=clock, stats=RebalancerStats(), debounce_ms=5, publish=lambda _: None)
    task = spawn(debouncer.run(), name="run")

    async def report(*ids: str) -> list[str]:
        for number, broker in enumerate(("a", "b"), 1):
            engine.reported(number, zoned(broker, f"z{number}", *ids), now_ms=clock.monotonic_ms())
        debouncer.poke()
        await clock.advance(20)
        return lines()

    engine.facts.opened("a", 1)
    engine.facts.opened("b", 2)
    (line,) = await report("m1")
    assert "MACHINE_ROOM gives 2 of 4 queues to no member (b/0, b/1), all of rooms z2" in line
    assert await report("m1", "n1") == [], "the same again"
    assert await report("m1", "n1", "o1") == ["group g, topic T: 1 of 3 members have no queue, among them o1"]
    assert await report("m1", "n1") == []
    assert await report("m1", "n1", "m2") == ["group g, topic T: every queue has a reader again"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
