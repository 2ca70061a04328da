"""The options of the sink: parsed once, checked before anything connects.

Called by the source's `writer` and `streamWriter`. How brokers are called (endpoints, keys, TLS) is the same as for
reading and is parsed there. Pure: no Spark, no network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from evenq.errors import SettingsError
from evenq.model.names import topic_problem
from pyspark_evenq.foreign_options import foreign_sink_problem
from pyspark_evenq.option_values import choice, flag, named, whole
from pyspark_evenq.options import KAFKA_ADDRESS, ReadOptions, SchemaStyle

__all__ = ["WRITE_ALIASES", "WRITE_NAMES", "DeliveryGuarantee", "OnDecidedBatch", "WriteOptions"]


class DeliveryGuarantee(StrEnum):
    """What is promised of the rows of a batch."""

    TRANSACTIONAL = "transactional"
    """Each row once: staged, and published when the batch is decided."""
    IDEMPOTENT = "idempotent"
    """Each row once as long as a task that runs again gives the same rows in the same order."""
    AT_LEAST_ONCE = "atLeastOnce"


class OnDecidedBatch(StrEnum):
    """What becomes of a batch that was decided before, unless it is the last one and has the same rows."""

    FAIL = "fail"
    SKIP = "skip"
    """It counts as written."""
    WRITE = "write"
    """It is written, maybe a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Everything a writer needs to know, as plain values that pickle."""

    connection: ReadOptions
    """Endpoints, keys and TLS; nothing else of it is used."""
    topic: str = ""
    """Of all rows; empty: the column topic says it."""
    delivery: DeliveryGuarantee = DeliveryGuarantee.TRANSACTIONAL
    on_decided_batch: OnDecidedBatch = OnDecidedBatch.FAIL
    style: SchemaStyle = SchemaStyle.EVENQ
    write_timeout_ms: int = 60_000
    """How long a broker that does not answer is tried before the task or the commit fails."""
    block_rows: int = 1_000
    block_bytes: int = 1 << 20
    """A block is sent when it has this many rows or bytes."""
    in_flight: int = 4
    """Blocks of one task that may be on their way at once."""
    gc_freeze: bool = True

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.connection.endpoints

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Read Spark's options. Raises SettingsError naming the option, its value and what would be right."""
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


_OWN = (
    "topic", "delivery", "onDecidedBatch", "schemaStyle", "writeTimeoutMs", "blockRows", "blockBytes", "inFlight",
    "gcFreeze",
)  # fmt: skip
_SHARED = (
    "endpoints", "accessKey", "secretKey", "credentialsFile", "tls", "tlsCa", "tlsCertificate", "tlsKey",
    "tlsServerName", "tlsInsecure",
)  # fmt: skip
WRITE_NAMES = (*_OWN, *_SHARED)
"""Every option of the sink."""
WRITE_ALIASES = {"nameServer": "endpoints", KAFKA_ADDRESS: "endpoints"}
"""Names of other sinks for the same."""
_PASSED_OVER = {"checkpointlocation", "path", "queryname", "includeheaders"}
"""Spark hands the first ones on to every sink. The last is of Kafka's; here a column headers is always written."""
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
