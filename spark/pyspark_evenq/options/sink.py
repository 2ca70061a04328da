"""The options of the sink: parsed once, checked before anything connects.

Called by the source's `writer` and `streamWriter`. The options of connections (endpoints, keys, TLS) are those of the
source, which parses them. Pure: no Spark, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import SettingsError
from evenq.model.names import topic_problem
from pyspark_evenq.options.foreign import foreign_sink_problem
from pyspark_evenq.options.source import KAFKA_ADDRESS, ReadOptions, SchemaStyle
from pyspark_evenq.options.values import choice, flag, named, whole


class DeliveryGuarantee(StrEnum):
    """Guarantee for the rows of a batch."""

    TRANSACTIONAL = "transactional"
    """Each row once: staged, and published when the batch is decided."""
    IDEMPOTENT = "idempotent"
    """Each row once if a repeated task produces the same rows in the same order."""
    AT_LEAST_ONCE = "atLeastOnce"


class OnDecidedBatch(StrEnum):
    """Treatment of a batch that was decided before, unless it is the last one and has the same rows."""

    FAIL = "fail"
    SKIP = "skip"
    """The batch counts as written."""
    WRITE = "write"
    """The batch is written, possibly a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options of a writer, as plain values that pickle."""

    connection: ReadOptions
    """Only its endpoints, keys and TLS are used."""
    topic: str = ""
    """Topic of all rows; empty: the column topic contains it."""
    delivery: DeliveryGuarantee = DeliveryGuarantee.TRANSACTIONAL
    on_decided_batch: OnDecidedBatch = OnDecidedBatch.FAIL
    style: SchemaStyle = SchemaStyle.EVENQ
    write_timeout_ms: int = 60_000
    """Time for which a broker that does not answer is retried before the task or the commit fails."""
    block_rows: int = 1_000
    block_bytes: int = 1 << 20
    """A block is sent when it has this number of rows or bytes."""
    in_flight: int = 4
    """Blocks of one task that may be in flight at the same time."""
    gc_freeze: bool = True

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.connection.endpoints

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Parses Spark's options. Raises SettingsError with the option, its value and what is allowed."""
        values, shared = _known(given)
        topic = values.get("topic", "").strip()
        if topic and (problem := topic_problem(topic)):
            raise SettingsError(f"option topic: {problem}")
        return cls(
            connection=ReadOptions.parse({**shared, "subscribe": topic or "any"}, streaming=False),
            topic=topic,
            delivery=choice(values, "delivery", DeliveryGuarantee.TRANSACTIONAL),
            on_decided_batch=choice(values, "onDecidedBatch", OnDecidedBatch.FAIL),
            style=choice(values, "schemaStyle", SchemaStyle.EVENQ),
            write_timeout_ms=whole(values, "writeTimeoutMs", default=60_000, low=100, high=3_600_000),
            block_rows=whole(values, "blockRows", default=1_000, low=1, high=10_000),
            block_bytes=whole(values, "blockBytes", default=1 << 20, low=1 << 10, high=4 << 20),
            in_flight=whole(values, "inFlight", default=4, low=1, high=64),
            gc_freeze=flag(values, "gcFreeze", default=True),
        )


_SHARED = (
    "endpoints",
    "accessKey",
    "secretKey",
    "credentialsFile",
    "tls",
    "tlsCa",
    "tlsCertificate",
    "tlsKey",
    "tlsServerName",
    "tlsInsecure",
)
WRITE_NAMES = (
    "topic",
    "delivery",
    "onDecidedBatch",
    "schemaStyle",
    "writeTimeoutMs",
    "blockRows",
    "blockBytes",
    "inFlight",
    "gcFreeze",
    *_SHARED,
)
WRITE_ALIASES = {"nameServer": "endpoints", KAFKA_ADDRESS: "endpoints"}
"""Names of other sinks for the same options."""
_PASSED_OVER = {"checkpointlocation", "path", "queryname", "includeheaders"}
"""Spark passes the first three to every sink. The last is Kafka's; here a column headers is always written."""
_BY_LOWER = {name.lower(): name for name in WRITE_NAMES} | {
    alias.lower(): name for alias, name in WRITE_ALIASES.items()
}


def _known(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    ours = {name: value for name, value in given.items() if name.lower() not in _PASSED_OVER}
    values = named(ours, _BY_LOWER, of="the evenq sink", problem_of=foreign_sink_problem)
    if any(name.lower() == KAFKA_ADDRESS for name in given):  # a job that was written for Kafka's sink
        values.setdefault("schemaStyle", SchemaStyle.KAFKA)
    shared = {name: value for name, value in values.items() if name in _SHARED}
    return {name: value for name, value in values.items() if name not in _SHARED}, shared
