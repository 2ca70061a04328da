"""Messages for one receive: takes retries and fresh messages of a group out of the store, as encoded frames.

Called by `rpc.delivery.receive` and by the mover of dead letters. `core.delivery.progress` decides; this module
reads the store, writes the journal and encodes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import count as count_up

from evenq.errors import GroupNotFound, StoreCorrupted, TopicNotFound
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq.store import ReadResult, StoredMessage
from evenq_broker.core.dead_letters.letter import Reason
from evenq_broker.core.delivery.filters import EVERYTHING, TURNS_MIN, MessageFilter
from evenq_broker.core.delivery.message_groups import admit, rebuild
from evenq_broker.core.delivery.progress import READY, QueueProgress
from evenq_broker.core.polls.poll_table import ANY
from evenq_broker.core.sending.body_digest import for_node
from evenq_broker.core.state.frames import delivery_frame, delivery_frames
from evenq_broker.core.state.records import Acked, Delivered, Invisible, Op
from evenq_broker.loops.dead_letters.mover import DeadLetterMover
from evenq_broker.loops.delivery.receive_wish import Batch, ReceiveWish
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import AS_CONFIGURED, GroupStarts
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.stored_messages import message_group_of

log = logging.getLogger(__name__)

_LOOK_AHEAD = 256  # fresh messages of an ordered queue looked at in one receive
_RETRY_TAKE_MAX = 32
_READ_AT = 64  # messages read together to learn their message groups


class MessageTaker:
    """Takes messages for groups."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        starts: GroupStarts,
        sessions: Sessions,
        long_polls: LongPolls,
        lite: Lites,
        dead_letter_mover: DeadLetterMover,
    ) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._starts, self._sessions, self._long_polls = starts, sessions, long_polls
        self._lite, self._dead_letter_mover = lite, dead_letter_mover
        self._turn = 0

    async def pop(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        *,
        queue_id: int,
        queues: Sequence[int] | None = None,
        count: int,
        message_filter: MessageFilter = EVERYTHING,
        invisible_ms: int,
        client_id: str,
        until_ms: int = 0,
        frame_bytes_max: int = 0,
        node: bool = False,
        official: bool = True,
    ) -> Batch | None:
        """Returns up to `count` messages, delivered to `client_id` (empty: they do not depend on a client) for
        `invisible_ms`; None: nothing. Messages that a filter leaves out are passed over in turns with other receives.
        The search behind them lasts until `until_ms` (of `Broker.now_ms`), and for `TURNS_MIN` turns at least. A
        message over `frame_bytes_max` (0 = no limit) becomes a dead letter: its client would request it for ever.
        `node`: the client is that of Node.js. `official`: it is not of this project (RB-46).

        With copies, a receive with time until `until_ms` also takes messages that are not committed yet. It returns
        them once the record of their delivery, which lies behind them in the log, is committed. If that takes longer,
        they are given back.
        """
        wish = ReceiveWish(group, topic, message_filter, client_id, invisible_ms)
        wish.queues, wish.frame_bytes_max, wish.node, wish.official = queues, frame_bytes_max, node, official
        wish.ahead = (
            self._runtime.leadership.attach is not None and queues is None and until_ms > self._runtime.now_ms()
        )
        batch = Batch()
        try:
            for turn in count_up(1):
                now_ms = self._runtime.now_ms()
                for queue in self._ledger.progress.expire(now_ms):
                    self._long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
                # A delivery that lasts while its client lives has no timer but the maximum (wire contract 5.1).
                wish.deadline_ms = now_ms + (self._runtime.settings.renew_max_ms if client_id else invisible_ms)
                await self._look(wish, batch, queue_id, count)
                if batch.frames or not self._more_behind(wish):
                    break
                if now_ms >= until_ms and turn >= TURNS_MIN:
                    self._wake_next(wish, queue_id)
                    break
                await self._runtime.clock.sleep_ms(0)
                self._must_exist(wish)
        # Also when the call is cancelled: messages of a disconnected client must not stay invisible.
        except BaseException:
            self.give_back(batch)
            raise
        if not batch.frames:
            return None
        if not await self._safe(batch, until_ms, client_id):
            self.give_back(batch)
            return None
        if self._runtime.closing:  # while this call waited for the disk; the wait for acks may have ended already
            self.give_back(batch)
            return None
        self._long_polls.sooner(wish.deadline_ms)
        stats = self._runtime.stats.group_topic(group.group_id, topic.topic_id)
        stats.messages_out += len(batch.frames)
        stats.bytes_out += batch.payload_bytes
        for stored_ms in batch.ahead_ms:
            stats.went(stored_ms, self._runtime.clock.now_ms())
        return batch

    async def again(
        self,
        group: GroupConfig,
        topic: TopicConfig,
        held: Sequence[tuple[QueueProgress, int, int]],
        *,
        invisible_ms: int,
        client_id: str,
    ) -> Batch | None:
        """Returns the unfinished deliveries of a batch whose answer was lost, for `invisible_ms`. None: nothing."""
        now_ms = self._runtime.now_ms()
        wish = ReceiveWish(group, topic, EVERYTHING, client_id, invisible_ms)
        wish.deadline_ms = now_ms + (self._runtime.settings.renew_max_ms if client_id else invisible_ms)
        progress = self._ledger.progress
        batch = Batch()
        batch.held.extend(
            (queue, offset, number)
            for queue, offset, number in held
            # The group or the topic may have been deleted and created anew since; its offsets name other messages then.
            if progress.queue(queue.group_id, queue.topic_id, queue.queue_id) is queue
            and progress.hold_on(queue, offset, number, now_ms=now_ms, deadline_ms=wish.deadline_ms)
        )
        try:
            for queue in {id(queue): queue for queue, _, _ in batch.held}.values():
                numbers = {offset: number for one, offset, number in batch.held if one is queue}
                await self._same(queue, numbers, wish, batch)
        except BaseException:
            self.give_back(batch)
            raise
        if not batch.frames:
            return None
        await self._safe(batch)
        self._long_polls.sooner(wish.deadline_ms)
        return batch

    async def _safe(self, batch: Batch, until_ms: int = 0, client_id: str = "") -> bool:
        """With copies: waits until the deliveries are committed (R12), because a deposed leader must not deliver
        finished messages. False: messages taken before their commit are not committed by `until_ms`. An Error gives the
        batch back.
        """
        if self._runtime.leadership.attach is None:
            return True
        try:
            record = self._ledger.journal.safe()
            if record is None:
                return True
            if batch.ahead_ms:
                return await self._long_polls.until_done(record, deadline_ms=until_ms, client_id=client_id)
            await record
        except BaseException:
            self.give_back(batch)
            raise
        return True

    async def _same(self, queue: QueueProgress, numbers: Mapping[int, int], wish: ReceiveWish, batch: Batch) -> None:
        stored = await self._ledger.store.read_at(queue.topic_id, queue.queue_id, list(numbers))
        # The consumer may have ended the delivery, or begun to, by a handle of the first answer.
        messages = [
            message
            for message in stored
            if (entry := queue.pending.get(message.queue_offset)) is not None
            and entry.number == numbers[message.queue_offset]
        ]
        self._ledger.journal.record(self._delivered_op(queue, messages, wish))
        for message in messages:
            entry = queue.pending[message.queue_offset]
            self._frame(queue, message, batch, wish, number=entry.number, attempt=entry.attempt)

    def give_back(self, batch: Batch) -> None:
        """Undoes deliveries that no client received: the messages are ready again immediately."""
        ops: list[Invisible] = []
        for queue, offset, number in batch.held:
            op = self._ledger.progress.give_back(queue, offset, number)
            if op is not None:
                ops.append(op)
        batch.held.clear()
        if ops:
            self._ledger.journal.record(*ops)
            for queue_key in sorted({(op.group_id, op.topic_id, op.queue_id) for op in ops}):
                self._long_polls.ready(*queue_key)

    # ------------------------------------------------------------------------------------------------ queues

    async def _look(self, wish: ReceiveWish, batch: Batch, queue_id: int, count: int) -> None:
        # One turn: every queue once.
        wish.behind.clear()
        known, group_id, topic_id = self._ledger.progress.queue, wish.group.group_id, wish.topic.topic_id
        for looked_at, one in enumerate(self._in_turn(wish, queue_id)):
            queue = known(group_id, topic_id, one) or await self._begun(wish, one)
            if not self._anything_in(queue, wish):
                continue
            await self._take_whole(queue, wish, batch, count)
            if len(batch.frames) >= count or batch.payload_bytes >= self._runtime.settings.receive_bytes_max:
                if wish.queues is not None:
                    self._turn += looked_at  # the next call continues here: messages of earlier queues are taken
                self._wake_next(wish, queue_id)
                return
        if batch.frames and wish.behind:
            self._wake_next(wish, queue_id)

    def _more_behind(self, wish: ReceiveWish) -> bool:
        # This does not wait for a queue that another receive reads: the end of that read wakes a parked poll.
        queue_range = self._ledger.store.queue_range
        return any(
            not queue.reading and queue.next < queue_range(queue.topic_id, queue.queue_id)[1] for queue in wish.behind
        )

    def _must_exist(self, wish: ReceiveWish) -> None:
        if self._catalog.topics.by_id(wish.topic.topic_id) is None:
            raise TopicNotFound(f"topic {wish.topic.name} was deleted")
        if self._catalog.groups.by_id(wish.group.group_id) is None:
            raise GroupNotFound(f"consumer group {wish.group.name} was deleted")

    def _in_turn(self, wish: ReceiveWish, queue_id: int) -> Sequence[int]:
        if queue_id != ANY:
            return [queue_id]
        count = wish.topic.read_queues
        if wish.topic.message_type is MessageType.PRIORITY:
            return range(count - 1, -1, -1)  # one queue for each level, the highest first
        self._turn += 1
        if wish.queues is not None:
            start = self._turn % max(1, len(wish.queues))
            return [*wish.queues[start:], *wish.queues[:start]]
        start = self._turn % count
        return [*range(start, count), *range(start)]

    def _anything_in(self, queue: QueueProgress, wish: ReceiveWish) -> bool:
        """Returns quickly for a queue that has nothing, as most of many queues do."""
        store, topic_id, queue_id = self._ledger.store, queue.topic_id, queue.queue_id
        if queue.ready or queue.next < store.queue_range(topic_id, queue_id)[1]:
            return True
        return wish.ahead and queue.next < store.placed_end(topic_id, queue_id)

    async def _begun(self, wish: ReceiveWish, queue_id: int) -> QueueProgress:
        """Begins the queue at the group's first receive there."""
        group, topic = wish.group, wish.topic
        if wish.queues is None:
            await self._starts.begin(group, topic, self._starts.official if wish.official else AS_CONFIGURED)
            self._must_exist(wish)
        else:
            self._lite.begin(group, topic, [queue_id])
        made = self._ledger.progress.queue(group.group_id, topic.topic_id, queue_id)
        assert made is not None
        return made

    async def _take_whole(self, queue: QueueProgress, wish: ReceiveWish, batch: Batch, count: int) -> None:
        # A damaged record must not block messages of other queues: messages found before it are returned (wire contract
        # 3.9), and a receive that finds nothing else raises the error.
        frames, held = len(batch.frames), len(batch.held)
        try:
            await self._take(queue, wish, batch, count)
        except StoreCorrupted as error:
            if not frames:
                raise
            log.error("a record of topic %s cannot be read: %s", wish.topic.name, error.message)  # noqa: TRY400
            if len(batch.frames) == frames:
                lost = Batch()
                lost.held, batch.held[held:] = batch.held[held:], []
                self.give_back(lost)

    async def _take(self, queue: QueueProgress, wish: ReceiveWish, batch: Batch, count: int) -> None:
        if queue.unkeyed and wish.ordered:
            for one in (queue, *self._ledger.progress.siblings(queue)):
                if one.unkeyed:
                    if one.next > self._ledger.store.queue_range(one.topic_id, one.queue_id)[1]:
                        return  # messages taken ahead cannot be read yet; their commit wakes a poll
                    await self._learn_lanes(one)
        if queue.ready and not self._is_kept(queue, wish):
            await self._take_ready(queue, wish, batch, count)
        if len(batch.frames) < count and not self._is_kept(queue, wish):
            await self._take_fresh(queue, wish, batch, count)

    def _is_kept(self, queue: QueueProgress, wish: ReceiveWish) -> bool:
        """True if a member that owns queues has it (lite topics have no such members)."""
        kept = self._sessions.locking.is_kept
        return wish.queues is None and kept(wish.group.name, wish.topic.name, queue.queue_id, wish.client_id)

    async def _take_ready(self, queue: QueueProgress, wish: ReceiveWish, batch: Batch, count: int) -> None:
        again, dead = self._ledger.progress.take_ready(
            queue,
            min(count - len(batch.frames), _RETRY_TAKE_MAX),
            deadline_ms=wish.deadline_ms,
            client_id=wish.client_id,
            max_attempts=wish.group.max_attempts,
            below=self._ledger.store.queue_range(queue.topic_id, queue.queue_id)[1],  # the rest waits for its commit
        )
        for offset in dead:
            self._dead_letter_mover.add(queue, offset, queue.pending[offset])
        if not again:
            return
        for offset in again:
            # Before the read, which may fail or be cancelled: then only deliveries noted here are given back.
            batch.held.append((queue, offset, queue.pending[offset].number))
        stored = await self._ledger.store.read_at(queue.topic_id, queue.queue_id, again)
        present = {message.queue_offset for message in stored}
        gone = [offset for offset in again if offset not in present]
        for offset in gone:  # fallen out of retention
            self._ledger.progress.finish(queue, offset)
        # An older handle may have acknowledged some while the disk was read.
        live = [message for message in stored if message.queue_offset in queue.pending]
        ops: list[Op] = [Acked(queue.group_id, queue.topic_id, queue.queue_id, offset) for offset in gone]
        self._ledger.journal.record(*ops, self._delivered_op(queue, live, wish))
        self._runtime.stats.group_topic(queue.group_id, queue.topic_id).redeliveries += len(live)
        for message in live:
            entry = queue.pending[message.queue_offset]
            self._frame(queue, message, batch, wish, number=entry.number, attempt=entry.attempt)

    async def _take_fresh(self, queue: QueueProgress, wish: ReceiveWish, batch: Batch, count: int) -> None:
        low, high = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)
        start = max(queue.next, low)
        room = self._ledger.progress.room(queue)
        most = min(count - len(batch.frames), room)
        if start >= high and wish.ahead and most > 0:
            self._take_ahead(queue, start, wish, batch, most)
            return
        if start >= high or room <= 0:
            return
        if queue.reading:
            wish.behind.append(queue)
            return
        ordered = wish.ordered
        look = wish.message_filter.look(_LOOK_AHEAD if ordered else most)
        read = self._ledger.store.read_hot(
            queue.topic_id,
            queue.queue_id,
            start,
            count_max=look,
            bytes_max=self._runtime.settings.receive_bytes_max,
            tag_hashes=wish.message_filter.tag_hashes,
        )
        before = queue.next
        if read is None:
            # One read of a queue for a group at a time: two would find and deliver the same messages.
            queue.reading = True
            try:
                read = await self._ledger.store.read(
                    queue.topic_id,
                    queue.queue_id,
                    start,
                    count_max=look,
                    bytes_max=self._runtime.settings.receive_bytes_max,
                    tag_hashes=wish.message_filter.tag_hashes,
                )
            finally:
                queue.reading = False
                self._long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
            # A reset or a commit moved the group meanwhile; the messages read may lie before its position.
            if queue.next != before:
                wish.behind.append(queue)
                return
        if wish.message_filter is not EVERYTHING:
            read = wish.message_filter.sift(read, look if ordered else most)
        messages = self._hand_out(queue, read, wish, batch, most)
        stats = self._runtime.stats.group_topic(queue.group_id, queue.topic_id)
        if wish.message_filter is not EVERYTHING:
            if queue.next < high:
                wish.behind.append(queue)
            stats.filtered += queue.next - start - len(read.messages)
        stats.went([message.store_ms for message in messages], self._runtime.clock.now_ms())

    def _take_ahead(self, queue: QueueProgress, start: int, wish: ReceiveWish, batch: Batch, most: int) -> None:
        """Takes messages before their commit, up to the first that the filter excludes: it is not finished yet."""
        messages = wish.message_filter.leading(
            self._ledger.store.read_ahead(
                queue.topic_id,
                queue.queue_id,
                start,
                count_max=_LOOK_AHEAD if wish.ordered else most,
                bytes_max=self._runtime.settings.receive_bytes_max,
            )
        )
        if messages and not queue.reading:
            read = ReadResult(messages, messages[-1].queue_offset + 1, start, start)
            taken = self._hand_out(queue, read, wish, batch, most)
            batch.ahead_ms.append([message.store_ms for message in taken])

    def _hand_out(
        self, queue: QueueProgress, read: ReadResult, wish: ReceiveWish, batch: Batch, most: int
    ) -> list[StoredMessage]:
        """Delivers fresh messages that were read from `queue.next`, and records that; returns those to send now."""
        # No await from here to the record: deliveries and journal must change in one step.
        messages, before = read.messages, queue.next
        if wish.ordered:
            messages, waiting = admit(
                self._ledger.progress,
                queue,
                messages,
                read.next_offset,
                most,
                wish.deadline_ms,
                wish.client_id,
                message_group_of=message_group_of,
            )
            # Recorded as ready, because the journal has no lanes: `rebuild` blocks them again after a restart.
            if waiting:
                self._ledger.journal.record(
                    self._ledger.progress.delivered_op(
                        queue, waiting, deadline_ms=READY, client_id="", next_offset=before
                    )
                )
        else:
            self._ledger.progress.deliver(
                queue,
                [message.queue_offset for message in messages],
                read.next_offset,
                deadline_ms=wish.deadline_ms,
                client_id=wish.client_id,
            )
        self._ledger.journal.record(self._delivered_op(queue, messages, wish))
        self._first_frames(queue, messages, batch, wish)
        return messages

    def _delivered_op(self, queue: QueueProgress, messages: list[StoredMessage], wish: ReceiveWish) -> Delivered:
        offsets = [message.queue_offset for message in messages]
        return self._ledger.progress.delivered_op(
            queue, offsets, deadline_ms=wish.deadline_ms, client_id=wish.client_id
        )

    def _first_frames(
        self, queue: QueueProgress, messages: list[StoredMessage], batch: Batch, wish: ReceiveWish
    ) -> None:
        """Adds frames of first deliveries."""
        number = queue.first
        offsets = [message.queue_offset for message in messages]
        handles = self._ledger.handles.encoded_all(
            queue.group_id, queue.topic_id, queue.queue_id, offsets, number, wish.deadline_ms
        )
        sent = for_node(messages) if wish.node else messages
        frames, size = delivery_frames(sent, handles, 1, wish.invisible_ms)
        if wish.frame_bytes_max and max(map(len, frames), default=0) > wish.frame_bytes_max:
            frames = [
                frame
                for offset, frame in zip(offsets, frames, strict=True)
                if not self._is_too_large(queue, offset, frame, wish)
            ]
        batch.frames += frames
        batch.payload_bytes += size
        batch.held += [(queue, offset, number) for offset in offsets]

    def _frame(
        self,
        queue: QueueProgress,
        message: StoredMessage,
        batch: Batch,
        wish: ReceiveWish,
        *,
        number: int,
        attempt: int,
    ) -> None:
        handle = self._ledger.handles.encoded(
            queue.group_id, queue.topic_id, queue.queue_id, message.queue_offset, number, wish.deadline_ms
        )
        sent = for_node((message,))[0] if wish.node else message
        frame, size = delivery_frame(sent, handle, attempt, wish.invisible_ms)
        if self._is_too_large(queue, message.queue_offset, frame, wish):
            return
        batch.frames.append(frame)
        batch.payload_bytes += size

    def _is_too_large(self, queue: QueueProgress, offset: int, frame: bytes, wish: ReceiveWish) -> bool:
        """True if the client's SDK cannot receive the message; then it becomes a dead letter."""
        if not wish.frame_bytes_max or len(frame) <= wish.frame_bytes_max:
            return False
        self._dead_letter_mover.add(queue, offset, queue.pending[offset], Reason.TOO_LARGE)
        wish.behind.append(queue)  # messages behind it were not looked for
        log.warning(
            "group %s: the message at offset %d of topic %s, queue %d takes %d bytes, the SDK of its client receives "
            "at most %d: it becomes a dead letter; lower body_bytes_max, or read it with another SDK",
            wish.group.name,
            offset,
            wish.topic.name,
            queue.queue_id,
            len(frame),
            wish.frame_bytes_max,
        )
        return True

    def _wake_next(self, wish: ReceiveWish, queue_id: int) -> None:
        # The batch is full, so there may be more: the next waiting poll of the group is woken.
        group_id, topic_id = wish.group.group_id, wish.topic.topic_id
        if wish.queues is None:
            self._long_polls.ready(group_id, topic_id, max(queue_id, 0))
            return
        if self._long_polls.idle:
            return
        for one in wish.queues:
            queue = self._ledger.progress.queue(group_id, topic_id, one)
            if queue is not None and self._anything_in(queue, wish):
                self._long_polls.ready(group_id, topic_id, one)

    async def _learn_lanes(self, queue: QueueProgress) -> None:
        offsets = sorted(queue.pending)
        message_groups: dict[int, str] = {}
        for at in range(0, len(offsets), _READ_AT):  # together they would be in memory with their bodies
            for message in await self._ledger.store.read_at(
                queue.topic_id, queue.queue_id, offsets[at : at + _READ_AT]
            ):
                message_groups[message.queue_offset] = message_group_of(message.system)
        # Two receives may read at the same time after a restart. The second one must not rebuild: the first one has
        # lined up messages since that the second one did not read. They would be in no lane, blocked for good.
        if queue.unkeyed:
            rebuild(self._ledger.progress, queue, message_groups)
