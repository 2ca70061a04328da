"""Gives each record its place in the log and its queue, and packs it into the group that the writer gets next.

`pack` is the hot path: under a microsecond per message beside the sender's own work, most of it four calls of C (the
place, the join, the checksum, the prefix). Work that neighbours in one queue share is done once, and no helper is
called per message. `pack_mixed` packs everything else: other records one by one, and blocks of messages (`AppendBlock`)
as bytes, without an object per message.

A call that cannot be packed is taken back immediately, and so is a group that found the disk full: its places are free.
On the loop only.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise, repeat
from operator import add

from crc32c import crc32c

from evenq.errors import BadRequest, BodyTooLarge
from evenq.store.log.commit_log import LogRun
from evenq.store.log.consume_queue import ENTRY, ConsumeQueue
from evenq.store.log.messages import Append, AppendBlock, TimerAppend
from evenq.store.log.record import (
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
    TimerFields,
    pack_padding,
    pack_timer_ids,
)
from evenq.store.log.segment import segment_of
from evenq.store.log.writer import Touched, WriteBatch

LARGE_BYTES = 64 << 10
"""A record's part of this size is added to the group without a copy."""
UNPACKABLE = (struct.error, TypeError, BadRequest)

_pack_prefix = PREFIX.pack
_pack_place = PLACE.pack
_pack_entry = ENTRY.pack


class Packer:
    """The places after the log's end, and the group that gathers there."""

    def __init__(
        self, queues: dict[tuple[int, int], ConsumeQueue], *, segment_bytes: int, end: int, epoch: int = 1
    ) -> None:
        """`epoch`: of the leader that writes, for every header; 1 if the log has one copy."""
        self._queues = queues
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self.end = end
        """First log offset without a record."""
        start, _ = segment_of(end, segment_bytes)
        self._segment_end = start + segment_bytes
        self.batch: WriteBatch | None = None
        """The group that is packed and not yet passed to the writer."""

    def take(self) -> WriteBatch | None:
        """Returns the group; what follows is packed into the next one."""
        batch, self.batch = self.batch, None
        return batch

    def pack(  # noqa: PLR0915  # calls cost
        self, entries: Sequence[Append], store_ms: int, synced_end: int, *, more: bool = False
    ) -> WriteBatch:
        """Packs a call's messages, all or none; `more`: its further records follow. Raises BadRequest, BodyTooLarge."""
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
                    if queue is not None:  # the run ends: its messages are the newest of their queue
                        queue.hot += entries[begin:done]
                        batch.touched[queue] = queue.next_offset = queue_offset
                        begin = done
                    topic_id = entry.topic_id
                    queue_id = entry.queue_id
                    queue = self._queues.get((topic_id, queue_id)) or self._new_queue(topic_id, queue_id)
                    stem = queue.stem or self._stem(queue)
                    # All records of a call but the last have FLAG_MORE: recovery takes a call whole or not at all.
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
                place = _pack_place(
                    queue_offset, log_end, synced_end, store_ms, entry.born_ms, tag_hash, head_bytes, system_bytes
                )
                body = b"".join((stem, place, head, system))
                data += _pack_prefix(size, MAGIC, crc32c(body))
                data += body
                tail += _pack_entry(log_end, size, tag_hash)
                # The caller's object is the message that hot reads return: there is no copy of it.
                entry.queue_offset = queue_offset
                entry.log_offset = log_end
                entry.store_ms = store_ms
                queue_offset += 1
                log_end += size
                done += 1
        # Numbers out of range are found by packing them: checking each field of each message first would cost more.
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
        self._stem(queue)  # refuses ids that are not numbers of 32 bits
        self._queues[topic_id, queue_id] = queue
        return queue

    def _stem(self, queue: ConsumeQueue) -> bytes:
        queue.stem, queue.last_stem = (
            STEM.pack(VERSION, MESSAGE, flags, self._epoch, queue.topic_id, queue.queue_id) for flags in (FLAG_MORE, 0)
        )
        return queue.stem

    def _new_batch(self) -> WriteBatch:
        start = self._segment_end - self._segment_bytes
        batch = self.batch = WriteBatch(self.end)
        batch.begin_run(LogRun(start, self.end - start))
        return batch

    def _roll(self, batch: WriteBatch, log_end: int, size: int, store_ms: int, synced_end: int) -> int:
        """Fills the file and continues in the next one; returns its start."""
        # Here, since a record that is too large for any file never fits the rest of one.
        self.check_size(size)
        batch.runs[-1].seals = True
        rest = self._segment_end - log_end
        if rest:
            batch.data += pack_padding(log_end, rest, epoch=self._epoch, synced_offset=synced_end, store_ms=store_ms)
        start = self._segment_end
        self._segment_end += self._segment_bytes
        batch.begin_run(LogRun(start, 0))
        return start

    def pack_state(self, payload: bytes, store_ms: int, synced_end: int) -> WriteBatch:
        self.check_size(HEADER_BYTES + len(payload))
        batch = self.batch or self._new_batch()
        self._put(batch, STATE, payload, store_ms=store_ms, synced_end=synced_end)
        batch.states += 1
        return batch

    def pack_mixed(
        self,
        entries: Sequence[Append],
        timers: Sequence[TimerAppend],
        ended: Sequence[int],
        state: bytes,
        store_ms: int,
        synced_end: int,
        blocks: Sequence[AppendBlock] = (),
    ) -> WriteBatch:
        """Packs blocks of messages, messages, timers, the end of timers, state, in this order in the log; all or none.
        Something must follow blocks. Raises BadRequest, BodyTooLarge.
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
            # First the messages, which have the places after those of the blocks.
            self._take_back_call(batch, entries, done)
            for queue, offset in starts.items():
                queue.take_back(offset)
                batch.touched[queue] = offset
            for timer in timers:
                timer.log_offset = timer.store_ms = -1
            raise _refusal(error) from error
        batch.timers += len(timers) + bool(ended)
        if timers or ended:
            batch.timer_changes.append((timers, tuple(ended)))
        batch.states += bool(state)
        return batch

    def _pack_block(
        self,
        batch: WriteBatch,
        block: AppendBlock,
        store_ms: int,
        synced_end: int,
        starts: dict[ConsumeQueue, int],
        *,
        more: bool,
    ) -> None:
        """Places and packs a block, on a hot path like `pack`; `starts` gets the previous offsets of its queues."""
        # First: a block that failed in its middle would have to be removed from columns, runs and files.
        self._check_block(block, more=more)
        at = block.start
        for first, last in _runs(block.queue_ids):
            queue_id = block.queue_ids[first]
            queue = self._queues.get((block.topic_id, queue_id)) or self._new_queue(block.topic_id, queue_id)
            starts.setdefault(queue, queue.next_offset)
            while first < last:
                at, first = self._pack_run(batch, block, queue, first, last, at, store_ms, synced_end)
        batch.messages += len(block)
        batch.cold_bytes += len(block.data) - block.start + HEADER_BYTES * len(block)

    def _pack_run(
        self,
        batch: WriteBatch,
        block: AppendBlock,
        queue: ConsumeQueue,
        first: int,
        last: int,
        at: int,
        store_ms: int,
        synced_end: int,
    ) -> tuple[int, int]:
        """Packs messages `first` to `last` of a block by columns: neighbours in one queue whose bytes begin at `at`, as
        many as the file takes. Returns the place and the message at which to continue.
        """
        heads, systems = block.head_bytes[first:last], block.system_bytes[first:last]
        places = list(accumulate(map(add, heads, systems), initial=at))
        offsets = [self.end - at + position + HEADER_BYTES * row for row, position in enumerate(places)]
        if offsets[-1] > self._segment_end:
            last = first + bisect_right(offsets, self._segment_end) - 1
            if last == first:
                self.end = batch.end = self._roll(batch, self.end, offsets[1] - self.end, store_ms, synced_end)
                return at, first
        count = last - first
        tags, end, log_end = block.tag_hashes[first:last], places[count], offsets[count]
        del places[count + 1 :], offsets[count:]
        sizes = [HEADER_BYTES + size for size in map(add, heads, systems)][:count]
        stem = queue.stem or self._stem(queue)
        queue_offset = queue.next_offset
        fields = map(
            _pack_place,
            range(queue_offset, queue_offset + count),
            offsets,
            repeat(synced_end),
            repeat(store_ms),
            block.born_ms[first:last],
            tags,
            heads,
            systems,
        )
        rests = [stem + packed for packed in fields]
        data = memoryview(block.data)
        messages = [data[start:stop] for start, stop in pairwise(places)]
        parts: list[bytes | memoryview] = [b""] * (3 * count)
        parts[::3] = map(_pack_prefix, sizes, repeat(MAGIC), map(crc32c, messages, map(crc32c, rests)))
        parts[1::3] = rests
        parts[2::3] = messages
        queue.tail += b"".join(map(_pack_entry, offsets, sizes, tags))
        batch.add(b"".join(parts))
        # Blocks are read from the page cache (decision 46), and memory must have the end of a queue without a gap.
        queue.go_on_cold(queue_offset + count)
        batch.touched[queue] = queue.next_offset = queue_offset + count
        self.end = batch.end = log_end
        return end, last

    def _check_block(self, block: AppendBlock, *, more: bool) -> None:
        """Refuses a block that could not be packed, before anything of it is."""
        assert more, "a block of messages is never the last of its call: its end or a state record follows"
        sizes = block.sizes()
        if not sizes or sum(sizes) != len(block.data) - block.start:
            raise BadRequest(
                f"{block!r}: the sizes of its messages add up to {sum(sizes)}, not to {len(block.data) - block.start}"
            )
        self.check_size(HEADER_BYTES + max(sizes))

    def _put(
        self,
        batch: WriteBatch,
        kind: int,
        head: bytes,
        system: bytes = b"",
        *,
        store_ms: int,
        synced_end: int,
        more: bool = False,
        flags: int = 0,
        topic_id: int = 0,
        queue_id: int = 0,
        queue_offset: int = 0,
        born_ms: int | None = None,
        tag_hash: int = 0,
    ) -> int:
        """Packs one record; returns its place."""
        size = HEADER_BYTES + len(head) + len(system)
        log_offset = self.end
        if log_offset + size > self._segment_end:
            log_offset = self._roll(batch, log_offset, size, store_ms, synced_end)
        rest = REST.pack(
            VERSION,
            kind,
            flags | FLAG_MORE if more else flags,
            self._epoch,
            topic_id,
            queue_id,
            queue_offset,
            log_offset,
            synced_end,
            store_ms,
            store_ms if born_ms is None else born_ms,
            tag_hash,
            len(head),
            len(system),
        )
        data = batch.data  # not joined first: a block of staged rows has a mebibyte
        data += PREFIX.pack(size, MAGIC, crc32c(system, crc32c(head, crc32c(rest))))
        data += rest
        data += head
        if len(system) < LARGE_BYTES:
            data += system
        else:
            batch.add(system)
        self.end = batch.end = log_offset + size
        return log_offset

    def _put_timer(self, batch: WriteBatch, timer: TimerAppend, store_ms: int, synced_end: int, *, more: bool) -> None:
        if not 0 <= timer.kind <= TIMER_KIND_MAX:
            raise BadRequest(f"a timer's kind is {timer.kind}, it must be 0..{TIMER_KIND_MAX}")
        fields = TimerFields(timer.due_ms, timer.tag_hash, timer.kind)
        timer.log_offset = self._put(
            batch,
            TIMER,
            timer.head,
            timer.system,
            more=more,
            flags=fields.flags,
            topic_id=timer.topic_id,
            queue_id=timer.queue_id,
            queue_offset=fields.queue_offset_field,
            store_ms=store_ms,
            synced_end=synced_end,
            born_ms=timer.born_ms,
            tag_hash=fields.tag_hash_field,
        )
        timer.store_ms = store_ms

    def check_size(self, size: int) -> None:
        """Raises BodyTooLarge for a record that no file of the log can hold."""
        if size > self._segment_bytes:
            raise BodyTooLarge(f"a record of {size} bytes exceeds the log's file size of {self._segment_bytes} bytes")

    def _take_back_call(self, batch: WriteBatch, entries: Sequence[Append], done: int) -> None:
        """Undoes one call that was packed up to its message `done`; `end` is already where it was before."""
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
        run.cut(self.end - run.start - run.position)
        batch.data = run.data
        self._segment_end = run.start + self._segment_bytes
        if not batch.bytes:
            self.batch = None

    def take_back(self, batch: WriteBatch, before: Iterable[WriteBatch] = ()) -> list[WriteBatch]:
        """Frees the places of `batch`, of which nothing is in the log, and of later groups; returns these groups.
        `before`: groups in the log that are not consumable yet, in order; they keep their places.
        """
        ends: Touched = {}
        for group in before:
            ends.update(group.touched)
        taken = [batch] if self.batch is None else [batch, self.batch]
        self.batch = None
        for group in taken:
            for queue in group.touched:
                queue.take_back(ends.get(queue, queue.max_offset))
        self.end = batch.start
        self._segment_end = batch.runs[0].start + self._segment_bytes
        return taken


def _runs(queue_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields first and last, exclusive, of neighbours with the same queue."""
    if queue_ids.count(queue_ids[0]) == len(queue_ids):
        yield 0, len(queue_ids)
        return
    first = 0
    for _, same in groupby(queue_ids):
        last = first + sum(1 for _ in same)
        yield first, last
        first = last


def _refusal(error: Exception) -> BadRequest:
    if isinstance(error, BadRequest):
        return error
    return BadRequest(f"a record does not fit the frame's fields: {error}")
