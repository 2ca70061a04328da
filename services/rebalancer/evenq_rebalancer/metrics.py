"""All metrics of the rebalancer, read at scrape. A series ends with its group or topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Distribution, Metric, Sample, counter, gauge, histogram
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.stats import DURATION_BOUNDS_MS, RebalancerStats

PAIR = ("consumer_group", "topic")


def metrics(engine: AssignmentEngine, stats: RebalancerStats, streams: ReportStreams) -> list[Metric]:
    """Returns the metrics for `evenq.serving.program.metrics.exposition`."""
    return [*_of_decisions(engine), *_of_troubles(engine), *_of_the_process(engine, stats, streams)]


def _per_pair(engine: AssignmentEngine, number: Callable[[Decision], float]) -> Callable[[], Iterable[Sample]]:
    return lambda: [((decision.group, decision.topic), number(decision)) for decision in engine.decisions()]


def _of_decisions(engine: AssignmentEngine) -> list[Metric]:
    def generations() -> Iterable[Sample]:
        newest: dict[str, int] = {}
        for decision in engine.decisions():
            newest[decision.group] = max(newest.get(decision.group, 0), decision.generation.counter)
        return [((group,), counter) for group, counter in newest.items()]

    def unowned() -> Iterable[Sample]:
        # A group without members is not a fault: its unread messages show as lag.
        attended = (decision for decision in engine.decisions() if decision.shares)
        return [((decision.group, decision.topic), decision.unowned) for decision in attended]

    return [
        counter("evenq_rebalance_moves_total", "queues", *PAIR).series(
            _per_pair(engine, lambda decision: engine.moves_total(decision.group, decision.topic)),
            "Queues that moved from one member to another.",
        ),
        gauge("evenq_group_generation", "decisions", "consumer_group").series(
            generations, "Counter of the group's newest decision; it grows with each decision of the process."
        ),
        gauge("evenq_unowned_queues", "queues", *PAIR).series(
            unowned,
            "Queues that the current decision gives to no member, although the group has members for the topic; "
            "queues held for a replacement do not count.",
        ),
        gauge("evenq_queue_owners", "members", *PAIR).series(
            _per_pair(engine, lambda decision: decision.owners), "Members that read at least one queue."
        ),
        gauge("evenq_idle_members", "members", *PAIR).series(
            _per_pair(engine, lambda decision: len(decision.idle)),
            "Members without a queue, because there are more members than queues.",
        ),
    ]


def _of_troubles(engine: AssignmentEngine) -> list[Metric]:
    return [
        gauge("evenq_rebalance_held_queues", "queues", *PAIR).series(
            _per_pair(engine, lambda decision: decision.held),
            "Queues of members that are being replaced, held for their replacements.",
        ),
        gauge("evenq_rebalance_cross_zone_queues", "queues", *PAIR).series(
            _per_pair(engine, lambda decision: decision.cross_zone),
            "Queues whose owner is in another zone than their broker, as far as both zones are known.",
        ),
        gauge("evenq_rebalance_failing", "pairs", *PAIR).series(
            lambda: [(pair, 1) for pair in engine.troubled()],
            "1 while the group's strategy fails; the previous decision stays valid, or STICKY divides "
            "the queues instead.",
        ),
    ]


def _of_the_process(engine: AssignmentEngine, stats: RebalancerStats, streams: ReportStreams) -> list[Metric]:
    def durations() -> Iterable[Sample]:
        bounds = [bound / 1000 for bound in DURATION_BOUNDS_MS]
        yield (), Distribution(bounds, tuple(stats.duration_buckets), stats.duration_total_ms / 1000)

    return [
        histogram("evenq_rebalance_duration_seconds", "seconds").series(
            durations, "Time from the first reported change until the decisions are sent to the brokers."
        ),
        counter("evenq_rebalance_problems_total", "decisions").value(
            lambda: stats.problems,
            "Times that a strategy began to fail; the previous decision stays valid, or STICKY divides instead.",
        ),
        gauge("evenq_rebalance_streams", "streams").value(lambda: len(streams), "Open report streams of brokers."),
        gauge("evenq_rebalance_brokers", "brokers").value(
            lambda: len(engine.facts.brokers),
            "Brokers whose reports are used, including those disconnected for a short time (grace_ms).",
        ),
    ]


def leading_metrics(*, leads: Callable[[], bool], transitions: Callable[[], int]) -> list[Metric]:
    """Returns the metrics of leadership: the sum of `leads` over all rebalancers is 1, or 0 for a moment."""
    return [
        gauge("evenq_rebalancer_leads", "rebalancers").value(
            lambda: int(leads()), "1 while this rebalancer leads, 0 while another one does."
        ),
        counter("evenq_rebalancer_terms_total", "terms").value(
            transitions, "Times that this rebalancer became the leader by a lease."
        ),
    ]
