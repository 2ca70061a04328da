"""What Prometheus reads."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, EngineLimits
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, MemberFact, TopicFact
from evenq_rebalancer.metrics import metrics
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.stats import RebalancerStats

from evenq.model.balance import BalancePolicy
from evenq.serving.program.metrics import exposition


def tell(engine: AssignmentEngine, *ids: str, gone: tuple[str, ...] = ()) -> None:
    members = tuple(MemberFact(client_id=own, topics=("T",)) for own in ids)
    groups = () if gone else (GroupFact(group="g", strategy="AVG", members=members),)
    topics = (TopicFact(topic="T", read_queues=2),)
    engine.reported(1, BrokerReport(broker_name="b", groups=groups, topics=topics, groups_gone=gone), now_ms=0)
    engine.settle(now_ms=0, wall_ms=0)


@pytest.mark.spec("AL-9")
async def test_the_metrics_of_a_group_follow_its_decisions_and_go_with_it() -> None:
    engine, stats = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0)), RebalancerStats()
    engine.facts.opened("b", 1)
    stats.rebalanced(7)

    async def text() -> str:
        return exposition(metrics(engine, stats, ReportStreams())).decode()

    tell(engine, "a")
    tell(engine, "a", "b", "c")
    page = await text()
    for line in (
        'evenq_rebalance_moves_total{consumer_group="g",topic="T"} 1.0',
        'evenq_group_generation{consumer_group="g"} 2.0',
        'evenq_unowned_queues{consumer_group="g",topic="T"} 0.0',
        'evenq_queue_owners{consumer_group="g",topic="T"} 2.0',
        'evenq_idle_members{consumer_group="g",topic="T"} 1.0',
        'evenq_rebalance_duration_seconds_bucket{le="0.01"} 1.0',
        "evenq_rebalance_duration_seconds_count 1.0",
        "evenq_rebalance_brokers 1.0",
    ):
        assert line in page.splitlines(), page
    tell(engine)
    page = await text()
    assert "evenq_unowned_queues{" not in page, "all members ended: nothing is wrong with the queues"
    assert 'evenq_queue_owners{consumer_group="g",topic="T"} 0.0' in page.splitlines()
    tell(engine, gone=("g",))
    assert 'consumer_group="g"' not in await text()


async def test_held_far_and_failing_queues_are_counted() -> None:
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0))
    engine.facts.opened("b", 1)

    async def tell(strategy: str, *ids: str) -> str:
        members = tuple(MemberFact(client_id=own, topics=("T",), instance=own, zone=own) for own in ids)
        group = GroupFact(group="g", strategy=strategy, members=members, balance=BalancePolicy(hold_ms=9_000))
        topics = (TopicFact(topic="T", read_queues=6),)
        engine.reported(1, BrokerReport(broker_name="b", zone="z1", groups=(group,), topics=topics), now_ms=0)
        engine.settle(now_ms=0, wall_ms=0)

        return exposition(metrics(engine, RebalancerStats(), ReportStreams())).decode()

    page = await tell("STICKY", "z1", "z2", "z3")
    assert 'evenq_rebalance_cross_zone_queues{consumer_group="g",topic="T"} 4.0' in page
    assert 'evenq_rebalance_held_queues{consumer_group="g",topic="T"} 0.0' in page
    assert "evenq_rebalance_failing{" not in page
    page = await tell("STICKY", "z1", "z2")
    assert 'evenq_rebalance_held_queues{consumer_group="g",topic="T"} 2.0' in page
    assert 'evenq_unowned_queues{consumer_group="g",topic="T"} 0.0' in page
    assert 'evenq_rebalance_failing{consumer_group="g",topic="T"} 1.0' in await tell("NO_SUCH", "z1", "z2")
