"""A consumer's progress in memory, and the file format of broadcasting progress (OF-2, OF-5, OF-8, OF-10).

Owned by the consumer's loop. A stored offset is the next one to consume (OF-9). `due` returns only what differs from
the stored values, so an idle consumer commits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from evenq.errors import StoreCorrupted
from evenq.model import MessageQueue, QueueOffset

FORMAT = 1


class OffsetTable:
    """The committed offset of each message queue, in memory and as last stored."""

    def __init__(self) -> None:
        self._memory: dict[MessageQueue, QueueOffset] = {}
        self._stored: dict[MessageQueue, QueueOffset] = {}
        self._rewound: set[MessageQueue] = set()
        self._begun: dict[MessageQueue, int] = {}
        self._begins = 0
        self._uids: dict[MessageQueue, str] = {}

    def identify(self, queue: MessageQueue, uid: str) -> None:
        """Sets the uid of the topic whose messages the offsets count, before the queue begins."""
        self._uids[queue] = uid

    def uid(self, queue: MessageQueue) -> str:
        """Returns the uid of `identify`; empty: not known."""
        return self._uids.get(queue, "")

    def begin(self, queue: MessageQueue, offset: QueueOffset, *, stored: bool) -> None:
        """Starts a queue without leftovers (RB-28). `stored`: the store has this value already."""
        self._begins += 1
        self._begun[queue] = self._begins
        self._stored.pop(queue, None)
        self._rewound.discard(queue)
        self._memory[queue] = offset
        if stored:
            self._stored[queue] = offset

    def advance(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Advances the offset in memory. It never goes back; a queue that was not begun is ignored."""
        known = self._memory.get(queue)
        if known is not None and offset > known:
            self._memory[queue] = offset

    def rewind(self, queue: MessageQueue, offset: QueueOffset, *, later: bool = False) -> None:
        """Continues at `offset`, also backward. `later`: it is reported with the next progress, not before."""
        self.begin(queue, offset, stored=later)
        self._rewound.add(queue)

    def rewound(self, queue: MessageQueue) -> bool:
        """True if the offset in the store must go back."""
        return queue in self._rewound

    def begun(self, queue: MessageQueue) -> int:
        """Returns a number that changes when the queue begins anew or is rewound; earlier reports are void then."""
        return self._begun.get(queue, 0)

    def memory(self, queue: MessageQueue) -> int:
        """Returns the offset in memory only (OF-8); -1 if unknown."""
        return self._memory.get(queue, -1)

    def due(self) -> dict[MessageQueue, QueueOffset]:
        """Returns the offsets that must be stored, sorted by queue."""
        return {queue: offset for queue, offset in sorted(self._memory.items()) if self._stored.get(queue) != offset}

    def stored(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Notes that the store has confirmed this value, of a report since the queue has `begun`."""
        if queue in self._memory:
            self._stored[queue] = offset
            self._rewound.discard(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Removes a queue that this consumer no longer owns (OF-10)."""
        self._memory.pop(queue, None)
        self._stored.pop(queue, None)
        self._begun.pop(queue, None)
        self._uids.pop(queue, None)
        self._rewound.discard(queue)

    def all(self) -> dict[MessageQueue, QueueOffset]:
        return dict(self._memory)


class KeptOffset(NamedTuple):
    """A row of the file."""

    offset: QueueOffset
    uid: str = ""
    """Uid of the topic whose messages the offset counts; empty: not known, as in files of older versions."""


def encode_offsets(offsets: Mapping[MessageQueue, KeptOffset]) -> bytes:
    """Returns the content of `offsets.json` (OF-5); older versions can read it, and ignore `uid`."""
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": kept.offset,
            "uid": kept.uid,
        }
        for queue, kept in sorted(offsets.items())
    ]
    return json.dumps({"format": FORMAT, "offsets": rows}, indent=1).encode()


def decode_offsets(content: bytes, *, name: str) -> dict[MessageQueue, KeptOffset]:
    """Decodes `offsets.json`. Raises StoreCorrupted, which names the file, if the content is not valid."""
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
            f"{name} is not a valid offsets file ({error}); move it away to start without stored offsets"
        ) from error
