"""The last delivered batches by client and attempt id, for a few seconds (wire contract 5.5).

A client that did not get the answer of a receive repeats it with the same attempt id. It then gets the messages of that
batch that are not acknowledged, as the same delivery. Always true: at most `attempts_max` are kept, the oldest are
dropped first. Pure; used by `rpc.delivery.receive`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from evenq_broker.core.delivery.progress import QueueProgress


class Attempt(NamedTuple):
    group_id: int
    topic_id: int
    since_ms: int
    held: tuple[tuple[QueueProgress, int, int], ...]  # (queue, offset, delivery number)
    source: str = ""  # name of the broker that has the messages; empty: this one


class Attempts:
    """(client id, attempt id) -> batch."""

    __slots__ = ("_attempts", "attempts_max", "keep_ms")

    def __init__(self, *, keep_ms: int, attempts_max: int) -> None:
        self.keep_ms = keep_ms
        self.attempts_max = attempts_max
        self._attempts: OrderedDict[tuple[str, str], Attempt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def remember(self, client_id: str, attempt_id: str, attempt: Attempt) -> None:
        """Remembers a batch that was answered whole. A repeated one keeps its first time."""
        attempts = self._attempts
        known = attempts.get((client_id, attempt_id))
        if known is not None:
            # From the first answer on: a client that repeats the id for ever must not hold the batch for ever.
            attempt = attempt._replace(since_ms=known.since_ms)
        attempts[client_id, attempt_id] = attempt
        over_ms = attempt.since_ms - self.keep_ms
        while len(attempts) > self.attempts_max or next(iter(attempts.values())).since_ms < over_ms:
            attempts.popitem(last=False)

    def recall(self, client_id: str, attempt_id: str, group_id: int, topic_id: int, now_ms: int) -> Attempt | None:
        """Returns the batch that this client got lately under this id, for the same group and topic."""
        attempt = self._attempts.get((client_id, attempt_id))
        if attempt is None or (attempt.group_id, attempt.topic_id) != (group_id, topic_id):
            return None
        return attempt if now_ms - attempt.since_ms <= self.keep_ms else None
