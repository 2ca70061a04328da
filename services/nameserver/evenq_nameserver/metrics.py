"""Every metric of the nameserver, once. RocketMQ 5 has none for its nameserver, so all are `evenq_nameserver_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.stats import NameserverStats

__all__ = ["metrics"]


def metrics(service: RegistryService, stats: NameserverStats) -> list[Metric]:
    """The list that the page exposes, beside the server's."""
    gauge, counter, registry, watchers = MetricKind.GAUGE, MetricKind.COUNTER, service.registry, service.watchers
    return [
        _metric("brokers", gauge, "brokers", "Live brokers.", lambda: len(registry.brokers())),
        _metric("topics", gauge, "topics", "Topics that a live broker serves.", lambda: registry.topic_count),
        _metric("watchers", gauge, "watches", "Open watches of routes.", lambda: len(watchers)),
        _metric("route_version", gauge, "version", "Version of the route table.", lambda: registry.version),
        _metric("registrations_total", counter, "calls", "Full registrations.", lambda: stats.registrations),
        _metric("heartbeats_total", counter, "calls", "Heartbeats of brokers.", lambda: stats.heartbeats),
        _metric("expired_total", counter, "brokers", "Silent brokers dropped.", lambda: stats.expired),
        _metric("watchers_cut_off_total", counter, "watches", "Slow watches ended.", lambda: watchers.cut_off_count),
    ]


def _metric(name: str, kind: MetricKind, unit: str, text: str, read: Callable[[], int]) -> Metric:
    def samples() -> Iterable[Sample]:
        return [((), read())]

    return Metric(name=f"evenq_nameserver_{name}", kind=kind, unit=unit, help=text, read=samples)
