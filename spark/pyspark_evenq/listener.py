"""`EvenqProgressListener`: what streams that read with `evenq` do, for Prometheus and the log of the driver.

    spark.streams.addListener(EvenqProgressListener(port=5558))

Spark calls it on the driver, in threads of its own, after each batch and, for an idle query, each ten seconds. All
figures are from the progress that Spark hands over, so it costs the brokers nothing; a source in Python cannot add
numbers of its own to that. Always true: nothing that goes wrong here reaches the query.
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
from pyspark_evenq.losses import named
from pyspark_evenq.query_figures import Change, Failure, QueryFigures, failure_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["EvenqProgressListener"]

log = logging.getLogger(__name__)
QUERIES_MAX = 100
RUNS_MAX = 1_000
BEHIND_MAX = 5


class EvenqProgressListener(StreamingQueryListener):
    """Lag by queue, rows, losses, queues without a broker, resets and lost ownership, of each query with a name or an
    id. The metrics are in docs/reference/metrics.md, the guide in docs/guides/spark.md.
    """

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
        """`port`: serve `/metrics` there, 0 = any free one (`self.port`), None = not at all. `host`: where; "0.0.0.0"
        for scrapes from other hosts. `registry`: of prometheus_client, where the metrics are added and which is then
        what `port` serves. A query with more queues than `queues_max` has no series for each of them. `log_every_s`: a
        line at INFO for each query that makes progress, at most so often; 0 = none.

        Raises SettingsError for a port that is taken, and if prometheus_client is needed and not there.
        """
        if queues_max < 0 or log_every_s < 0:
            raise SettingsError(f"queues_max={queues_max} and log_every_s={log_every_s} must be 0 or more")
        self._lock = threading.Lock()
        self._queries: dict[str, QueryFigures] = {}
        """By name; the one that began last stands last."""
        self._runs: dict[str, tuple[str, str]] = {}
        """Run -> name and id of the query, of runs that have not ended."""
        self._logged: dict[str, float] = {}
        self._log_every_s = log_every_s
        self._now = now
        self._registry: CollectorRegistry | None = None
        self._server: Any = None
        self.port: int | None = None
        if port is not None or registry is not None:
            self._expose(port, host, registry, queues_max)

    # ------------------------------------------------------------------------------------------- what Spark calls

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        with self._lock:
            self._met(event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        try:
            self._progress(event.progress)
        except Exception:  # the top of a loop that is Spark's
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
                return  # it read with other sources
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

    # ----------------------------------------------------------------------------------------------- for its users

    def queries(self) -> Sequence[QueryFigures]:
        """The figures of each query as they are now, copies, sorted by name."""
        with self._lock:
            return [copy.copy(self._queries[name]) for name in sorted(self._queries)]

    def close(self) -> None:
        """Serve no more, and take the metrics out of the registry. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    def collect(self) -> Any:
        """What prometheus_client calls at a scrape."""
        from evenq.serving.program.metrics import families

        return families(self._metrics)

    def describe(self) -> list[Any]:
        """Registering reads nothing."""
        return []

    # ---------------------------------------------------------------------------------------------------- inside

    def _expose(self, port: int | None, host: str, registry: CollectorRegistry | None, queues_max: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise SettingsError(
                "metrics of queries need prometheus-client on the driver: pip install prometheus-client"
            ) from error
        from pyspark_evenq.metrics import listener_metrics

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
            # A copy takes its place, because a scrape may be reading the figures as they were.
            query = copy.copy(before) if before is not None else QueryFigures(name)
            query.begin(query_id)
            change = query.take(progress)
            if change is None:
                return
            query.last_event_s = now
            if before is None or not before.active:
                # Put in again as the last one: `_bound` forgets from the front.
                self._queries.pop(name, None)
            self._queries[name] = query
            self._bound()
            due = self._log_every_s and now - self._logged.get(name, float("-inf")) >= self._log_every_s
            if due:
                self._logged[name] = now
        _tell(name, change)
        if due:
            log.info("%s", _line(query))

    def _met(self, event: Any) -> tuple[str, str]:
        """Name and id of the query of a run, kept for its end."""
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
        """Forget the query that ended first, or else the one that began first."""
        while len(self._queries) > QUERIES_MAX:
            ended = (name for name, query in self._queries.items() if not query.active)
            gone = next(ended, next(iter(self._queries)))
            del self._queries[gone]
            self._logged.pop(gone, None)


def _tell(name: str, change: Change) -> None:
    """One line for each change of state."""
    if change.lost:
        log.warning(
            "query %s lost messages=%d of %s: they were gone before they were read",
            name, sum(change.lost.values()), named(change.lost),
        )  # fmt: skip
    if change.away:
        log.warning("query %s reads on without %s: no broker serves them", name, named(change.away))
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
    """The sentence of our error in a long trace, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if failure_of(line.partition(": ")[0]) is not None), lines[0] if lines else "")
