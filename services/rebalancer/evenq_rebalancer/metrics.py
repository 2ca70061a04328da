"""Every metric of the rebalancer. Read at scrape from the engine and from plain counters; a series goes with its group
or topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Distribution, Metric, MetricKind, Sample
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.stats import DURATION_BOUNDS_MS, RebalancerStats

__all__ = ["leading_metrics", "metrics"]

PAIR = ("consumer_group", "topic")


def metrics(engine: AssignmentEngine, stats: RebalancerStats, streams: ReportStreams) -> list[Metric]:
    """The list, for `evenq.serving.program.metrics.exposition`."""
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
        # A group whose members have all ended is not in trouble by that: what it left unread is its lag.
        attended = (decision for decision in engine.decisions() if decision.shares)
        return [((decision.group, decision.topic), decision.unowned) for decision in attended]

    return [
        Metric(
            name="evenq_rebalance_moves_total",
            kind=MetricKind.COUNTER,
            unit="queues",
            labels=PAIR,
            help="Queues that went from one member to another.",
            read=_per_pair(engine, lambda decision: engine.moves_total(decision.group, decision.topic)),
        ),
        Metric(
            name="evenq_group_generation",
            kind=MetricKind.GAUGE,
            unit="decisions",
            labels=("consumer_group",),
            help="Counter of the newest decision about the group; it grows with each decision of the process.",
            read=generations,
        ),
        Metric(
            name="evenq_unowned_queues",
            kind=MetricKind.GAUGE,
            unit="queues",
            labels=PAIR,
            help="Queues that the current decision gives to no member, although the group has members for the topic; "
            "queues held for a replacement do not count.",
            read=unowned,
        ),
        Metric(
            name="evenq_queue_owners",
            kind=MetricKind.GAUGE,
            unit="members",
            labels=PAIR,
            help="Members that read at least one queue.",
            read=_per_pair(engine, lambda decision: decision.owners),
        ),
        Metric(
            name="evenq_idle_members",
            kind=MetricKind.GAUGE,
            unit="members",
            labels=PAIR,
            help="Members without a queue, because there are more members than queues.",
            read=_per_pair(engine, lambda decision: len(decision.idle)),
        ),
    ]


def _of_troubles(engine: AssignmentEngine) -> list[Metric]:
    return [
        Metric(
            name="evenq_rebalance_held_queues",
            kind=MetricKind.GAUGE,
            unit="queues",
            labels=PAIR,
            help="Queues of members that are being replaced, held for their replacements.",
            read=_per_pair(engine, lambda decision: decision.held),
        ),
        Metric(
            name="evenq_rebalance_cross_zone_queues",
            kind=MetricKind.GAUGE,
            unit="queues",
            labels=PAIR,
            help="Queues whose owner is in another zone than their broker, as far as both zones are known.",
            read=_per_pair(engine, lambda decision: decision.cross_zone),
        ),
        Metric(
            name="evenq_rebalance_failing",
            kind=MetricKind.GAUGE,
            unit="pairs",
            labels=PAIR,
            help="1 while the group's strategy fails; the previous decision stays valid, or STICKY divides "
            "the queues instead.",
            read=lambda: [(pair, 1) for pair in engine.troubled()],
        ),
    ]


def _of_the_process(engine: AssignmentEngine, stats: RebalancerStats, streams: ReportStreams) -> list[Metric]:
    def durations() -> Iterable[Sample]:
        bounds = [bound / 1000 for bound in DURATION_BOUNDS_MS]
        yield (), Distribution(bounds, tuple(stats.duration_buckets), stats.duration_total_ms / 1000)

    return [
        Metric(
            name="evenq_rebalance_duration_seconds",
            kind=MetricKind.HISTOGRAM,
            unit="seconds",
            help="Time from the first reported change until the decisions are sent to the brokers.",
            read=durations,
        ),
        Metric(
            name="evenq_rebalance_problems_total",
            kind=MetricKind.COUNTER,
            unit="decisions",
            help="Times that a strategy began to fail; the previous decision stays valid, or STICKY divides instead.",
            read=lambda: [((), stats.problems)],
        ),
        Metric(
            name="evenq_rebalance_streams",
            kind=MetricKind.GAUGE,
            unit="streams",
            help="Open report streams of brokers.",
            read=lambda: [((), len(streams))],
        ),
        Metric(
            name="evenq_rebalance_brokers",
            kind=MetricKind.GAUGE,
            unit="brokers",
            help="Brokers whose reports are used, including those disconnected for a short time (grace_ms).",
            read=lambda: [((), len(engine.facts.brokers))],
        ),
    ]


def leading_metrics(*, leads: Callable[[], bool], transitions: Callable[[], int]) -> list[Metric]:
    """Who leads, of several rebalancers: the sum over all is 1, or 0 for a moment."""
    return [
        Metric(
            name="evenq_rebalancer_leads",
            kind=MetricKind.GAUGE,
            unit="rebalancers",
            help="1 while this rebalancer leads, 0 while another one does.",
            read=lambda: [((), int(leads()))],
        ),
        Metric(
            name="evenq_rebalancer_terms_total",
            kind=MetricKind.COUNTER,
            unit="terms",
            help="Times that this rebalancer became the leader by a lease.",
            read=lambda: [((), transitions())],
        ),
    ]
