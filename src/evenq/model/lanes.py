"""Broker and queue of a message group or lite topic, the same for every producer.

The official SDKs hash groups in five different ways. So a broker forwards a message to the home of its group, which
chooses the queue (wire contract 3.7, checklist 21). Our own SDK sends there directly, by the same rule.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable


def home_of(message_group: str, broker_names: Iterable[str]) -> str:
    """Returns the broker with the greatest hash of both names: a joining or leaving broker moves only its groups."""
    group = message_group.encode()
    return max(
        broker_names,
        key=lambda name: (hashlib.blake2b(group, key=name.encode()[:64], digest_size=8).digest(), name),
    )


def lane_of(message_group: str, queues: int) -> int:
    """Returns the queue id of a message group among the broker's `queues`."""
    return zlib.crc32(message_group.encode()) % queues


def owner_among(brokers: Iterable[str], parent: str, name: str) -> str:
    """Returns the broker of the lite topic `name` of topic `parent` (wire contract 5.6); empty without brokers."""
    suffix = f"\0{parent}\0{name}".encode()
    return max(
        brokers,
        key=lambda broker: (hashlib.blake2b(broker.encode() + suffix, digest_size=8).digest(), broker),
        default="",
    )
