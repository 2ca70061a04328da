"""Rows that wait at this broker for a decision: their blocks, the attempts that staged them, and their sizes.

Pure. A staging is what one attempt of one task staged here: its token names it, and its blocks are timers of the store
(`core.staging.rows`). The table is part of the journal: `apply` takes operations at the replay and when the broker
itself makes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from evenq_broker.core.state.staging_records import StagedEnded, StagedMoved, StagedPut, StagingOp

Batch = tuple[str, int]  # query id and batch id


@dataclass(slots=True)
class StagedBlock:
    """Rows of one call."""

    put: StagedPut
    timer_id: int  # its present timer; `put.number` stays


@dataclass(slots=True)
class StagedAttempt:
    """Rows that one attempt staged here."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt_id: int
    token: str
    coordinator: str
    staged_ms: int = 0  # when its newest block came, ms since the epoch
    blocks: dict[int, StagedBlock] = field(default_factory=dict)  # sequence -> block

    @property
    def batch(self) -> Batch:
        return self.query_id, self.batch_id

    @property
    def rows(self) -> int:
        return sum(block.put.rows for block in self.blocks.values())

    def in_order(self) -> list[StagedBlock]:
        """Returns its blocks in the order in which they were written."""
        return [self.blocks[sequence] for sequence in sorted(self.blocks)]


class StagedRows:
    """All stagings of one broker."""

    def __init__(self) -> None:
        self.bytes = 0
        self.rows = 0
        self._stagings: dict[str, StagedAttempt] = {}
        self._batches: dict[Batch, dict[str, StagedAttempt]] = {}
        self._blocks: dict[int, tuple[StagedAttempt, int]] = {}  # number of a block -> its staging and sequence
        self._query_bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    # -- queries ------------------------------------------------------------------------------------------------------

    def block(self, token: str, sequence: int) -> StagedBlock | None:
        staging = self._stagings.get(token)
        return staging.blocks.get(sequence) if staging is not None else None

    def staging(self, token: str) -> StagedAttempt | None:
        return self._stagings.get(token)

    def by_number(self, number: int) -> StagedBlock | None:
        entry = self._blocks.get(number)
        return entry[0].blocks[entry[1]] if entry is not None else None

    def of(self, batch: Batch) -> list[StagedAttempt]:
        """Returns the stagings of a batch, by partition, then by token."""
        stagings = self._batches.get(batch, {}).values()
        return sorted(stagings, key=lambda staging: (staging.partition_id, staging.token))

    def batches(self) -> list[Batch]:
        """Returns the batches that have stagings here, each query's in ascending order."""
        return sorted(self._batches)

    def batches_before(self, batch: Batch) -> list[Batch]:
        return sorted(other for other in self._batches if other[0] == batch[0] and other[1] < batch[1])

    def has_query(self, query_id: str) -> bool:
        return query_id in self._query_bytes

    def queries(self) -> Iterable[str]:
        return self._query_bytes

    def query_bytes(self, query_id: str) -> int:
        return self._query_bytes.get(query_id, 0)

    # -- changes ------------------------------------------------------------------------------------------------------

    def apply(self, op: StagingOp) -> None:
        """Applies one operation; a repetition changes nothing."""
        match op:
            case StagedPut():
                self._put(op)
            case StagedMoved():
                block = self.by_number(op.number)
                if block is not None:
                    block.timer_id = op.timer_id
            case StagedEnded():
                self.end(op.numbers)

    def _put(self, op: StagedPut) -> None:
        if op.number in self._blocks:
            return
        staging = self._stagings.get(op.token)
        if staging is None:
            staging = self._stagings[op.token] = StagedAttempt(
                op.query_id, op.batch_id, op.partition_id, op.attempt_id, op.token, op.coordinator
            )
            self._batches.setdefault(staging.batch, {})[op.token] = staging
        staging.staged_ms = max(staging.staged_ms, op.staged_ms)
        staging.blocks[op.sequence] = StagedBlock(op, op.timer_id)
        self._blocks[op.number] = staging, op.sequence
        self._count(op, 1)

    def end(self, numbers: Iterable[int]) -> list[StagedPut]:
        """Removes blocks; returns what would bring them back."""
        gone = []
        for number in numbers:
            entry = self._blocks.pop(number, None)
            if entry is None:
                continue
            staging, sequence = entry
            block = staging.blocks.pop(sequence)
            gone.append(_now(block))
            self._count(block.put, -1)
            if not staging.blocks:
                del self._stagings[staging.token]
                batch = self._batches[staging.batch]
                del batch[staging.token]
                if not batch:
                    del self._batches[staging.batch]
        return gone

    def _count(self, op: StagedPut, sign: int) -> None:
        self.bytes += sign * op.size
        self.rows += sign * op.rows
        left = self._query_bytes.get(op.query_id, 0) + sign * op.size
        if left > 0:
            self._query_bytes[op.query_id] = left
        else:
            self._query_bytes.pop(op.query_id, None)

    def dump(self) -> list[StagedPut]:
        return [_now(staging.blocks[sequence]) for staging, sequence in self._blocks.values()]

    def check(self) -> None:
        blocks = [block for staging in self._stagings.values() for block in staging.blocks.values()]
        assert len(blocks) == len(self._blocks)
        assert self.bytes == sum(block.put.size for block in blocks)
        assert self.rows == sum(block.put.rows for block in blocks)
        assert sum(self._query_bytes.values()) == self.bytes
        assert {token for batch in self._batches.values() for token in batch} == set(self._stagings)
        assert all(staging.blocks for staging in self._stagings.values())


def _now(block: StagedBlock) -> StagedPut:
    op = block.put
    return op if block.timer_id == op.timer_id else replace(op, timer_id=block.timer_id)
