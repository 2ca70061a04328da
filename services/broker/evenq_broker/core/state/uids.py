"""Uids of what a queue's offsets count, so that readers notice when the same offsets count something else.

A topic has a uid that all brokers share; the place of its queues in one broker's store adds a part of its own. Pure.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Container, Iterable
from typing import Protocol

ENDED_MAX = 1_000


class _Random(Protocol):
    def getrandbits(self, k: int, /) -> int: ...


class TopicUids:
    """Source of topic uids, with those deleted lately: routes may still have them when a topic is made again."""

    def __init__(self, rng: _Random) -> None:
        self._rng = rng
        self._ended: deque[str] = deque(maxlen=ENDED_MAX)
        self.remembered: Container[str] = ()
        """Uids of topics whose deletion some broker has not confirmed, also from before the start; set at the start."""

    def shared(self, uids: Iterable[str]) -> str:
        """Returns the uid that other brokers have for a topic: the first that was not deleted, otherwise a new one."""
        known = next((uid for uid in uids if uid and not self.ended(uid)), "")
        return known or f"{self._rng.getrandbits(64):016x}"

    def ended(self, uid: str) -> bool:
        """Returns whether a topic with this uid was deleted, as far as that is remembered."""
        return uid in self._ended or uid in self.remembered

    def end(self, uid: str) -> None:
        """Notes that the topic of this uid was deleted everywhere."""
        self._ended.append(uid)


def local_uid(key: bytes, topic_id: int) -> str:
    """Returns a name of a topic's queues in the store with this key. Neither key nor number is ever used twice."""
    return hashlib.blake2s(topic_id.to_bytes(8, "big"), key=key[:32], digest_size=4).hexdigest()


def queue_uid(topic_uid: str, key: bytes, topic_id: int) -> str:
    """Returns a uid that changes when the topic is made anew, leaves this broker and returns, or the store is lost."""
    return f"{topic_uid}-{local_uid(key, topic_id)}"
