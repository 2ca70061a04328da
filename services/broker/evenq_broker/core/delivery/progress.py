"""Ledger of deliveries: for each (group, topic, queue) the committed offset and every unfinished delivery.

Problem: a group receives the messages of a queue in parallel, finishes them in any order, fails at some, and loses
clients. The broker must always know which messages are finished, which are delivered and until when, and which wait for
redelivery. Memory and journal may grow with the unfinished messages only, not with the queue.

Idea: all offsets below `next` were looked at. Those that are unfinished have an entry in `pending`, so an offset below
`next` without an entry is finished or was filtered out. An entry counts its deliveries; the number of the last one is
part of its receipt handle. A delivery ends by ack, by its deadline (exact to the ms), by being given back, or with its
client. Redeliveries come before fresh messages, in ascending offset.

Invariants of each queue (`core.delivery.invariants` recomputes them in tests):

- `committed` is the smallest offset in `pending`, or `next` if there is none; every entry is in [committed, next).
- A READY entry waits for redelivery and is in the heap `ready`. A BLOCKED one waits for an earlier message of its
  message group. Any other has a deadline that is armed in `DeliveryDeadlines`.
- `attempt` <= `number`: deliveries that were given back have a number and do not count as attempts.
- An entry with a client id is also in `Held`, so the end of that client finds it.
- `running` is the number of messages that clients have, with those that are FINISHING.
- A FINISHING entry has no timer and no valid handle: the call that stores its end ends it (`core.delivery.fence`).
- A reset raises `first` by `NUMBERS`: no handle from before it names a present delivery.
- Replaying an operation again changes nothing: each one states a result, and older numbers lose.

Example: a group begins at offset 100. `deliver` of 100, 101 and 102 for 30 s makes `next` 103; `committed` stays 100.
The ack of 101 removes its entry, `committed` is still 100; the ack of 100 moves it to 102. After 30 s 102 is READY;
`take_ready` delivers it with number 2 and attempt 2. Its ack makes `committed` 103, and the ledger is empty.

Called by the receive path, the pull path and journal replay. Pure: time comes in as ms since the epoch
(`Broker.now_ms`). Wire contract 5.1, 5.2; replication D3, D4; decisions 22, 90, 91. NATS JetStream calls the pair of
`committed` and `pending` ack floor and pending.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from evenq_broker.core.delivery.deadlines import DeliveryDeadlines
from evenq_broker.core.delivery.fence import DeliveryFence, is_fenced
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

    __slots__ = (
        "_deadlines",
        "_held",
        "_queues",
        "_together",
        "fence",
        "inflight_max",
        "on_commit",
        "on_over",
        "on_unblocked",
    )

    def __init__(self, *, inflight_max: int = 20_000) -> None:
        self.inflight_max = inflight_max
        """Unfinished messages of a group on one queue, from which on no fresh ones are delivered."""
        self._queues: dict[tuple[int, int, int], QueueProgress] = {}
        """Group, topic, queue -> state; from the first receive or commit on."""
        self._together: dict[tuple[int, int], list[QueueProgress]] = {}
        """Group, topic -> its states in `_queues`, lite topics excluded: a message group may be in several of them."""
        self.on_unblocked: Callable[[QueueProgress], None] | None = None
        """Called with a queue of an ordered group that got something to deliver because of another queue."""
        self.on_over: Callable[[QueueProgress, int, Pending], int] | None = None
        """Called when a delivery ends unfinished; returns when the next one may begin, 0: immediately."""
        self.on_commit: Callable[[int, int, int, int], None] | None = None
        """Called with group, topic, queue and offset at each change by `commit`, for a watcher."""
        self._held = Held(self._queues)
        """Client -> deliveries; has every entry with a client id."""
        self._deadlines = DeliveryDeadlines(self._queues)  # Timers; has every entry with a deadline above READY
        self.fence = DeliveryFence(self._deadlines, self.finish)
        """Has every FINISHING entry."""

    # ------------------------------------------------------------------------------------------------ reading

    def queue(self, group_id: int, topic_id: int, queue_id: int) -> QueueProgress | None:
        """Returns the group's state on one queue; None before its first receive or commit there."""
        return self._queues.get((group_id, topic_id, queue_id))

    def queues(self) -> Iterator[QueueProgress]:
        """Returns every group on every queue it ever read."""
        return iter(list(self._queues.values()))

    def siblings(self, queue: QueueProgress) -> list[QueueProgress]:
        """Returns the group's state on the topic's other queues."""
        if queue.queue_id >= LITE_QUEUES_FROM:
            return []
        return [one for one in self._together[queue.group_id, queue.topic_id] if one is not queue]

    def committed(self, group_id: int, topic_id: int, queue_id: int) -> int | None:
        """Returns the smallest unfinished offset; None if the group never read or committed there."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return None if queue is None else queue.committed

    def inflight(
        self, group_id: int, topic_id: int, queue_id: int, min_offset: int = 0, max_offset: int = NO_END
    ) -> int:
        """Returns the number of messages in the range that a client has and has not finished."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return 0 if queue is None else queue.inflight(min_offset, max_offset)

    def delivered(self, group_id: int, topic_id: int, queue_id: int, min_offset: int, max_offset: int) -> int:
        """Returns the number of messages in the range that were delivered at least once and are not finished."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return 0 if queue is None else queue.delivered(min_offset, max_offset)

    def lag(self, group_id: int, topic_id: int, queue_id: int, min_offset: int, max_offset: int) -> int:
        """Returns the number of messages in the range that the group has not finished; 0 where it never read."""
        queue = self._queues.get((group_id, topic_id, queue_id))
        return 0 if queue is None else queue.lag(min_offset, max_offset)

    def topics_of(self, group_id: int) -> list[int]:
        """Returns the ids of the topics that the group has progress on, ascending."""
        return sorted({key[1] for key in self._queues if key[0] == group_id})

    def groups_of(self, topic_id: int) -> list[int]:
        """Returns the ids of the groups that have progress on the topic, ascending."""
        return sorted({key[0] for key in self._queues if key[1] == topic_id})

    def next_deadline(self) -> int | None:
        """Returns when `expire` has something to do, ms since the epoch; may be early, never late."""
        return self._deadlines.next()

    # ------------------------------------------------------------------------------------------------ offsets

    def start(self, group_id: int, topic_id: int, queue_id: int, offset: int) -> Committed | None:
        """Lets the group begin at `offset` unless it has begun already. Returns what to record."""
        if (group_id, topic_id, queue_id) in self._queues:
            return None
        self._begin(group_id, topic_id, queue_id, offset)
        return Committed(group_id, topic_id, queue_id, offset)

    def commit(self, group_id: int, topic_id: int, queue_id: int, offset: int, *, allow_backward: bool = False) -> bool:
        """Finishes everything below `offset`. Returns True if that changed something (then record `Committed`).

        A lower offset is ignored. `allow_backward` is a reset, backward or forward: what was in flight is forgotten,
        and everything from `offset` on is delivered again (D6).
        """
        changed = self._commit(group_id, topic_id, queue_id, offset, allow_backward=allow_backward)
        if changed and self.on_commit is not None:
            self.on_commit(group_id, topic_id, queue_id, offset)
        return changed

    def _commit(self, group_id: int, topic_id: int, queue_id: int, offset: int, *, allow_backward: bool) -> bool:
        queue = self._queues.get((group_id, topic_id, queue_id))
        if queue is None:  # the first commit of the group here
            self._begin(group_id, topic_id, queue_id, offset)
            return True
        if allow_backward:
            # A reset. Only a message group with a delivery here blocks messages in other queues.
            free = [lane for lane, held in queue.lanes.items() if queue.pending[held[0]].deadline_ms != BLOCKED]
            changed = queue.reset(offset)
            for lane in free if changed else ():
                self._unblock_elsewhere(queue, lane)
            return changed
        if offset <= queue.committed:  # late or repeated
            return False
        for done in sorted(held for held in queue.pending if held < offset):
            self._finish(queue, done)
        queue.next = max(queue.next, offset)
        queue.advance()
        return True

    def forget_group(self, group_id: int) -> None:
        self._drop(lambda key: key[0] == group_id)

    def forget(self, group_id: int, topic_id: int) -> None:
        """Forgets the group's progress on a topic whose subscription was removed."""
        self._drop(lambda key: key[:2] == (group_id, topic_id))

    def forget_queue(self, topic_id: int, queue_id: int) -> None:
        self._drop(lambda key: key[1:] == (topic_id, queue_id))

    def forget_topic(self, topic_id: int) -> None:
        self._drop(lambda key: key[1] == topic_id)

    # ------------------------------------------------------------------------------------------------ delivering

    def room(self, queue: QueueProgress) -> int:
        """Returns how many more fresh messages the group may have unfinished on this queue."""
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
        """Redelivers up to `count` ready messages before `below`. Returns them, and those that had `max_attempts`
        deliveries: these are held until `deadline_ms`, for the move to the dead-letter topic.
        """
        again: list[int] = []
        dead: list[int] = []
        while queue.ready and queue.ready[0] < below and len(again) < count:
            offset = heapq.heappop(queue.ready)
            entry = queue.pending.get(offset)
            if entry is None or entry.deadline_ms != READY:  # finished or delivered since it was pushed
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
            queue.running += len(taken)
            if client_id:
                self._held.add(client_id, queue, taken)
            self._deadlines.arm(queue, deadline_ms, taken)
        return again, dead

    def deliver(
        self, queue: QueueProgress, offsets: list[int], next_offset: int, *, deadline_ms: int, client_id: str
    ) -> None:
        """Delivers fresh messages, read from `queue.next`; the rest below `next_offset` was filtered out."""
        pending, first = queue.pending, queue.first
        for offset in offsets:
            pending[offset] = Pending(first, 1, deadline_ms, client_id)
        queue.next = next_offset
        if offsets:
            queue.running += len(offsets)
            if client_id:
                self._held.add(client_id, queue, offsets)
            self._deadlines.arm(queue, deadline_ms, offsets)
        queue.advance()

    def set_aside(self, queue: QueueProgress, offsets: Sequence[int]) -> None:
        """Adds messages, ascending, as unfinished without delivering them: they are settled one by one."""
        for offset in offsets:
            queue.pending[offset] = Pending(0, 0, READY, "")
            heapq.heappush(queue.ready, offset)
        if offsets:
            queue.walk.clear()
            queue.committed = min(queue.committed, offsets[0])
            queue.next = max(queue.next, offsets[-1] + 1)

    def hold_on(self, queue: QueueProgress, offset: int, number: int, *, now_ms: int, deadline_ms: int) -> bool:
        """Extends a running delivery to `deadline_ms`: its answer got lost. Returns False if it has ended."""
        entry = queue.pending.get(offset)
        if entry is None or entry.number != number or entry.deadline_ms <= now_ms:
            return False
        entry.deadline_ms = deadline_ms
        self._deadlines.arm(queue, deadline_ms, [offset])
        return True

    def give_back(self, queue: QueueProgress, offset: int, number: int) -> Invisible | None:
        """Takes back a delivery that did not reach its client: the message is ready, and the attempt does not count."""
        entry = queue.pending.get(offset)
        if entry is None or entry.number != number or entry.deadline_ms <= READY:
            return None
        queue.running -= entry.running
        entry.attempt -= 1
        entry.client_id = ""
        self._make_ready(queue, offset, entry)
        return queue.op(offset, entry)

    def release(self, client_id: str, deadline_ms: int) -> list[tuple[QueueProgress, int]]:
        """Ends at `deadline_ms` what only the life of a gone client held. Returns queue and offset of each."""
        changed = []
        for key, offsets in self._held.pop(client_id):
            queue = self._queues.get(key)
            if queue is None:
                continue
            ending = []
            for offset in offsets:
                entry = queue.pending.get(offset)
                if entry is None or entry.client_id != client_id:  # finished, or with another client by now
                    continue
                entry.client_id = ""
                if is_fenced(entry):
                    self.fence.shorten(entry, deadline_ms)
                elif entry.deadline_ms > deadline_ms:
                    entry.deadline_ms = deadline_ms
                    ending.append(offset)
            changed += [(queue, offset) for offset in ending]
            if ending:
                self._deadlines.arm(queue, deadline_ms, ending)
        return changed

    def expire(self, now_ms: int) -> list[QueueProgress]:
        """Ends the deliveries whose deadline has come. Returns the queues that have something to deliver again."""
        woken: dict[int, QueueProgress] = {}
        for queue, deadline, offsets in self._deadlines.due(now_ms):
            for offset in offsets:
                entry = queue.pending.get(offset)
                if entry is not None and entry.deadline_ms == deadline:
                    until_ms = 0 if self.on_over is None else self.on_over(queue, offset, entry)
                    entry.client_id = ""
                    queue.running -= entry.running
                    if until_ms > now_ms:  # a pause before the redelivery
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
        """Finishes one message; ALREADY if it is finished. Any handle of the present delivery is valid, one of an
        earlier delivery until its own time ends (wire contract 5.2).
        """
        if queue is None or offset >= queue.next:
            return SettleStatus.INVALID
        entry = queue.pending.get(offset)
        if entry is None:
            return SettleStatus.ALREADY
        if number == entry.number:  # of the present delivery, by this or an earlier handle
            if entry.deadline_ms <= now_ms:
                return SettleStatus.INVALID
        elif not queue.first <= number <= entry.number or expires_ms <= now_ms:  # not of an earlier one that still runs
            return SettleStatus.INVALID
        self._finish(queue, offset)
        if offset == queue.committed:
            queue.advance()
        return SettleStatus.DONE

    def status_of(self, queue: QueueProgress | None, offset: int, number: int, *, now_ms: int) -> SettleStatus:
        """Returns DONE if the handle with this number is of the present delivery, and that runs. Changes nothing."""
        if queue is None or offset >= queue.next:
            return SettleStatus.INVALID
        entry = queue.pending.get(offset)
        if entry is None:
            return SettleStatus.ALREADY
        runs = number == entry.number and entry.deadline_ms > now_ms
        return SettleStatus.DONE if runs else SettleStatus.INVALID

    def finish(self, queue: QueueProgress, offset: int) -> bool:
        """Finishes one message in any state: it is in the dead-letter topic, or gone from the store."""
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
        """Ends the present delivery at `deadline_ms` (now = a nack). Only its own handles may do that.

        `uncounted`: the attempt does not count (suspend). `given_back`: its consumer failed. In both cases the time
        that is left is a wait for redelivery. The delivery no longer depends on its client's life.
        """
        if queue is None or offset >= queue.next:
            return SettleStatus.INVALID
        entry = queue.pending.get(offset)
        if entry is None:
            return SettleStatus.ALREADY
        if number != entry.number or entry.deadline_ms <= now_ms:
            return SettleStatus.INVALID
        entry.client_id = ""
        queue.running -= entry.running
        if uncounted and entry.attempt > 0:
            entry.attempt -= 1
        if deadline_ms <= now_ms:
            self._make_ready(queue, offset, entry)
        else:
            entry.deadline_ms, entry.waits = deadline_ms, given_back or uncounted
            queue.running += entry.running
            self._deadlines.arm(queue, deadline_ms, [offset])
        return SettleStatus.DONE

    def held(self, group_id: int, topic_id: int) -> Iterator[tuple[QueueProgress, int]]:
        """Yields every running delivery of one group and topic."""
        for queue in self.queues():
            if queue.group_id == group_id and queue.topic_id == topic_id:
                for offset, entry in list(queue.pending.items()):
                    if entry.deadline_ms > READY:
                        yield queue, offset

    # ------------------------------------------------------------------------------------------------ journal

    def apply(self, op: Acked | Committed | Delivered | Invisible) -> None:
        """Replays one operation; a repetition changes nothing."""
        if isinstance(op, Committed):
            self.commit(op.group_id, op.topic_id, op.queue_id, op.offset, allow_backward=op.reset)
            return
        key = (op.group_id, op.topic_id, op.queue_id)
        queue = self._queues.get(key)
        match op:
            case Delivered():
                if queue is None:  # the journal begins behind the group's first commit
                    start = min(op.offsets, default=op.next_offset)
                    queue = self._begin(*key, start)
                self._replay_delivered(queue, op)
            case Acked():
                if queue is not None:
                    self.finish(queue, op.offset)
            case Invisible():
                entry = queue.pending.get(op.offset) if queue is not None else None
                # A smaller number is from an earlier delivery, which a snapshot may already have replaced.
                if queue is not None and entry is not None and op.number >= entry.number:
                    queue.running -= entry.running
                    entry.number, entry.attempt, entry.client_id = op.number, op.attempt, ""
                    self._replay_deadline(queue, op.offset, entry, op.deadline_ms)

    def _replay_delivered(self, queue: QueueProgress, op: Delivered) -> None:
        replayed = []
        for offset, number, attempt in zip(op.offsets, op.numbers, op.attempts, strict=True):
            entry = queue.pending.get(offset)
            # Finished, or delivered again by a later operation that the snapshot holds.
            if offset < queue.committed or (entry is not None and entry.number > number):
                continue
            if entry is not None:
                queue.running -= entry.running
            entry = queue.pending[offset] = Pending(number, attempt, READY, op.client_id)
            # The journal does not count resets; a delivery's number shows how many there were before it.
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
            queue.running += entry.running
            self._deadlines.arm(queue, deadline_ms, [offset])

    def dump(self) -> Iterator[Op]:
        for key, queue in self._queues.items():
            yield Committed(*key, queue.committed, reset=True)
            together: dict[tuple[int, str], list[int]] = {}
            for offset, entry in queue.pending.items():
                deadline_ms = entry.deadline_ms
                if is_fenced(entry):
                    until_ms = self.fence.unfinished_until(entry)
                    if until_ms is None:
                        continue
                    deadline_ms = until_ms
                # Blocked entries are written as ready: `message_groups.rebuild` blocks them again after a start.
                together.setdefault((max(deadline_ms, READY), entry.client_id), []).append(offset)
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
        """Returns the journal's record of a delivery. `next_offset` None: the queue's. If several operations describe
        one delivery, all but the last have the previous value: replaying them must not make the rest look finished.
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
        return {one.client_id for queue in self._queues.values() for one in queue.pending.values() if one.client_id}

    def holds(self, client_id: str) -> bool:
        """Returns True if the client's life holds a delivery, or did lately."""
        return client_id in self._held

    # ------------------------------------------------------------------------------------------------ inside

    def unblock(self, queue: QueueProgress, offset: int) -> None:
        """Makes a message of an ordered group ready: what was before it is finished."""
        self._make_ready(queue, offset, queue.pending[offset])

    def _finish(self, queue: QueueProgress, offset: int) -> None:
        entry = queue.pending.pop(offset)
        queue.running -= entry.running
        if entry.lane is None:  # not of an ordered group
            return
        lane = queue.lanes[entry.lane]
        if lane[0] == offset:
            lane.popleft()
        else:
            lane.remove(offset)
        if not lane:
            del queue.lanes[entry.lane]
        if entry.deadline_ms == BLOCKED:
            return  # the delivery that it waited for continues
        if not lane:
            self._unblock_elsewhere(queue, entry.lane)
        elif queue.pending[lane[0]].deadline_ms == BLOCKED:
            self.unblock(queue, lane[0])

    def _unblock_elsewhere(self, queue: QueueProgress, lane: str) -> None:
        # One message group may be in several queues of the topic, after their number has changed.
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
        check(self.siblings, self._queues, self._deadlines.timers, self._held)
