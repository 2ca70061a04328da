"""Gives each record its place in the log and its queue, and packs it into the group that the writer gets next.

`pack` is the hot path: under a microsecond a message beside the sender's own work, most of it four calls of C (the
place, the join, the checksum, the prefix). What is the same for neighbours in one queue is done once for all of them,
and no helper is called for each message. `pack_mixed` packs everything else: other records one by one, and blocks of
messages (`AppendBlock`) as bytes, without an object for each message.

A call that cannot be packed is taken back at once, and so is a group that found the disk full: its places are free
again, as if it had never been. On the loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from evenq.errors import BadRequest, BodyTooLarge
from evenq.store.commit_log import Run
from evenq.store.consume_queue import ENTRY, ConsumeQueue
from evenq.store.messages import Append, AppendBlock, TimerAppend
from evenq.store.record import (
    FLAG_MORE,
    HEADER_BYTES,
    MAGIC,
    MESSAGE,
    PLACE,
    PREFIX,
    REST,
    STATE,
    STEM,
    TIMER,
    TIMER_END,
    TIMER_KIND_MAX,
    VERSION,
    pack_padding,
    pack_timer_ids,
    timer_flags,
    unsigned,
)
from evenq.store.segment import segment_of
from evenq.store.writer import Batch

__all__ = ["Packer"]

EPOCH = 1  # one copy of the log: the first and only leader
UNPACKABLE = (struct.error, TypeError, BadRequest)

_pack_prefix = PREFIX.pack
_pack_place = PLACE.pack
_pack_entry = ENTRY.pack


class Packer:
    """The places behind the log's end, and the group that is being gathered there."""

    def __init__(self, queues: dict[tuple[int, int], ConsumeQueue], *, segment_bytes: int, end: int) -> None:
        self._queues = queues
        self._segment_bytes = segment_bytes
        self.end = end
        """First log offset that no record has."""
        start, _ = segment_of(end, segment_bytes)
        self._segment_end = start + segment_bytes
        self.batch: Batch | None = None
        """What was packed and not handed over."""

    def take(self) -> Batch | None:
        """Hand over the group; what comes is packed into the next one."""
        batch, self.batch = self.batch, None
        return batch

    # -- the hot path -------------------------------------------------------------------------------------------------

    def pack(  # noqa: PLR0915  # calls cost
        self, entries: Sequence[Append], store_ms: int, synced_end: int, *, more: bool = False
    ) -> Batch:
        """Place and pack the messages of one call, at least one; all or none. `more`: further records of the call
        follow. Raises BadRequest, BodyTooLarge.
        """
        batch = self.batch or self._new_batch()
        data = batch.data
        done, last = 0, len(entries) - 1
        log_end = self.end
        topic_id = queue_id = -1
        queue: ConsumeQueue | None = None
        begin = queue_offset = 0  # of the present run: neighbours in one queue
        stem = last_stem = b""
        tail = bytearray()
        try:
            for entry in entries:
                if entry.queue_id != queue_id or entry.topic_id != topic_id:
                    if queue is not None:  # the run is over: its messages are the newest of their queue
                        queue.hot += entries[begin:done]
                        batch.touched[queue] = queue.next_offset = queue_offset
                        begin = done
                    topic_id = entry.topic_id
                    queue_id = entry.queue_id
                    queue = self._queues.get((topic_id, queue_id)) or self._new_queue(topic_id, queue_id)
                    stem = queue.stem or self._stem(queue)
                    last_stem = stem if more else queue.last_stem
                    queue_offset = queue.next_offset
                    tail = queue.tail
                if done == last:
                    stem = last_stem
                head = entry.head
                system = entry.system
                tag_hash = entry.tag_hash
                head_bytes = len(head)
                system_bytes = len(system)
                size = HEADER_BYTES + head_bytes + system_bytes
                if log_end + size > self._segment_end:
                    log_end = self._roll(batch, log_end, size, store_ms, synced_end)
                    data = batch.data
                body = b"".join((
                    stem,
                    _pack_place(
                        queue_offset, log_end, synced_end, store_ms, entry.born_ms, tag_hash, head_bytes, system_bytes
                    ),
                    head,
                    system,
                ))  # fmt: skip
                data += _pack_prefix(size, MAGIC, crc32c(body))
                data += body
                tail += _pack_entry(log_end, size, tag_hash)
                entry.queue_offset = queue_offset
                entry.log_offset = log_end
                entry.store_ms = store_ms
                queue_offset += 1
                log_end += size
                done += 1
        except UNPACKABLE as error:
            self._take_back_call(batch, entries, done)
            raise _refusal(error) from error
        assert queue is not None
        queue.hot += entries[begin:] if begin else entries
        batch.touched[queue] = queue.next_offset = queue_offset
        batch.messages += done
        self.end = batch.end = log_end
        return batch

    def _new_queue(self, topic_id: int, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(topic_id, queue_id)
        self._stem(queue)  # refuses what is no number of 32 bits
        self._queues[topic_id, queue_id] = queue
        return queue

    @staticmethod
    def _stem(queue: ConsumeQueue) -> bytes:
        queue.stem, queue.last_stem = (
            STEM.pack(VERSION, MESSAGE, flags, EPOCH, queue.topic_id, queue.queue_id) for flags in (FLAG_MORE, 0)
        )
        return queue.stem

    def _new_batch(self) -> Batch:
        start = self._segment_end - self._segment_bytes
        batch = self.batch = Batch(self.end)
        batch.begin_run(Run(start, self.end - start))
        return batch

    def _roll(self, batch: Batch, log_end: int, size: int, store_ms: int, synced_end: int) -> int:
        """Fill the file and go on in the next one; returns its start."""
        self.check_size(size)
        batch.runs[-1].seals = True
        rest = self._segment_end - log_end
        if rest:
            batch.data += pack_padding(log_end, rest, epoch=EPOCH, synced_offset=synced_end, store_ms=store_ms)
        start = self._segment_end
        self._segment_end += self._segment_bytes
        batch.begin_run(Run(start, 0))
        return start

    # -- records of any kind ------------------------------------------------------------------------------------------

    def pack_state(self, payload: bytes, store_ms: int, synced_end: int) -> Batch:
        """Place and pack one opaque record."""
        self.check_size(HEADER_BYTES + len(payload))
        batch = self.batch or self._new_batch()
        self._put(batch, STATE, payload, store_ms=store_ms, synced_end=synced_end)
        batch.states += 1
        return batch

    def pack_mixed(
        self, entries: Sequence[Append], timers: Sequence[TimerAppend], ended: Sequence[int], state: bytes,
        store_ms: int, synced_end: int, blocks: Sequence[AppendBlock] = (),
    ) -> Batch:  # fmt: skip
        """Blocks of messages, messages, timers, the end of timers, state, in this order in the log; all or none.
        Behind blocks something else must come. Raises BadRequest, BodyTooLarge.
        """
        batch = self.batch or self._new_batch()
        left = len(blocks) + len(entries) + len(timers) + bool(ended) + bool(state)
        first, done = self.end, 0
        starts: dict[ConsumeQueue, int] = {}
        messages, cold_bytes = batch.messages, batch.cold_bytes
        try:
            for block in blocks:
                left -= 1
                self._pack_block(batch, block, store_ms, synced_end, starts, more=left > 0)
            if entries:
                left -= len(entries)
                self.pack(entries, store_ms, synced_end, more=left > 0)
                done = len(entries)
            for timer in timers:
                left -= 1
                self._put_timer(batch, timer, store_ms, synced_end, more=left > 0)
            if ended:
                ids = pack_timer_ids(ended)
                self._put(batch, TIMER_END, ids, store_ms=store_ms, synced_end=synced_end, more=bool(state))
            if state:
                self._put(batch, STATE, state, store_ms=store_ms, synced_end=synced_end)
        except UNPACKABLE as error:
            self.end = batch.end = first
            batch.messages, batch.cold_bytes = messages, cold_bytes
            for queue, offset in starts.items():
                queue.take_back(offset)
                batch.touched[queue] = offset
            self._take_back_call(batch, entries, done)
            for timer in timers:
                timer.log_offset = timer.store_ms = -1
            raise _refusal(error) from error
        batch.timers += len(timers) + bool(ended)
        if timers or ended:
            batch.timer_changes.append((timers, tuple(ended)))
        batch.states += bool(state)
        return batch

    def _pack_block(
        self, batch: Batch, block: AppendBlock, store_ms: int, synced_end: int, starts: dict[ConsumeQueue, int], *,
        more: bool,
    ) -> None:  # fmt: skip
        """Place and pack the messages of a block; `starts` gets the offsets that its queues had before. As hot as
        `pack`: a block has thousands.
        """
        self._check_block(block, more=more)
        data, at = block.data, block.start
        log_end = self.end
        current = -1
        queue: ConsumeQueue | None = None
        queue_offset = 0
        stem, tail = b"", bytearray()
        packed = batch.data
        for queue_id, tag_hash, born_ms, head_bytes, system_bytes in zip(
            block.queue_ids, block.tag_hashes, block.born_ms, block.head_bytes, block.system_bytes, strict=True
        ):
            if queue_id != current:
                if queue is not None:
                    self._end_cold_run(batch, queue, queue_offset)
                current = queue_id
                queue = self._queues.get((block.topic_id, queue_id)) or self._new_queue(block.topic_id, queue_id)
                queue_offset = queue.next_offset
                starts.setdefault(queue, queue_offset)
                stem = queue.stem or self._stem(queue)
                tail = queue.tail
            end = at + head_bytes + system_bytes
            size = HEADER_BYTES + end - at
            if log_end + size > self._segment_end:
                log_end = self._roll(batch, log_end, size, store_ms, synced_end)
                packed = batch.data
            body = b"".join((
                stem,
                _pack_place(
                    queue_offset, log_end, synced_end, store_ms, born_ms, tag_hash, head_bytes, system_bytes
                ),
                data[at:end],
            ))  # fmt: skip
            packed += _pack_prefix(size, MAGIC, crc32c(body))
            packed += body
            tail += _pack_entry(log_end, size, tag_hash)
            queue_offset += 1
            log_end += size
            at = end
        assert queue is not None
        self._end_cold_run(batch, queue, queue_offset)
        batch.messages += len(block)
        batch.cold_bytes += len(data) - block.start + HEADER_BYTES * len(block)
        self.end = batch.end = log_end

    def _check_block(self, block: AppendBlock, *, more: bool) -> None:
        """What could not be packed is refused before anything of the block is."""
        assert more, "a block of messages is never the last of its call: its end or a state record follows"
        sizes = block.sizes()
        if not sizes or sum(sizes) != len(block.data) - block.start:
            raise BadRequest(
                f"{block!r}: the sizes of its messages add up to {sum(sizes)}, not to {len(block.data) - block.start}"
            )
        self.check_size(HEADER_BYTES + max(sizes))

    @staticmethod
    def _end_cold_run(batch: Batch, queue: ConsumeQueue, queue_offset: int) -> None:
        queue.go_on_cold(queue_offset)
        batch.touched[queue] = queue.next_offset = queue_offset

    def _put(
        self, batch: Batch, kind: int, head: bytes, system: bytes = b"", *, store_ms: int, synced_end: int,
        more: bool = False, flags: int = 0, topic_id: int = 0, queue_id: int = 0, queue_offset: int = 0,
        born_ms: int | None = None, tag_hash: int = 0,
    ) -> int:  # fmt: skip
        """Pack one record; returns its place."""
        size = HEADER_BYTES + len(head) + len(system)
        place = self.end
        if place + size > self._segment_end:
            place = self._roll(batch, place, size, store_ms, synced_end)
        rest = REST.pack(
            VERSION, kind, flags | FLAG_MORE if more else flags, EPOCH, topic_id, queue_id, queue_offset, place,
            synced_end, store_ms, store_ms if born_ms is None else born_ms, tag_hash, len(head), len(system),
        )  # fmt: skip
        data = batch.data  # not joined first: a block of staged rows has a mebibyte
        data += PREFIX.pack(size, MAGIC, crc32c(system, crc32c(head, crc32c(rest))))
        data += rest
        data += head
        data += system
        self.end = batch.end = place + size
        return place

    def _put_timer(self, batch: Batch, timer: TimerAppend, store_ms: int, synced_end: int, *, more: bool) -> None:
        if not 0 <= timer.kind <= TIMER_KIND_MAX:
            raise BadRequest(f"a timer's kind is {timer.kind}, it must be 0..{TIMER_KIND_MAX}")
        timer.log_offset = self._put(
            batch, TIMER, timer.head, timer.system, more=more, flags=timer_flags(timer.kind), topic_id=timer.topic_id,
            queue_id=timer.queue_id, queue_offset=unsigned(timer.tag_hash), store_ms=store_ms, synced_end=synced_end,
            born_ms=timer.born_ms, tag_hash=timer.due_ms,
        )  # fmt: skip
        timer.store_ms = store_ms

    def check_size(self, size: int) -> None:
        """Raise BodyTooLarge for a record that no file of the log can hold."""
        if size > self._segment_bytes:
            raise BodyTooLarge(f"a record of {size} bytes is over the log's file size of {self._segment_bytes} bytes")

    # -- taking back --------------------------------------------------------------------------------------------------

    def _take_back_call(self, batch: Batch, entries: Sequence[Append], done: int) -> None:
        """Undo one call that could be packed up to its message `done`; the log's end is where it was before."""
        for entry in reversed(entries[:done]):
            queue = self._queues[entry.topic_id, entry.queue_id]
            queue.take_back(entry.queue_offset)
            batch.touched[queue] = queue.next_offset
        for entry in entries:
            entry.queue_offset = entry.log_offset = entry.store_ms = -1
        while len(batch.runs) > 1 and batch.runs[-1].start >= self.end:  # files that the call began
            batch.runs.pop()
        run = batch.runs[-1]
        run.seals = False
        batch.data = run.data
        del run.data[self.end - run.start - run.position :]
        self._segment_end = run.start + self._segment_bytes
        if not batch.bytes:
            self.batch = None

    def take_back(self, batch: Batch) -> list[Batch]:
        """Nothing of `batch` is in the log: free its places and those behind it. Returns the groups that had them."""
        taken = [batch] if self.batch is None else [batch, self.batch]
        self.batch = None
        for group in taken:
            for queue in group.touched:
                queue.take_back(queue.max_offset)
        self.end = batch.start
        self._segment_end = batch.runs[0].start + self._segment_bytes
        return taken


def _refusal(error: Exception) -> BadRequest:
    if isinstance(error, BadRequest):
        return error
    return BadRequest(f"a record does not fit the frame's fields: {error}")
