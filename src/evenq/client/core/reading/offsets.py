"""A consumer's progress in memory, and the file form of broadcasting progress (OF-2, OF-5, OF-8, OF-10).

Owned by the consumer's loop. A stored offset is the next one to consume (OF-9). `due` names what differs from what
was stored last, so a quiet consumer commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from evenq.errors import StoreCorrupted
from evenq.model import MessageQueue, QueueOffset

__all__ = ["KeptOffset", "OffsetTable", "decode_offsets", "encode_offsets"]

FORMAT = 1


class OffsetTable:
    """Message queue to committed offset: what memory has, and what was stored."""

    def __init__(self) -> None:
        self._memory: dict[MessageQueue, QueueOffset] = {}
        self._stored: dict[MessageQueue, QueueOffset] = {}
        self._rewound: set[MessageQueue] = set()
        self._uids: dict[MessageQueue, str] = {}

    def identify(self, queue: MessageQueue, uid: str) -> None:
        """What the offsets of a queue count that begins in a moment."""
        self._uids[queue] = uid

    def uid(self, queue: MessageQueue) -> str:
        """The same; empty: not known."""
        return self._uids.get(queue, "")

    def begin(self, queue: MessageQueue, offset: QueueOffset, *, stored: bool) -> None:
        """A queue starts without a leftover (RB-28). `stored`: the store has this value already."""
        self._stored.pop(queue, None)
        self._rewound.discard(queue)
        self._memory[queue] = offset
        if stored:
            self._stored[queue] = offset

    def advance(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Progress in memory; it never goes back, and a queue that is not ours is ignored."""
        known = self._memory.get(queue)
        if known is not None and offset > known:
            self._memory[queue] = offset

    def rewind(self, queue: MessageQueue, offset: QueueOffset, *, later: bool = False) -> None:
        """The user wants to read on at `offset`, also if that is back; the next report says so explicitly. `later`:
        that report comes with the next progress, not before.
        """
        self.begin(queue, offset, stored=later)
        self._rewound.add(queue)

    def rewound(self, queue: MessageQueue) -> bool:
        """True if the store must go back."""
        return queue in self._rewound

    def memory(self, queue: MessageQueue) -> int:
        """Memory only (OF-8); -1 if unknown."""
        return self._memory.get(queue, -1)

    def due(self) -> dict[MessageQueue, QueueOffset]:
        """What must be stored, sorted by queue."""
        return {queue: offset for queue, offset in sorted(self._memory.items()) if self._stored.get(queue) != offset}

    def stored(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """The store has confirmed this value."""
        if queue in self._memory:
            # Answers of two reports may cross; a value below would make `due` name what the store has already.
            self._stored[queue] = max(offset, self._stored.get(queue, offset))
            if self._memory[queue] == offset:
                self._rewound.discard(queue)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not ours any more (OF-10)."""
        self._memory.pop(queue, None)
        self._stored.pop(queue, None)
        self._uids.pop(queue, None)
        self._rewound.discard(queue)

    def all(self) -> dict[MessageQueue, QueueOffset]:
        """Everything in memory."""
        return dict(self._memory)


class KeptOffset(NamedTuple):
    """A row of the file."""

    offset: QueueOffset
    uid: str = ""
    """What it counts, as its broker says; empty: not known, as in the files of older versions."""


def encode_offsets(offsets: Mapping[MessageQueue, KeptOffset]) -> bytes:
    """The bytes of `offsets.json` (OF-5): format number, then one row per queue, sorted. Older versions read it, too:
    they pass over `uid`.
    """
    rows = [
        {
            "topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": kept.offset,
            "uid": kept.uid,
        }
        for queue, kept in sorted(offsets.items())
    ]  # fmt: skip
    return json.dumps({"format": FORMAT, "offsets": rows}, indent=1).encode()


def decode_offsets(content: bytes, *, name: str) -> dict[MessageQueue, KeptOffset]:
    """Read `offsets.json` back. Raises StoreCorrupted, which names the file, on anything that is not ours."""
    try:
        saved = json.loads(content)
        if saved["format"] != FORMAT:
            raise StoreCorrupted(
                f"{name} has format {saved['format']}, this version reads {FORMAT}; move the file away to start "
                f"without stored offsets"
            )
        return {
            MessageQueue(str(row["topic"]), str(row["broker"]), int(row["queue"])): KeptOffset(
                QueueOffset(int(row["offset"])), str(row.get("uid", ""))
            )
            for row in saved["offsets"]
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupted(
            f"{name} is no offsets file ({error}); move it away to start without stored offsets"
        ) from error
