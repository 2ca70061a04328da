"""Progress of queries as Spark tells it."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

RUN, QUERY = (str(uuid.UUID(int=number)) for number in (1, 2))
Queues = dict[int, int]


def offset(ends: Queues, *, broker: str = "broker-a", **more: Any) -> str:
    """Of the topic `flights` on one broker; `more` are other keys of an offset."""
    return json.dumps({"v": 1, "q": nested(ends, broker), **more})


def nested(ends: Queues, broker: str = "broker-a") -> Any:
    return {"flights": {broker: {str(queue): end for queue, end in ends.items()}}}


def source(start: str | None, end: str | None, latest: str | None, *, rows: int = 0) -> dict[str, Any]:
    return {
        "description": "a source", "startOffset": start, "endOffset": end, "latestOffset": latest,
        "numInputRows": rows, "inputRowsPerSecond": rows / 2, "processedRowsPerSecond": rows * 2, "metrics": {},
    }  # fmt: skip


def progress(*sources: dict[str, Any], batch: int = 0, name: str | None = "delays", query: str = QUERY) -> Any:
    return StreamingQueryProgress.fromJson({
        "id": query, "runId": RUN, "name": name, "timestamp": "2026-11-22T00:00:00.000Z", "batchId": batch,
        "batchDuration": 70, "durationMs": {"addBatch": 50, "triggerExecution": 70}, "eventTime": {},
        "stateOperators": [], "sources": list(sources), "sink": {"description": "noop", "numOutputRows": -1},
        "numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0, "observedMetrics": {},
    })  # fmt: skip


def event(**fields: Any) -> Any:
    """One of Spark's other events."""
    return SimpleNamespace(**{"id": QUERY, "runId": RUN, "name": "delays", "exception": None} | fields)
