"""What of staged rows and their decisions stands in the journal (`core.state.records`), one JSON text an operation.

All are absolute, as the journal wants it. Tokens are written as hex digits. Made by `loops.staging.staging`, taken in
by `core.staging.staged` (rows at this broker) and `core.staging.decisions` (queries, and batches this broker decides).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

from evenq.errors import StoreCorrupted

__all__ = [
    "STAGING_KINDS",
    "BatchDecided",
    "QueryForgotten",
    "QueryKnown",
    "RolledForward",
    "StagedEnded",
    "StagedMoved",
    "StagedPut",
    "StagingOp",
    "TokensDropped",
    "staging_json",
    "staging_op_of",
]


@dataclass(frozen=True, slots=True)
class StagingOp:
    """One of those below."""


@dataclass(frozen=True, slots=True)
class StagedPut(StagingOp):
    """A block of rows is kept, as a timer of the store."""

    number: int
    """Log offset of its first timer: its name for ever."""
    timer_id: int
    """Where it is now."""
    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int
    token: str
    sequence: int
    coordinator: str
    topic_id: int
    rows: int
    size: int
    """Bytes."""
    staged_ms: int
    """Ms since the epoch."""


@dataclass(frozen=True, slots=True)
class StagedMoved(StagingOp):
    """Retention wrote a block again, so that the log file it was in can go."""

    number: int
    timer_id: int


@dataclass(frozen=True, slots=True)
class StagedEnded(StagingOp):
    """Blocks are gone: their rows are messages now, or were dropped."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryKnown(StagingOp):
    """Who decides a query's batches and whose it is; with `last_batch` what was decided (snapshots)."""

    query_id: str
    coordinator: str
    used_ms: int
    last_batch: int = -1
    user: str = ""
    """Of its first Begin; empty: not known."""
    topics: tuple[str, ...] | None = None
    """All that it writes to; empty: its rows name them; None: not known."""
    rows: int = -1
    """Of the last batch; -1: not known."""
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class QueryForgotten(StagingOp):
    query_id: str


@dataclass(frozen=True, slots=True)
class BatchDecided(StagingOp):
    """This broker decided a batch, for ever. `winners`: broker and token, in pairs that need no order."""

    query_id: str
    batch_id: int
    winners: tuple[tuple[str, str], ...]
    decided_ms: int
    rows: int = -1
    """-1: not known."""
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class RolledForward(StagingOp):
    """A broker has published its part of a decided batch."""

    query_id: str
    batch_id: int
    broker_name: str


@dataclass(frozen=True, slots=True)
class TokensDropped(StagingOp):
    """Stagings of a batch that is not decided shall never win."""

    query_id: str
    batch_id: int
    tokens: tuple[str, ...]


_KINDS: dict[str, type[StagingOp]] = {
    "staged": StagedPut,
    "moved": StagedMoved,
    "ended": StagedEnded,
    "query": QueryKnown,
    "forgotten": QueryForgotten,
    "decided": BatchDecided,
    "rolled": RolledForward,
    "dropped": TokensDropped,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_LISTED: dict[type[StagingOp], int] = {QueryKnown: 4, BatchDecided: 4}
"""How many fields the first release has. Later ones stand under their names, which older programs pass over: a copy of
a broker group may be older than its leader.
"""
STAGING_KINDS = tuple(_NAMES)


def staging_json(op: StagingOp) -> dict[str, Any]:
    """The operation as JSON: its kind, its fields in order, and later ones by name unless they have their default."""
    values = astuple(op)
    count = _LISTED.get(type(op), len(values))
    value: dict[str, Any] = {"op": _NAMES[type(op)], "is": values[:count]}
    later = zip(fields(op)[count:], values[count:], strict=True)
    if more := {field.name: one for field, one in later if one != field.default}:
        value["more"] = more
    return value


def staging_op_of(value: dict[str, Any]) -> StagingOp:
    """Raises StoreCorrupted for an operation that this program does not know."""
    kind = _KINDS.get(value["op"])
    if kind is None:
        raise StoreCorrupted(f"a state record tells {value['op']!r} of staged rows, which this program does not know")
    known = {field.name for field in fields(kind)}
    more = {name: _frozen(one) for name, one in value.get("more", {}).items() if name in known}
    return kind(*map(_frozen, value["is"]), **more)


def _frozen(field: Any) -> Any:
    return tuple(map(_frozen, field)) if isinstance(field, list) else field
