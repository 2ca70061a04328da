"""Replay: what happened last stands, whatever order records and snapshots make of it.

A snapshot may be newer than records that are replayed over it, and a record may come twice. So an operation that tells
of an older delivery, an older offset or an older holder never undoes a newer one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, Op

KEY = (1, 2, 3)
NOW = 1 << 40


def delivered(number: int, *, attempt: int, client_id: str = "", offset: int = 5, deadline_ms: int = NOW) -> Delivered:
    return Delivered(*KEY, offset + 1, deadline_ms, client_id, (offset,), (number,), (attempt,))


def replayed(*ops: Op) -> Progress:
    progress = Progress()
    for op in ops:
        progress.apply(op)
    progress.check()
    return progress


def entry(progress: Progress, offset: int = 5) -> Any:
    queue = progress.queue(*KEY)
    return None if queue is None else queue.pending.get(offset)


def test_an_older_delivery_never_undoes_a_newer_one() -> None:
    newer = delivered(9, attempt=3, deadline_ms=NOW + 50)
    found = entry(replayed(newer, delivered(4, attempt=1, deadline_ms=NOW)))
    assert (found.number, found.attempt, found.deadline_ms) == (9, 3, NOW + 50)


def test_an_older_change_of_the_invisible_time_never_undoes_a_newer_delivery() -> None:
    found = entry(replayed(delivered(9, attempt=3, deadline_ms=NOW + 50), Invisible(*KEY, 5, 4, 1, NOW)))
    assert (found.number, found.attempt, found.deadline_ms) == (9, 3, NOW + 50)


def test_a_change_of_the_same_delivery_counts() -> None:
    found = entry(replayed(delivered(9, attempt=3), Invisible(*KEY, 5, 9, 3, NOW + 77)))
    assert found.deadline_ms == NOW + 77


def test_a_delivery_of_what_is_finished_brings_nothing_back() -> None:
    progress = replayed(delivered(4, attempt=1), Acked(*KEY, 5), delivered(4, attempt=1))
    assert entry(progress) is None
    assert progress.committed(*KEY) == 6


def test_an_offset_goes_back_by_a_reset_only() -> None:
    assert replayed(Committed(*KEY, 10), Committed(*KEY, 5)).committed(*KEY) == 10
    assert replayed(Committed(*KEY, 10), Committed(*KEY, 5, reset=True)).committed(*KEY) == 5
    assert replayed(Committed(*KEY, 10), Committed(*KEY, 5, reset=True), Committed(*KEY, 7)).committed(*KEY) == 7


@pytest.mark.parametrize("seed", range(60))
def test_records_that_a_snapshot_already_holds_change_nothing_when_they_come_again(seed: int) -> None:
    rng = random.Random(seed)
    ops = history(rng)
    whole = replayed(*ops)
    cut = rng.randrange(len(ops))
    overlap = rng.randrange(cut + 1)
    snapshot = list(replayed(*ops[:cut]).dump())
    again = replayed(*snapshot, *ops[overlap:])
    assert state(again) == state(whole)


def history(rng: random.Random) -> list[Op]:
    """Deliveries of one queue without resets: each offset is delivered, perhaps again, perhaps finished."""
    ops: list[Op] = [Committed(*KEY, 0)]
    number, looked = 0, 0
    last: dict[int, int] = {}
    attempts: dict[int, int] = {}
    for _ in range(rng.randint(5, 60)):
        kind = rng.random()
        if kind < 0.5:
            number += 1
            offset = looked if not last or rng.random() < 0.6 else rng.choice(sorted(last))
            looked = max(looked, offset + 1)
            last[offset], attempts[offset] = number, attempts.get(offset, 0) + 1
            ops.append(Delivered(*KEY, looked, NOW + number, "", (offset,), (number,), (attempts[offset],)))
        elif last and kind < 0.75:
            offset = rng.choice(sorted(last))
            ops.append(Invisible(*KEY, offset, last[offset], attempts[offset], NOW + rng.randint(0, 999)))
        elif last:
            offset = rng.choice(sorted(last))
            del last[offset], attempts[offset]
            ops.append(Acked(*KEY, offset))
    return ops


def state(progress: Progress) -> Any:
    queue = progress.queue(*KEY)
    assert queue is not None
    pending = {offset: (one.number, one.attempt, one.deadline_ms) for offset, one in queue.pending.items()}
    return progress.committed(*KEY), queue.next, pending
