"""Requests of `evenq.v1.Staging` for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from evenq.wire.stubs.evenq.v1 import staging_pb2

BEGIN, STAGE, DECIDE, ABANDON = (f"/evenq.v1.Staging/{name}" for name in ("Begin", "Stage", "Decide", "Abandon"))


def texts(values: Sequence[str]) -> tuple[bytes, bytes]:
    """A column of texts and its ends."""
    encoded = [value.encode() for value in values]
    ends, end = [], 0
    for value in encoded:
        end += len(value)
        ends.append(end)
    return b"".join(encoded), struct.pack(f"<{len(ends)}i", *ends)


def block(
    bodies: Sequence[str],
    *,
    tags: Sequence[str] = (),
    groups: Sequence[str] = (),
    keys: Sequence[Sequence[str]] = (),
    properties: Sequence[Mapping[str, str]] = (),
    delivery_ms: Sequence[int] = (),
    priorities: Sequence[int] = (),
    queue_ids: Sequence[int] = (),
    first_row: int = 0,
) -> Any:
    """Rows as columns."""
    rows = staging_pb2.RowBlock(count=len(bodies), first_row=first_row, born_ms=1_000)
    rows.bodies, rows.body_ends = texts(bodies)
    if tags:
        rows.tags, rows.tag_ends = texts(tags)
    if groups:
        rows.message_groups, rows.message_group_ends = texts(groups)
    if keys:
        rows.keys, rows.key_ends = texts([key for row in keys for key in row])
        rows.key_rows = _counts(keys)
    if properties:
        names = [name for row in properties for name in row]
        values = [value for row in properties for value in row.values()]
        rows.property_names, rows.property_name_ends = texts(names)
        rows.property_values, rows.property_value_ends = texts(values)
        rows.property_rows = _counts(properties)
    rows.delivery_ms = struct.pack(f"<{len(delivery_ms)}q", *delivery_ms)
    rows.priorities = struct.pack(f"<{len(priorities)}i", *priorities)
    rows.queue_ids = struct.pack(f"<{len(queue_ids)}i", *queue_ids)
    return rows


def _counts(rows: Sequence[Any]) -> bytes:
    ends, end = [], 0
    for row in rows:
        end += len(row)
        ends.append(end)
    return struct.pack(f"<{len(ends)}i", *ends)


def stage_rows(
    rows: Any, *, token: str = "a", query: str = "q", batch: int = 0, partition: int = 0, topic: str = "t",
    coordinator: str = "a", sequence: int = 0,
) -> Any:  # fmt: skip
    """One call of Stage."""
    return staging_pb2.StageRequest(
        topic=topic, query_id=query, batch_id=batch, partition_id=partition, token=named(token),
        coordinator=coordinator, sequence=sequence, rows=rows,
    )  # fmt: skip


def decide(
    winners: Mapping[str, Sequence[str]], *, query: str = "q", batch: int = 0, topics: Sequence[str] = ("t",)
) -> Any:
    """One call of Decide; `winners` by token."""
    return staging_pb2.DecideRequest(
        query_id=query, batch_id=batch, topics=topics,
        winners=[staging_pb2.Winner(token=named(token), brokers=brokers) for token, brokers in winners.items()],
    )  # fmt: skip


def named(token: str) -> bytes:
    """A token that tests can read."""
    return token.encode().ljust(16, b".")
