"""Who has finished what: per (group, topic, queue) the committed offset and every unfinished delivery.

Called by the receive path, the pull path and journal replay; pure: time comes in as ms since the epoch
(`Broker.now_ms`). Always true of one queue: an offset below `next` is either in `pending` (being worked on, or waiting
for its next delivery) or finished; `committed` is the smallest unfinished offset. A delivery ends by ack, by its
deadline (exact to the ms), by being given back, or with its client. Retries come before fresh messages, in ascending
offset. Wire contract 5.1, 5.2; replication D3, D4.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from evenq_broker.core.delivery.deadlines import DeliveryDeadlines
from evenq_broker.core.delivery.held import Held
from evenq_broker.core.delivery.invariants import check
from evenq_broker.core.delivery.queue_progress import (
    BLOCKED,
    LITE_QUEUES_FROM,
    NO_END,
    NUMBERS,
    READY,
    Pending,
    QueueProgress,
    SettleStatus,
)
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, Op

__all__ = ["BLOCKED", "READY", "Pending", "Progress", "QueueProgress", "SettleStatus"]

_CHUNK = 30_000  # deliveries in one snapshot operation; its count is 16 bits wide


class Progress:
    """All groups on all queues of this broker."""

    __slots__ = ("_deadlines", "_held", "_queues", "_together", "inflight_max", "on_commit", "on_over", "on_unblocked")

    def __init__(self, *, inflight_max: int = 20_000) -> None:
        self.inflight_max = inflight_max
        self._queues: dict[tuple[int, int, int], QueueProgress] = {}
        self._together: dict[tuple[int, int], list[QueueProgress]] = {}
        self.on_unblocked: Callable[[QueueProgress], None] | None = None
        """Called with a queue of an ordered group that has something to deliver because of another queue."""
        self.on_over: Callable[[QueueProgress, int, Pending], int] | None = None
        """Asked when a delivery ends unfinished: until when its message waits for the next one; 0 = it is ready."""
        self.on_commit: Callable[[int, int, int, int], None] | None = None
        """Called at each change by `commit`: group, topic, queue, offset. For a watcher; None: there is none."""
        self._held = Held(self._queues)
        self._deadlines = DeliveryDeadlines(self._queues)

    # ------------------------------------------------------------------------------------------------ reading

    def queue(self, group_id: int, topic_id: int, queue_id: int) -> QueueProgress | None:
        """The group's state on one queue; None before its first receive or commit there."""
        return self._queues.get((group_id, topic_id, queue_id))

    def queues(self) -> Iterator[QueueProgress]:
        """Every group on every queue it ever read."""
        return iter(list(self._queues.values()))

    def siblings(self, queue: QueueProgress) -> list[QueueProgress]:
        """The group's state on the topic's other queues."""
        if queue.queue_id >= LITE_QUEUES_FROM:
            return []
        return [one for one in self._together[queue.group_id, queue.topic_id] if one is not queue]

    def committed(self, group_id: int, topic_id: int, queue_id: int) -> int | None:
        """The smallest unfinished offset; None if the group never read or committed there."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return None if queue is None else queue.committed

    def inflight(
        self, group_id: int, topic_id: int, queue_id: int, min_offset: int = 0, max_offset: int = NO_END
    ) -> int:
        """Messages of the queue's range that were delivered at least once and are not finished."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return 0 if queue is None else queue.inflight(min_offset, max_offset)

    def lag(self, group_id: int, topic_id: int, queue_id: int, min_offset: int, max_offset: int) -> int:
        """Messages of the queue's range that the group has not finished; 0 where it never read."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return 0 if queue is None else queue.lag(min_offset, max_offset)

    def topics_of(self, group_id: int) -> list[int]:
        """Numbers of the topics that the group has progress on, ascending."""
        return sorted({key[1] for key in self._queues if key[0] == group_id})

    def groups_of(self, topic_id: int) -> list[int]:
        """Numbers of the groups that have progress on the topic, ascending."""
        return sorted({key[0] for key in self._queues if key[1] == topic_id})

    def next_deadline(self) -> int | None:
        """When `expire` has something to do, ms since the epoch; may be early, never late."""
        return self._deadlines.next()

    # ------------------------------------------------------------------------------------------------ offsets

    def start(self, group_id: int, topic_id: int, queue_id: int, offset: int) -> Committed | None:
        """Let the group begin at `offset` unless it has begun already. Gives what to record."""
        if (group_id, topic_id, queue_id) in self._queues:
            return None
        self._begin(group_id, topic_id, queue_id, offset)
        return Committed(group_id, topic_id, queue_id, offset)

    def commit(self, group_id: int, topic_id: int, queue_id: int, offset: int, *, allow_backward: bool = False) -> bool:
        """Everything below `offset` is finished. True if that changed something (then record `Committed`).

        Backward is ignored. `allow_backward` is a reset, backward or forward: what was in flight is forgotten, and
        everything from `offset` on is delivered again (D6).
        """
        changed = self._commit(group_id, topic_id, queue_id, offset, allow_backward=allow_backward)
        if changed and self.on_commit is not None:
            self.on_commit(group_id, topic_id, queue_id, offset)
        return changed

    def _commit(self, group_id: int, topic_id: int, queue_id: int, offset: int, *, allow_backward: bool) -> bool:
        queue = self._queues.get((group_id, topic_id, queue_id))
        if queue is None:
            self._begin(group_id, topic_id, queue_id, offset)
            return True
        if allow_backward:
            # Only a message group that has one out here holds messages back in other queues.
            free = [lane for lane, held in queue.lanes.items() if queue.pending[held[0]].deadline_ms != BLOCKED]
            changed = queue.reset(offset)
            for lane in free if changed else ():
                self._unblock_elsewhere(queue, lane)
            return changed
        if offset <= queue.committed:
            return False
        for done in sorted(held for held in queue.pending if held < offset):
            self._finish(queue, done)
        queue.next = max(queue.next, offset)
        queue.advance()
        return True

    def forget_group(self, group_id: int) -> None:
        """The group was deleted."""
        self._drop(lambda key: key[0] == group_id)

    def forget(self, group_id: int, topic_id: int) -> None:
        """The group's subscription of the topic was taken away."""
        self._drop(lambda key: key[:2] == (group_id, topic_id))

    def forget_queue(self, topic_id: int, queue_id: int) -> None:
        """One queue of the topic is no more."""
        self._drop(lambda key: key[1:] == (topic_id, queue_id))

    def forget_topic(self, topic_id: int) -> None:
        """The topic was deleted."""
        self._drop(lambda key: key[1] == topic_id)

    # ------------------------------------------------------------------------------------------------ delivering

    def room(self, queue: QueueProgress) -> int:
        """How many more fresh messages the group may have unfinished on this queue."""
        return self.inflight_max - len(queue.pending)

    def take_ready(
        self,
        queue: QueueProgress,
        count: int,
        *,
        deadline_ms: int,
        client_id: str,
        max_attempts: int,
        below: int = NO_END,
    ) -> tuple[list[int], list[int]]:
        """Up to `count` messages before `below` whose earlier delivery is over, as delivered again; and those that have
        had `max_attempts` deliveries: they are now held until `deadline_ms` for the move to the dead-letter topic.
        """
        again: list[int] = []
        dead: list[int] = []
        while queue.ready and queue.ready[0] < below and len(again) < count:
            offset = heapq.heappop(queue.ready)
            entry = queue.pending.get(offset)
            if entry is None or entry.deadline_ms != READY:
                continue
            entry.number += 1
            entry.deadline_ms = deadline_ms
            entry.client_id = client_id
            entry.waits = False
            if entry.attempt >= max_attempts:
                dead.append(offset)
            else:
                entry.attempt += 1
                again.append(offset)
        if again or dead:
            taken = again + dead
            if client_id:
                self._held.add(client_id, queue, taken)
            self._deadlines.arm(queue, deadline_ms, taken)
        return again, dead

    def deliver(
        self, queue: QueueProgress, offsets: list[int], next_offset: int, *, deadline_ms: int, client_id: str
    ) -> None:
        """Fresh messages, read from `queue.next`, go to a client; the rest below `next_offset` was filtered out."""
        pending, first = queue.pending, queue.first
        for offset in offsets:
            pending[offset] = Pending(first, 1, deadline_ms, client_id)
        queue.next = next_offset
        if offsets:
            if client_id:
                self._held.add(client_id, queue, offsets)
            self._deadlines.arm(queue, deadline_ms, offsets)
        queue.advance()

    def set_aside(self, queue: QueueProgress, offsets: Sequence[int]) -> None:
        """Note messages, ascending, as unfinished without delivering them: they are settled one by one."""
        for offset in offsets:
            queue.pending[offset] = Pending(0, 0, READY, "")
            heapq.heappush(queue.ready, offset)
        if offsets:
            queue.walk.clear()
            queue.committed = min(queue.committed, offsets[0])
            queue.next = max(queue.next, offsets[-1] + 1)

    def hold_on(self, queue: QueueProgress, offset: int, number: int, *, now_ms: int, deadline_ms: int) -> bool:
        """Let a running delivery last until `deadline_ms`, as the same one: its answer got lost. False: it is over."""
        entry = queue.pending.get(offset)
        if entry is None or entry.number != number or entry.deadline_ms <= now_ms:
            return False
        entry.deadline_ms = deadline_ms
        self._deadlines.arm(queue, deadline_ms, [offset])
        return True

    def give_back(self, queue: QueueProgress, offset: int, number: int) -> Invisible | None:
        """A delivery that did not reach its client: the message is ready again and the attempt does not count."""
        entry = queue.pending.get(offset)
        if entry is None or entry.number != number or entry.deadline_ms <= READY:
            return None
        entry.attempt -= 1
        entry.client_id = ""
        self._make_ready(queue, offset, entry)
        return queue.op(offset, entry)

    def release(self, client_id: str, deadline_ms: int) -> list[tuple[QueueProgress, int]]:
        """The client is gone: what only its life held ends at `deadline_ms`. Gives the (queue, offset) concerned."""
        changed = []
        for key, offsets in self._held.pop(client_id):
            queue = self._queues.get(key)
            if queue is None:
                continue
            ending = []
            for offset in offsets:
                entry = queue.pending.get(offset)
                if entry is None or entry.client_id != client_id:
                    continue
                entry.client_id = ""
                if entry.deadline_ms > deadline_ms:
                    entry.deadline_ms = deadline_ms
                    ending.append(offset)
            changed += [(queue, offset) for offset in ending]
            if ending:
                self._deadlines.arm(queue, deadline_ms, ending)
        return changed

    def expire(self, now_ms: int) -> list[QueueProgress]:
        """End the deliveries whose deadline has come. Gives the queues that have something to deliver again."""
        woken: dict[int, QueueProgress] = {}
        for queue, deadline, offsets in self._deadlines.due(now_ms):
            for offset in offsets:
                entry = queue.pending.get(offset)
                if entry is not None and entry.deadline_ms == deadline:
                    until_ms = 0 if self.on_over is None else self.on_over(queue, offset, entry)
                    entry.client_id = ""
                    if until_ms > now_ms:
                        entry.deadline_ms, entry.waits = until_ms, True
                        self._deadlines.arm(queue, until_ms, [offset])
                        continue
                    self._make_ready(queue, offset, entry)
                    woken[id(queue)] = queue
        return list(woken.values())

    # ------------------------------------------------------------------------------------------------ settling

    def ack(
        self, queue: QueueProgress | None, offset: int, number: int, *, expires_ms: int, now_ms: int
    ) -> SettleStatus:
        """Finish one message. An earlier handle of the same delivery is as good as the newest; one of an earlier
        delivery is good until its own time is over (wire contract 5.2). Finishing twice is ALREADY.
        """
        if queue is None or offset >= queue.next:
            return SettleStatus.INVALID
        entry = queue.pending.get(offset)
        if entry is None:
            return SettleStatus.ALREADY
        if number == entry.number:
            if entry.deadline_ms <= now_ms:
                return SettleStatus.INVALID
        elif not queue.first <= number <= entry.number or expires_ms <= now_ms:
            return SettleStatus.INVALID
        self._finish(queue, offset)
        if offset == queue.committed:
            queue.advance()
        return SettleStatus.DONE

    def finish(self, queue: QueueProgress, offset: int) -> bool:
        """Finish one message whatever its state: it is in the dead-letter topic, or gone from the store."""
        if offset not in queue.pending:
            return False
        self._finish(queue, offset)
        queue.advance()
        return True

    def change_invisible(
        self,
        queue: QueueProgress | None,
        offset: int,
        number: int,
        *,
        now_ms: int,
        deadline_ms: int,
        uncounted: bool = False,
        given_back: bool = False,
    ) -> SettleStatus:
        """Let the present delivery end at `deadline_ms` (now = a nack). Only its own handles may do that.

        `uncounted`: the attempt does not count (suspend). `given_back`: its consumer failed. Of both, what is left of
        the time is a wait for the next one. The delivery no longer depends on its client's life.
        """
        if queue is None or offset >= queue.next:
            return SettleStatus.INVALID
        entry = queue.pending.get(offset)
        if entry is None:
            return SettleStatus.ALREADY
        if number != entry.number or entry.deadline_ms <= now_ms:
            return SettleStatus.INVALID
        entry.client_id = ""
        if uncounted and entry.attempt > 0:
            entry.attempt -= 1
        if deadline_ms <= now_ms:
            self._make_ready(queue, offset, entry)
        else:
            entry.deadline_ms, entry.waits = deadline_ms, given_back or uncounted
            self._deadlines.arm(queue, deadline_ms, [offset])
        return SettleStatus.DONE

    def held(self, group_id: int, topic_id: int) -> Iterator[tuple[QueueProgress, int]]:
        """Every delivery of one group and topic that is running now."""
        for queue in self.queues():
            if queue.group_id == group_id and queue.topic_id == topic_id:
                for offset, entry in list(queue.pending.items()):
                    if entry.deadline_ms > READY:
                        yield queue, offset

    # ------------------------------------------------------------------------------------------------ journal

    def apply(self, op: Acked | Committed | Delivered | Invisible) -> None:
        """Replay one operation; twice is as good as once."""
        if isinstance(op, Committed):
            self.commit(op.group_id, op.topic_id, op.queue_id, op.offset, allow_backward=op.reset)
            return
        key = (op.group_id, op.topic_id, op.queue_id)
        queue = self._queues.get(key)
        match op:
            case Delivered():
                if queue is None:
                    start = min(op.offsets, default=op.next_offset)
                    queue = self._begin(*key, start)
                self._replay_delivered(queue, op)
            case Acked():
                if queue is not None:
                    self.finish(queue, op.offset)
            case Invisible():
                entry = queue.pending.get(op.offset) if queue is not None else None
                if queue is not None and entry is not None and op.number >= entry.number:
                    entry.number, entry.attempt, entry.client_id = op.number, op.attempt, ""
                    self._replay_deadline(queue, op.offset, entry, op.deadline_ms)

    def _replay_delivered(self, queue: QueueProgress, op: Delivered) -> None:
        replayed = []
        for offset, number, attempt in zip(op.offsets, op.numbers, op.attempts, strict=True):
            entry = queue.pending.get(offset)
            if offset < queue.committed or (entry is not None and entry.number > number):
                continue
            entry = queue.pending[offset] = Pending(number, attempt, READY, op.client_id)
            # The journal does not count resets; a delivery's number tells how many were before it.
            queue.first = max(queue.first, (number - 1) // NUMBERS * NUMBERS + 1)
            replayed.append(offset)
            self._replay_deadline(queue, offset, entry, op.deadline_ms)
        if op.client_id and replayed:
            self._held.add(op.client_id, queue, replayed)
        queue.unkeyed = True
        queue.walk.clear()
        if op.next_offset > queue.next:
            queue.next = op.next_offset
            queue.advance()

    def _replay_deadline(self, queue: QueueProgress, offset: int, entry: Pending, deadline_ms: int) -> None:
        if deadline_ms == READY:
            self._make_ready(queue, offset, entry)
        else:
            entry.deadline_ms = deadline_ms
            self._deadlines.arm(queue, deadline_ms, [offset])

    def dump(self) -> Iterator[Op]:
        """The whole state as operations, for a snapshot."""
        for key, queue in self._queues.items():
            yield Committed(*key, queue.committed, reset=True)
            together: dict[tuple[int, str], list[int]] = {}
            for offset, entry in queue.pending.items():
                # Blocked ones as ready: `message_groups.rebuild` blocks them again after a start.
                together.setdefault((max(entry.deadline_ms, READY), entry.client_id), []).append(offset)
            for (deadline_ms, client_id), offsets in together.items():
                for at in range(0, len(offsets), _CHUNK):
                    part = offsets[at : at + _CHUNK]
                    yield self.delivered_op(
                        queue, part, deadline_ms=deadline_ms, client_id=client_id, next_offset=queue.committed
                    )
            yield Delivered(*key, queue.next, READY, "", (), (), ())

    def delivered_op(
        self,
        queue: QueueProgress,
        offsets: Sequence[int],
        *,
        deadline_ms: int,
        client_id: str,
        next_offset: int | None = None,
    ) -> Delivered:
        """What the journal keeps of a delivery. `next_offset` None = the queue's; a part of a whole that several
        operations describe has the one from before, because replaying it must not make the rest look finished.
        """
        pending = queue.pending
        return Delivered(
            queue.group_id,
            queue.topic_id,
            queue.queue_id,
            queue.next if next_offset is None else next_offset,
            deadline_ms,
            client_id,
            tuple(offsets),
            tuple([pending[offset].number for offset in offsets]),
            tuple([pending[offset].attempt for offset in offsets]),
        )

    def clients(self) -> set[str]:
        """Clients whose life holds a delivery."""
        return {one.client_id for queue in self._queues.values() for one in queue.pending.values() if one.client_id}

    def holds(self, client_id: str) -> bool:
        """True if the client's life holds a delivery, or did not long ago."""
        return client_id in self._held

    # ------------------------------------------------------------------------------------------------ inside

    def unblock(self, queue: QueueProgress, offset: int) -> None:
        """What was before this message of an ordered group is finished."""
        self._make_ready(queue, offset, queue.pending[offset])

    def _finish(self, queue: QueueProgress, offset: int) -> None:
        entry = queue.pending.pop(offset)
        if entry.lane is None:
            return
        lane = queue.lanes[entry.lane]
        if lane[0] == offset:
            lane.popleft()
        else:
            lane.remove(offset)
        if not lane:
            del queue.lanes[entry.lane]
        if entry.deadline_ms == BLOCKED:
            return  # the delivery that it waited for goes on
        if not lane:
            self._unblock_elsewhere(queue, entry.lane)
        elif queue.pending[lane[0]].deadline_ms == BLOCKED:
            self.unblock(queue, lane[0])

    def _unblock_elsewhere(self, queue: QueueProgress, lane: str) -> None:
        # The same message group in another queue of the topic, as after a change of the number of queues.
        for one in self.siblings(queue) if lane else ():
            waiting = one.lanes.get(lane)
            if waiting and one.pending[waiting[0]].deadline_ms == BLOCKED:
                self.unblock(one, waiting[0])
                if self.on_unblocked is not None:
                    self.on_unblocked(one)
                return

    def _begin(self, group_id: int, topic_id: int, queue_id: int, offset: int) -> QueueProgress:
        queue = self._queues[group_id, topic_id, queue_id] = QueueProgress(group_id, topic_id, queue_id, offset)
        if queue_id < LITE_QUEUES_FROM:
            self._together.setdefault((group_id, topic_id), []).append(queue)
        return queue

    def _make_ready(self, queue: QueueProgress, offset: int, entry: Pending) -> None:
        entry.deadline_ms = READY
        heapq.heappush(queue.ready, offset)

    def _drop(self, gone: Callable[[tuple[int, int, int]], bool]) -> None:
        for key in [key for key in self._queues if gone(key)]:
            queue = self._queues.pop(key)
            if queue.queue_id < LITE_QUEUES_FROM:
                self._together[key[:2]].remove(queue)

    def check(self) -> None:
        """Recompute every invariant; for tests."""
        check(self.siblings, self._queues, self._deadlines.timers, self._held)
