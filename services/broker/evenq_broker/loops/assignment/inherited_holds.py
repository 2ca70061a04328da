"""Queues that wait for successors of members that left, as decisions said: the next leader goes on waiting.

Owned by `reports.py`. Of each (group, topic) what the newest decision said is kept, also that nothing waits any
more, so that the next leader, who hears several brokers, can tell what is over. Only kept: when a hold ends is the
leader's business.
"""

from __future__ import annotations

from evenq_broker.loops.wire.assignment import DecisionNews, TopicHolds

__all__ = ["ReportedHolds"]

TOPICS_MAX = 1_000
"""Of one group."""
BYTES_MAX = 256 * 1024
"""Of one (group, topic): more than 256 places and 20,000 queues take. What is bigger is not kept."""


class ReportedHolds:
    """By group and topic."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, TopicHolds]] = {}

    def decided(self, decision: DecisionNews) -> None:
        """Keep what waits by this decision, unless a newer one came."""
        topics = self._groups.get(decision.group, {})
        known = topics.get(decision.topic)
        if known is None and not decision.holds_any:
            return
        if known is not None and known.generation > decision.generation:
            return
        current = decision.holds(BYTES_MAX)
        if known is None and len(topics) >= TOPICS_MAX:
            topics = {topic: holds for topic, holds in topics.items() if holds.waits}
        if known is not None or len(topics) < TOPICS_MAX:
            self._groups[decision.group] = topics
            topics[decision.topic] = current

    def forget(self, group: str) -> None:
        """The group is gone."""
        self._groups.pop(group, None)

    def of_group(self, group: str) -> list[TopicHolds]:
        """What to report, one for each topic."""
        return list(self._groups.get(group, {}).values())
