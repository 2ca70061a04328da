"""Index of the deliveries that a client's life holds: client -> queue -> offsets. So the end of one of ten thousand
clients does not look at what the others hold.

`core.delivery.progress` adds each delivery of a push consumer. Offsets are only added; the entry in the queue's
`pending` shows whether one is still held. A list that has doubled is cleaned, so memory stays within about twice what
is held. The cost per offset does not depend on the amount. Freed when the client ends. Always true: an entry of
`pending` with a client id is found here. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from evenq_broker.core.delivery.queue_progress import Pending, QueueProgress

QueueKey: TypeAlias = tuple[int, int, int]  # Group, topic, queue

_OFFSETS_MIN = 32
_QUEUES_MIN = 16


class _Offsets(list[int]):
    """Offsets of one queue that one client got, including finished and repeated ones."""

    __slots__ = ("look_at",)

    def __init__(self, offsets: Sequence[int]) -> None:
        super().__init__(offsets)
        self.look_at = max(_OFFSETS_MIN, len(offsets))  # the list is cleaned when it is longer than this

    def clean(self, client_id: str, pending: Mapping[int, Pending]) -> None:
        held = [
            offset
            for offset in dict.fromkeys(self)
            if (entry := pending.get(offset)) is not None and entry.client_id == client_id
        ]
        self[:] = held
        self.look_at = 2 * len(held) + _OFFSETS_MIN


class _Queues(dict[QueueKey, _Offsets]):
    """Queues of one client, including those of which it holds nothing any more."""

    __slots__ = ("look_at",)

    def __init__(self) -> None:
        super().__init__()
        self.look_at = _QUEUES_MIN


class Held:
    """Clients that had deliveries without a deadline of their own."""

    __slots__ = ("_clients", "_progress")

    def __init__(self, progress: Mapping[QueueKey, QueueProgress]) -> None:
        self._progress = progress
        self._clients: dict[str, _Queues] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._clients

    def add(self, client_id: str, queue: QueueProgress, offsets: Sequence[int]) -> None:
        """Adds deliveries from the queue to the client; the queue's `pending` has them already."""
        key = (queue.group_id, queue.topic_id, queue.queue_id)
        queues = self._clients.get(client_id)
        if queues is None:
            queues = self._clients[client_id] = _Queues()
        known = queues.get(key)
        if known is None:
            if len(queues) >= queues.look_at:
                self._clean(client_id, queues)
            queues[key] = _Offsets(offsets)
            return
        known.extend(offsets)
        if len(known) > known.look_at:
            known.clean(client_id, queue.pending)

    def pop(self, client_id: str) -> list[tuple[QueueKey, list[int]]]:
        """Removes the client. Returns where to look for what it held, by queue; offsets may be finished or repeated."""
        return sorted(self._clients.pop(client_id, _Queues()).items())

    def clients(self) -> list[str]:
        """Returns clients that hold something, or did lately, in the order of their first delivery."""
        return list(self._clients)

    def _clean(self, client_id: str, queues: _Queues) -> None:
        for key, offsets in list(queues.items()):
            queue = self._progress.get(key)
            offsets.clean(client_id, {} if queue is None else queue.pending)
            if not offsets:
                del queues[key]
        queues.look_at = 2 * len(queues) + _QUEUES_MIN

    def check(self, client_id: str, key: QueueKey, offset: int) -> None:
        """Raises AssertionError unless the client is known to hold the message; for tests."""
        queues = self._clients.get(client_id, _Queues())
        assert offset in queues.get(key, ()), (client_id, key, offset)
