"""Packer of messages by the compiled accelerator: `Packer`, with the same bytes.

`evenq_native` packs all messages of a call in one step. Decisions stay in Python: the queue of a message, the end of
a file, and each refusal. A call that it does not take is packed by `Packer`, as if it had not been tried. `make
plain-sends` compares both with generated calls. On the loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.messages import Append
from evenq.store.log.packer import LARGE_BYTES, Packer
from evenq.store.log.writer import WriteBatch

if TYPE_CHECKING:
    from evenq_native import Packed

ALONE_MAX = 1
"""A call of this many messages costs less in Python."""


class PackingModule(Protocol):
    """The part of `evenq_native` that is used here."""

    @property
    def pack_messages(self) -> Callable[..., Packed | None]: ...


class NativePacker(Packer):
    """The places after the log's end, and the group that gathers there. Compiled code packs the messages."""

    def __init__(
        self,
        native: PackingModule,
        queues: dict[tuple[int, int], ConsumeQueue],
        *,
        segment_bytes: int,
        end: int,
        epoch: int = 1,
    ) -> None:
        super().__init__(queues, segment_bytes=segment_bytes, end=end, epoch=epoch)
        self._pack_messages = native.pack_messages

    def pack(self, entries: Sequence[Append], store_ms: int, synced_end: int, *, more: bool = False) -> WriteBatch:
        if len(entries) <= ALONE_MAX:
            return super().pack(entries, store_ms, synced_end, more=more)
        packed = self._pack_messages(entries, self._queue_of, self.end, self._segment_end, synced_end, store_ms, more)
        if packed is None:
            return super().pack(entries, store_ms, synced_end, more=more)
        batch = self.batch or self._new_batch()
        data, end, queues = packed
        if len(data) < LARGE_BYTES:
            batch.data += data
        else:
            batch.add(data)
        for queue, next_offset, tail, messages in queues:
            queue.tail += tail
            queue.hot += messages
            batch.touched[queue] = queue.next_offset = next_offset
        batch.messages += len(entries)
        self.end = batch.end = end
        return batch

    def _queue_of(self, topic_id: int, queue_id: int) -> tuple[ConsumeQueue, int, bytes, bytes]:
        """Returns a queue, its next offset, the stem of its messages, and that of the last one of a call."""
        queue = self._queues.get((topic_id, queue_id)) or self._new_queue(topic_id, queue_id)
        if not queue.stem:
            self._stem(queue)
        return queue, queue.next_offset, queue.stem, queue.last_stem


def packer_of(
    native: PackingModule | None,
    queues: dict[tuple[int, int], ConsumeQueue],
    *,
    segment_bytes: int,
    end: int,
    epoch: int = 1,
) -> Packer:
    """Returns the packer of a store: compiled with the accelerator, otherwise in Python."""
    if native is None:
        return Packer(queues, segment_bytes=segment_bytes, end=end, epoch=epoch)
    return NativePacker(native, queues, segment_bytes=segment_bytes, end=end, epoch=epoch)
