"""Metrics of a program, each listed once and read at scrape.

A program's `metrics.py` makes a list of `Metric`s whose `read` reads plain counters; `exposition` makes the text for
Prometheus. `prometheus_client` is imported at the first scrape, so that it delays no start. Labels are bounded (topic,
group, state), never client or message ids; a series that `read` no longer yields is gone.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from evenq.runtime.accelerator import accelerator
from evenq.runtime.version import software_version
from evenq.serving.latency import BOUNDS_MS, MethodStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Distribution:
    """State of a histogram."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """Number per bucket, not cumulative; one more than bounds."""
    total: float


Sample = tuple[tuple[str, ...], float | Distribution]  # values of the labels, and the number


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a program. `counter`, `gauge` and `histogram` begin one."""

    name: str
    """RocketMQ 5's name where it has the metric, otherwise `evenq_<room>_<what>_<unit>`; counters end with `_total`."""
    kind: MetricKind
    unit: str
    """For people: messages, bytes, ms ..."""
    labels: tuple[str, ...] = ()
    help: str
    read: Callable[[], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class MetricName:
    """The first half of a metric, without readings: `gauge("evenq_x_bytes", "bytes", "topic").series(read, "X.")`."""

    name: str
    kind: MetricKind
    unit: str
    labels: tuple[str, ...]

    def series(self, read: Callable[[], Iterable[Sample]], text: str) -> Metric:
        """Returns a metric with one series for each sample of `read`. `text`: its help."""
        return Metric(name=self.name, kind=self.kind, unit=self.unit, labels=self.labels, help=text, read=read)

    def value(self, read: Callable[[], float], text: str) -> Metric:
        """Returns a metric with one series, without labels. `text`: its help."""
        return self.series(lambda: [((), read())], text)


def counter(name: str, unit: str, *labels: str) -> MetricName:
    return MetricName(name, MetricKind.COUNTER, unit, labels)


def gauge(name: str, unit: str, *labels: str) -> MetricName:
    return MetricName(name, MetricKind.GAUGE, unit, labels)


def histogram(name: str, unit: str, *labels: str) -> MetricName:
    return MetricName(name, MetricKind.HISTOGRAM, unit, labels)


BUILD_INFO = gauge("evenq_build_info", "servers", "version", "python", "native").series(
    lambda: [((software_version() or "unknown", platform.python_version(), accelerator().version or "none"), 1)],
    "Versions of evenq, Python and the compiled accelerator (`none`: it is not used) as labels; the value is always 1.",
)


def gathered(metrics: Sequence[Metric], constant: Mapping[str, str] | None = None) -> Callable[[], bytes]:
    """Works as `exposition` in two steps: reads the numbers now; the returned function makes the text, which is most of
    the work with many series, in any thread.
    """
    read = [replace(metric, read=partial(list, tuple(metric.read()))) for metric in metrics]
    return partial(exposition, read, constant)


def exposition(metrics: Sequence[Metric], constant: Mapping[str, str] | None = None) -> bytes:
    """Returns the text format of `metrics`, of `evenq_build_info` and of the process's own, with `constant` labels
    (cluster, node_type, node_id) on each series, so that every series of two clusters can be distinguished.
    """
    from prometheus_client import PROCESS_COLLECTOR, generate_latest

    labels = dict(constant or {})

    class Scrape:
        def collect(self) -> Iterable[Family]:
            yield from (_family(metric, labels) for metric in (*metrics, BUILD_INFO))
            yield from (_labelled(family, labels) for family in PROCESS_COLLECTOR.collect())

    registry: Any = Scrape()  # generate_latest calls `collect` only
    return generate_latest(registry)


def families(metrics: Iterable[Metric]) -> Iterator[Family]:
    """Returns the metrics as families of prometheus_client, for a registry of the user."""
    return (_family(metric, {}) for metric in metrics)


def _labelled(family: Family, constant: Mapping[str, str]) -> Family:
    family.samples = [sample._replace(labels={**constant, **sample.labels}) for sample in family.samples]
    return family


def _family(metric: Metric, constant: Mapping[str, str]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, values = (*constant, *metric.labels), tuple(constant.values())
    family: Any
    text = f"{metric.help} Unit: {metric.unit}."
    match metric.kind:
        case MetricKind.COUNTER:
            family = CounterMetricFamily(metric.name, text, labels=names)
        case MetricKind.GAUGE:
            family = GaugeMetricFamily(metric.name, text, labels=names)
        case MetricKind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, text, labels=names)
    for labels, number in metric.read():
        if isinstance(number, Distribution):
            family.add_metric((*values, *labels), buckets=_buckets(number), sum_value=number.total)
        else:
            family.add_metric((*values, *labels), number)
    return family  # type: ignore[no-any-return]  # one of three classes with one parent


def _buckets(distribution: Distribution) -> list[tuple[str, int]]:
    buckets, so_far = [], 0
    for bound, count in zip((*distribution.bounds, "+Inf"), distribution.counts, strict=True):
        so_far += count
        buckets.append((str(bound), so_far))
    return buckets


def call_metrics(stats: Callable[[], Mapping[str, MethodStats]]) -> list[Metric]:
    """Returns the metrics that every server has. `stats` is called at scrape: `lambda: server.stats`. A method that was
    never called has no series: a broker has more than 70 methods, each with ten buckets.
    """

    def latencies() -> Iterable[Sample]:
        for method, counted in stats().items():
            if not counted.finished:
                continue
            labels = ("grpc", _short(method))
            yield labels, Distribution(BOUNDS_MS, tuple(counted.buckets), counted.total_ms)

    def running() -> Iterable[Sample]:
        return (((_short(method),), counted.running) for method, counted in stats().items() if counted.called)

    def failed() -> Iterable[Sample]:
        for method, counted in stats().items():
            for code, number in sorted(counted.errors.items()):
                yield (_short(method), str(code)), number

    return [
        histogram("rocketmq_rpc_latency", "ms", "protocol_type", "request_code").series(
            latencies, "Duration of finished calls, long polls included."
        ),
        gauge("evenq_rpc_running", "calls", "request_code").series(
            running, "Running calls, including waiting polls and open streams."
        ),
        counter("evenq_rpc_errors_total", "answers", "request_code", "response_code").series(
            failed, "Calls answered with an error, by error code."
        ),
    ]


def _short(method: str) -> str:
    return method.rpartition("/")[2]
