"""The merged histories of sender and members before the checker, and what else they tell: how long queues stood still."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from evenq_proofs.tolerance import tolerances

from evenq.runtime.clock import FakeClock, SystemClock
from evenq.testing.checker import AnomalyKind, Report, check
from evenq.testing.history import HistoryAction, Op, Recorder, merge_histories, read_history

LOSSES = (AnomalyKind.LOST, AnomalyKind.UNSEEN)
REPEATS = (AnomalyKind.DUPLICATE_GRACEFUL, AnomalyKind.DUPLICATE_AFTER_ACK)


def judge(histories: Iterable[Path], *, folder: Path, group: str, topic: str, ordered: bool) -> Report:
    """Add what makes it whole (subscription, drain) and check it."""
    first, last = folder / "0-begin.history.jsonl", folder / "9-end.history.jsonl"
    with Recorder(first, clock=FakeClock()) as recorder:
        order = "queue" if ordered else "none"
        result = recorder.invoke(
            Op.ADMIN, process="judge", group=group, action=HistoryAction.SUBSCRIBE, topic=topic, order=order
        )
        recorder.ok(result)
    with Recorder(last, clock=SystemClock()) as recorder:
        recorder.ok(recorder.invoke(Op.ADMIN, process="judge", group=group, topic=topic, action=HistoryAction.DRAIN))
    return check(merge_histories([read_history(path) for path in [first, *histories, last]]), limits=tolerances())


def delivered_bodies(histories: Iterable[Path]) -> int:
    """How many different messages were delivered."""
    return len({
        message.body for path in histories for event in read_history(path) for message in event.messages or ()
    })  # fmt: skip


def longest_silence_ms(histories: Iterable[Path], *, from_ms: int, to_ms: int, broker: str = "") -> int:
    """The longest time within the window in which no member got anything of a queue (of the broker), by any queue."""
    seen: dict[str, list[int]] = {}
    for path in histories:
        for event in read_history(path):
            if from_ms <= event.at_ms <= to_ms:
                for queue in {message.queue for message in event.messages or ()}:
                    if not broker or f"/{broker}/" in queue:
                        seen.setdefault(queue, []).append(event.at_ms)
    longest = 0 if seen else to_ms - from_ms
    for times in seen.values():
        marks = [from_ms, *sorted(times), to_ms]
        longest = max(longest, *(later - earlier for earlier, later in pairwise(marks)))
    return longest
