"""Names of what a queue's offsets count, so that readers notice when the same offsets count something else.

A topic has a uid that all brokers share; where its queues lie in one broker's store adds a part of its own. Pure.
"""

from __future__ import annotations

import hashlib

__all__ = ["local_uid", "queue_uid"]


def local_uid(key: bytes, topic_id: int) -> str:
    """Names a topic's queues in the store that has this key. Neither key nor number is ever used twice."""
    return hashlib.blake2s(topic_id.to_bytes(8, "big"), key=key[:32], digest_size=4).hexdigest()


def queue_uid(topic_uid: str, key: bytes, topic_id: int) -> str:
    """Another one when the topic was made anew, when it left this broker and came back, and when the store was lost."""
    return f"{topic_uid}-{local_uid(key, topic_id)}"
