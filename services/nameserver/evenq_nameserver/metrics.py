"""All metrics of the nameserver. RocketMQ 5 has none for its nameserver, so all are `evenq_nameserver_*`."""

from __future__ import annotations

from evenq.serving.program.metrics import Metric, counter, gauge
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.stats import NameserverStats


def metrics(service: RegistryService, stats: NameserverStats) -> list[Metric]:
    """Returns the metrics that the page exposes besides those of the server."""
    registry, watchers = service.registry, service.watchers
    return [
        gauge("evenq_nameserver_brokers", "brokers").value(lambda: len(registry.brokers()), "Live brokers."),
        gauge("evenq_nameserver_topics", "topics").value(
            lambda: registry.topic_count, "Topics that a live broker serves."
        ),
        gauge("evenq_nameserver_watchers", "watches").value(lambda: len(watchers), "Open watches of routes."),
        gauge("evenq_nameserver_route_version", "version").value(
            lambda: registry.version, "Version of the route table."
        ),
        counter("evenq_nameserver_registrations_total", "calls").value(
            lambda: stats.registrations, "Full registrations."
        ),
        counter("evenq_nameserver_heartbeats_total", "calls").value(lambda: stats.heartbeats, "Heartbeats of brokers."),
        counter("evenq_nameserver_expired_total", "brokers").value(lambda: stats.expired, "Silent brokers removed."),
        counter("evenq_nameserver_watchers_cut_off_total", "watches").value(
            lambda: watchers.cut_off_count, "Slow watches ended."
        ),
    ]
