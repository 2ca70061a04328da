"""Which decision of the server counts: a member's shares of its topics, pushed by brokers or answered to a question.

Decisions reach a member over several brokers, late, twice and out of order. The newest generation counts (XO-7); a
share that is older than `trust_ms`, or that something cast suspicion on, is asked for again. Times are monotonic
milliseconds.
Always true: the generation of a topic never goes back while the server decides; a share in use belongs to the
generation that fences its commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evenq.client.core.calls import Assignment
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.model.session_events import AssignmentChanged

__all__ = ["DecidedShares"]


@dataclass(frozen=True, slots=True)
class _Share:
    queues: list[MessageQueue]
    generation: Generation
    heard_ms: int


class DecidedShares:
    """The shares of one member."""

    def __init__(self, *, trust_ms: int) -> None:
        self._trust_ms = trust_ms
        self._shares: dict[str, _Share] = {}
        """By topic, until something casts suspicion on it."""
        self._generations: dict[str, Generation] = {}
        self._heard_ms = -(1 << 60)

    def generation(self, topic: str) -> Generation:
        """Of the decision in use, for fencing; NO_GENERATION while members decide."""
        return self._generations.get(topic, NO_GENERATION)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Our share by the newest decision; empty also if none is known."""
        share = self._shares.get(topic)
        return [] if share is None else share.queues

    def complete(self, topics: Iterable[str]) -> bool:
        """True if the server pushes its decisions about all of these, retry topics aside."""
        ordinary = [topic for topic in topics if not topic.startswith(RETRY_PREFIX)]
        return bool(ordinary) and all(topic in self._shares for topic in ordinary)

    def heard_since(self, ms: int) -> bool:
        """True if a decision was pushed to us since then."""
        return self._heard_ms >= ms

    def push(self, change: AssignmentChanged[tuple[MessageQueue, ...]], now_ms: int) -> bool:
        """A broker tells of a decision. False: it does not say our share, so the next round must ask."""
        if change.share is None:
            self._shares.pop(change.topic, None)
            return False
        known = self._shares.get(change.topic)
        newer = known is None or change.generation > known.generation
        if newer and change.generation >= self.generation(change.topic):
            self._heard_ms = now_ms
            self._shares[change.topic] = _Share(list(change.share), change.generation, now_ms)
        return True

    def use(self, topic: str, now_ms: int) -> list[MessageQueue] | None:
        """The share that a round may use without a question; None: ask the server."""
        share = self._shares.get(topic)
        if share is None:
            return None
        # A push may be lost with its connection; a member that only listened would then read by an old decision for
        # ever.
        if now_ms - share.heard_ms >= self._trust_ms:
            del self._shares[topic]
            return None
        self._generations[topic] = share.generation
        return share.queues

    def answered(self, topic: str, assignment: Assignment, now_ms: int) -> list[MessageQueue] | None:
        """What counts after the server answered a question; None: nothing changes.

        A decision that was pushed while we asked wins if it is newer. A late answer must not win (XO-7); one without
        any generation is no late one: the rebalancer is gone, and brokers compute.
        """
        pushed = self._shares.get(topic)
        if pushed is not None and pushed.generation > assignment.generation:
            self._generations[topic] = pushed.generation
            return pushed.queues
        if not assignment.known or NO_GENERATION < assignment.generation < self.generation(topic):
            return None
        self._generations[topic] = max(assignment.generation, self.generation(topic))
        queues = sorted(assignment.queues)
        if assignment.generation > NO_GENERATION:
            self._shares[topic] = _Share(queues, assignment.generation, now_ms)
        else:
            self._shares.pop(topic, None)
        return queues

    def suspect(self, topic: str | None = None) -> None:
        """Ask about this topic, or about all, in the next round."""
        if topic is None:
            self._shares.clear()
        else:
            self._shares.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Members decide now: an earlier generation would be refused where a later one was known."""
        self._shares.pop(topic, None)
        self._generations.pop(topic, None)
