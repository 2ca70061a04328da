"""Operations on staged rows and their decisions in the journal (`core.state.records`), one JSON text each.

All are absolute, as the journal requires. Tokens are hexadecimal digits. `loops.staging.staging` makes the operations;
`core.staging.staged` (rows at this broker) and `core.staging.decisions` (queries, and batches that this broker decides)
apply them.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

from evenq.errors import StoreCorrupted


@dataclass(frozen=True, slots=True)
class StagingOp:
    """Base of the operations below."""


@dataclass(frozen=True, slots=True)
class StagedPut(StagingOp):
    """A block of staged rows, which is a timer of the store."""

    number: int  # log offset of its first timer, which names it for ever
    timer_id: int  # its present timer
    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int
    token: str
    sequence: int
    coordinator: str
    topic_id: int
    rows: int
    size: int  # Bytes
    staged_ms: int  # ms since the epoch


@dataclass(frozen=True, slots=True)
class StagedMoved(StagingOp):
    """A block that retention wrote again, so that the log file it was in can go."""

    number: int
    timer_id: int


@dataclass(frozen=True, slots=True)
class StagedEnded(StagingOp):
    """Blocks that are gone: their rows are messages now, or were dropped."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueryKnown(StagingOp):
    """Coordinator and owner of a query; with `last_batch` what was decided (snapshots)."""

    query_id: str
    coordinator: str
    used_ms: int
    last_batch: int = -1
    user: str = ""  # of its first Begin; empty: not known
    topics: tuple[str, ...] | None = None  # all that it writes to; empty: its rows name them; None: not known
    rows: int = -1  # of the last batch; -1: not known
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class QueryForgotten(StagingOp):
    query_id: str


@dataclass(frozen=True, slots=True)
class BatchDecided(StagingOp):
    """Final decision of this broker about a batch. `winners`: pairs of broker and token, in any order."""

    query_id: str
    batch_id: int
    winners: tuple[tuple[str, str], ...]
    decided_ms: int
    rows: int = -1  # -1: not known
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class RolledForward(StagingOp):
    """Notice that a broker has published its part of a decided batch."""

    query_id: str
    batch_id: int
    broker_name: str


@dataclass(frozen=True, slots=True)
class TokensDropped(StagingOp):
    """Stagings of an undecided batch that can never win."""

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
"""Numbers of fields in the first release. Later ones are stored under their names, which older programs ignore: a copy
of a broker group may be older than its leader.
"""
STAGING_KINDS = tuple(_NAMES)


def staging_json(op: StagingOp) -> dict[str, Any]:
    """Returns the operation as JSON: kind, fields in order, and later ones by name unless they have their default."""
    values = astuple(op)
    count = _LISTED.get(type(op), len(values))
    value: dict[str, Any] = {"op": _NAMES[type(op)], "is": values[:count]}
    later = zip(fields(op)[count:], values[count:], strict=True)
    if more := {field.name: one for field, one in later if one != field.default}:
        value["more"] = more
    return value


def staging_op_of(value: dict[str, Any]) -> StagingOp:
    """Reads an operation. Raises StoreCorrupted for one that this program does not know."""
    kind = _KINDS.get(value["op"])
    if kind is None:
        raise StoreCorrupted(
            f"a state record has the operation {value['op']!r} of staged rows, which this program does not know"
        )
    known = {field.name for field in fields(kind)}
    more = {name: _frozen(one) for name, one in value.get("more", {}).items() if name in known}
    return kind(*map(_frozen, value["is"]), **more)


def _frozen(field: Any) -> Any:
    return tuple(map(_frozen, field)) if isinstance(field, list) else field
