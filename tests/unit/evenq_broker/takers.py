"""Takes messages from a broker of a test as its calls do."""

from __future__ import annotations

from evenq_broker.broker import Broker
from evenq_broker.loops.delivery.taking import MessageTaker


def taker_of(broker: Broker) -> MessageTaker:
    """A taker of messages at this broker."""
    return MessageTaker(
        broker.kernel,
        starts=broker.starts,
        sessions=broker.sessions,
        long_polls=broker.long_polls,
        lite=broker.lite,
        dead_letter_mover=broker.dead_letter_mover,
    )
