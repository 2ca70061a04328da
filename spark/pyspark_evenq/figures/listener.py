"""`EvenqProgressListener`: figures of streams that read with `evenq`, for Prometheus and the driver's log.

    spark.streams.addListener(EvenqProgressListener(port=5558))

Spark calls it on the driver, in its own threads, after each batch and every ten seconds for an idle query. All figures
come from Spark's progress events, so they cost the brokers nothing. No failure here affects the query.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from evenq.errors import SettingsError
from pyspark_evenq.figures.query_figures import Change, Failure, QueryFigures, failure_of
from pyspark_evenq.plan.losses import named

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)
QUERIES_MAX = 100
RUNS_MAX = 1_000
BEHIND_MAX = 5


class EvenqProgressListener(StreamingQueryListener):
    """Metrics and log lines of each query by name or id (docs/reference/metrics.md, docs/guides/spark.md)."""

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        registry: CollectorRegistry | None = None,
        queues_max: int = 1_000,
        log_every_s: float = 60.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`port`: serves `/metrics`; 0 = any free one (`self.port`), None = none. `host`: its address; "0.0.0.0" for
        scrapes from other hosts. `registry`: a registry of prometheus_client for the metrics, which `port` then serves.
        A query with more than `queues_max` queues has no series by queue. `log_every_s`: seconds between INFO lines of
        a query that makes progress; 0 = none.

        Raises SettingsError for a port that is taken, and if prometheus_client is needed but not installed.
        """
        if queues_max < 0 or log_every_s < 0:
            raise SettingsError(f"queues_max={queues_max} and log_every_s={log_every_s} must be 0 or more")
        self._lock = threading.Lock()
        self._queries: dict[str, QueryFigures] = {}
        """Name -> query, in the order of their starts."""
        self._runs: dict[str, tuple[str, str]] = {}
        """Run that has not ended -> name and id of its query."""
        self._logged: dict[str, float] = {}
        self._log_every_s = log_every_s
        self._now = now
        self._registry: CollectorRegistry | None = None
        self._server: Any = None
        self.port: int | None = None
        if port is not None or registry is not None:
            self._expose(port, host, registry, queues_max)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        with self._lock:
            self._met(event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        try:
            self._progress(event.progress)
        except Exception:  # an exception must not reach Spark's loop
            log.exception("the progress of a query could not be read; its figures stay as they were")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        with self._lock:
            name, _ = self._runs.get(str(event.runId), ("", ""))
            if query := self._queries.get(name):
                query.last_event_s = self._now()

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        text = event.exception or ""
        why = failure_of(text)
        with self._lock:
            name, query_id = self._runs.pop(str(event.runId), (str(event.id), str(event.id)))
            if name not in self._queries and why is None:
                return  # a query of other sources
            query = self._query(name, query_id)
            query.last_event_s = self._now()
            query.end(why or (Failure.OTHER if text else None))
        match why:
            case Failure.QUEUE_TAKEN:
                log.error("query %s lost the ownership of queues and ended: %s", name, _said(text))
            case None if not text:
                log.info("query %s ended", name)
            case _:
                log.error("query %s failed (%s): %s", name, why or Failure.OTHER, _said(text))

    def queries(self) -> Sequence[QueryFigures]:
        """Returns copies of the current figures of each query, sorted by name."""
        with self._lock:
            return [copy.copy(self._queries[name]) for name in sorted(self._queries)]

    def close(self) -> None:
        """Stops serving, and removes the metrics from the registry. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    def collect(self) -> Any:
        """Returns metric families; prometheus_client calls it at a scrape."""
        from evenq.serving.program.metrics import families

        return families(self._metrics)

    def describe(self) -> list[Any]:
        return []  # so that a registration reads no figures

    def _expose(self, port: int | None, host: str, registry: CollectorRegistry | None, queues_max: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise SettingsError(
                "metrics of queries need prometheus-client on the driver: pip install prometheus-client"
            ) from error
        from pyspark_evenq.figures.metrics import listener_metrics

        self._metrics = listener_metrics(self.queries, queues_max=queues_max)
        self._registry = CollectorRegistry() if registry is None else registry
        self._registry.register(self)
        if port is None:
            return
        try:
            self._server, _ = start_http_server(port, addr=host, registry=self._registry)
        except (OSError, OverflowError) as error:
            self.close()
            raise SettingsError(
                f"the metrics of queries cannot be served at {host}:{port}: {error}; give another port, 0 for a free "
                "one, or none"
            ) from error
        self.port = self._server.server_port

    def _progress(self, progress: Any) -> None:
        now = self._now()
        with self._lock:
            name, query_id = self._met(progress)
            before = self._queries.get(name)
            # Replaced by a copy, because a scrape may be reading the old figures.
            query = copy.copy(before) if before is not None else QueryFigures(name)
            query.begin(query_id)
            change = query.take(progress)
            if change is None:
                return
            query.last_event_s = now
            if before is None or not before.active:
                self._queries.pop(name, None)  # and inserted as the last one: `_bound` deletes from the front
            self._queries[name] = query
            self._bound()
            due = self._log_every_s and now - self._logged.get(name, float("-inf")) >= self._log_every_s
            if due:
                self._logged[name] = now
        _tell(name, change)
        if due:
            log.info("%s", _line(query))

    def _met(self, event: Any) -> tuple[str, str]:
        run, query = str(event.runId), (event.name or str(event.id), str(event.id))
        self._runs[run] = query
        while len(self._runs) > RUNS_MAX:
            del self._runs[next(iter(self._runs))]
        return query

    def _query(self, name: str, query_id: str) -> QueryFigures:
        query = self._queries.setdefault(name, QueryFigures(name))
        query.begin(query_id)
        self._bound()
        return query

    def _bound(self) -> None:
        """Deletes the query that ended first, otherwise the one that started first."""
        while len(self._queries) > QUERIES_MAX:
            ended = (name for name, query in self._queries.items() if not query.active)
            gone = next(ended, next(iter(self._queries)))
            del self._queries[gone]
            self._logged.pop(gone, None)


def _tell(name: str, change: Change) -> None:
    if change.lost:
        count = sum(change.lost.values())
        log.warning("query %s lost messages=%d of %s: gone before they were read", name, count, named(change.lost))
    if change.away:
        log.warning("query %s continues without %s: no broker serves them", name, named(change.away))
    if change.back:
        log.warning("query %s: brokers serve %s again", name, named(change.back))
    if change.resets:
        log.warning("query %s follows a reset of its group", name)
    if change.left:
        log.warning("query %s released %s", name, named(change.left))
    if change.gained:
        log.info("query %s got %s", name, named(change.gained))


def _line(query: QueryFigures) -> str:
    lag = query.lag
    behind = ", ".join(f"{queue} {count}" for queue, count in query.furthest_behind(BEHIND_MAX))
    return (
        f"query {query.name}: batch {query.batch}, {query.rows} rows so far, {query.rows_in:.0f} rows/s in, "
        f"{query.rows_through:.0f} rows/s through; lag {lag.total} over {len(query.lags)} queues, min {lag.least}, max "
        f"{lag.most}, avg {lag.mean:.1f}{f' (furthest behind: {behind})' if behind else ''}; lost {query.lost}, away "
        f"{len(query.away)}"
    )


def _said(text: str) -> str:
    """Returns the line of an evenq error in a long trace, otherwise the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if failure_of(line.partition(": ")[0]) is not None), lines[0] if lines else "")
