"""Settings of the broker's store, and of the staged rows in it. Parts of `BrokerSettings` (`evenq_broker.settings`)."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from evenq.store import StoreOptions

_STORE = {one.name: one for one in fields(StoreOptions)}


def _of_store(name: str, **bounds: float) -> Any:
    """Returns a setting that the store declares, with its default and text; `bounds` may be narrower here."""
    one = _STORE[name]
    default = one.default.value if isinstance(one.default, Enum) else one.default
    made: Any = Field(default=default, **{**one.metadata, **bounds})
    return made


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of the commit log and its files. `evenq.store.StoreOptions` declares their texts and defaults."""

    path: Path | None = Field(default=None, description="Data folder; empty = keep everything in memory.")
    segment_bytes: int | None = _of_store("segment_bytes", ge=1 << 16)
    flush: Literal["async", "sync"] = _of_store("flush")
    flush_interval_ms: int = _of_store("flush_interval_ms", le=60_000)
    flush_bytes: int = _of_store("flush_bytes")
    cache_bytes: int = _of_store("cache_bytes")
    disk_free_min_bytes: int | None = _of_store("disk_free_min_bytes")
    disk_used_max_ratio: float = _of_store("disk_used_max_ratio")
    snapshot_log_bytes: int = _of_store("snapshot_log_bytes", ge=1 << 10)
    snapshot_records: int = _of_store("snapshot_records", ge=1_000)
    snapshot_interval_ms: int = _of_store("snapshot_interval_ms", ge=1_000)
    message_index: bool = Field(
        default=True,
        description="Keep an index of messages by key and by message id, for queries. Turn it off to save disk and "
        "CPU if nobody queries messages.",
    )
    retention_ms: int = _of_store("retention_ms")
    retention_hour: int = _of_store("retention_hour")
    table_wait_ms: int = _of_store("table_wait_ms")
    disk_clean_ratio: float = _of_store("disk_clean_ratio")
    disk_force_ratio: float = _of_store("disk_force_ratio")
    memory_bytes_max: int = _of_store("memory_bytes_max", ge=1 << 20)


class StagingSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of rows that wait for the decision of their batch (Spark's sink)."""

    bytes_max: int = Field(
        default=4 << 30,
        ge=1 << 10,
        description="Most staged bytes of all queries at this broker; further writes are refused for now, and their "
        "clients retry. One user (one topic where calls are not signed) may have three times the free part: three "
        "quarters if alone. Raise it, with enough disk, when many queries write at the same time.",
    )
    query_bytes_max: int = Field(
        default=2 << 30,
        ge=1 << 10,
        description="Most staged bytes of one query at this broker, which limits the size of a batch. Raise it if "
        "larger batches are refused.",
    )
    timeout_ms: int = Field(
        default=3_600_000,
        ge=1_000,
        description="Staged rows without a decision are dropped after this time, ms (1 h). Set it above the duration "
        "of the longest batch.",
    )
    ask_interval_ms: int = Field(
        default=5_000,
        ge=10,
        description="Interval at which a broker retries decisions that are not complete everywhere, ms. It is also "
        "the time after the last row of a batch after which the broker first requests the decision.",
    )
    group_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Most bytes of a batch that are published in one step; larger batches take several steps.",
    )
    decisions_max: int = Field(
        default=10_000,
        ge=1,
        description="Most decided batches that wait for unreachable brokers; at this limit no further batch is "
        "decided. Shared as bytes_max is.",
    )
    queries_max: int = Field(
        default=100_000, ge=1, description="Most queries that are remembered. Shared as bytes_max is."
    )
    memory_ms: int = Field(
        default=30 * 86_400_000,
        ge=1_000,
        description="How long a query that writes nothing is remembered, ms (30 days). A stream that is stopped for "
        "longer may repeat its last batch. Batch jobs are remembered for twice timeout_ms.",
    )
