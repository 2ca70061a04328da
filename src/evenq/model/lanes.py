"""Where the messages of one message group, or of one lite topic, are: the same for every producer.

The official SDKs hash groups in five different ways, so a broker that gets a message passes it on to the group's home,
and places it there itself (wire contract 3.7, checklist 21). Our own SDK goes there at once by the same rule.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable

__all__ = ["home_of", "lane_of", "owner_among"]


def home_of(message_group: str, broker_names: Iterable[str]) -> str:
    """The broker of a message group: the one with the greatest hash of both names, so that a broker that goes or comes
    moves only its own groups.
    """
    group = message_group.encode()
    return max(
        broker_names,
        key=lambda name: (hashlib.blake2b(group, key=name.encode()[:64], digest_size=8).digest(), name),
    )


def lane_of(message_group: str, queues: int) -> int:
    """The queue of a message group among the broker's `queues`."""
    return zlib.crc32(message_group.encode()) % queues


def owner_among(brokers: Iterable[str], parent: str, name: str) -> str:
    """Which of the brokers has the lite topic `name` of topic `parent` (wire contract 5.6). "": there is none."""
    suffix = f"\0{parent}\0{name}".encode()
    return max(
        brokers,
        key=lambda broker: (hashlib.blake2b(broker.encode() + suffix, digest_size=8).digest(), broker),
        default="",
    )
