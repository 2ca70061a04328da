"""All queues of the topics for one query: `assignment=exclusive`.

Problem: a query has its position twice. Spark's checkpoint is the truth: a logged batch is replayed from its offsets.
The group's progress at the brokers serves lag, retention and operators. The two may differ: after a crash the report of
the last batch is missing; an operator resets the group; another member may have read while the query was away.

Idea: `member` holds the locks of all queues. A queue is planned only while its lock is held, and progress is reported
under the member's client id, so brokers refuse it after the loss of a lock. Checkpoint and group are compared once, at
the first trigger (`_conflicts`). A reset becomes the start (`from`) of the next batch, and its broker is notified
only after Spark has logged that batch (`_followed`, `logged`, `_tell_followed`).

Invariants:
- Nothing is planned on a queue whose lock is not held, but a bounded run (`availableNow`) keeps its fixed queues. Until
  its first plan it waits for the locks of all queues that it must still read, and fails after `readTimeoutMs`.
- Progress is reported only for batches in Spark's commit log, and at the start of queues that the group never read
  (`pin`). It is never reported for queues with a pending reset (brokers would ignore it), and never for queues that
  were created again (their offsets count other messages).
- `member.sent` is called before each commit. If the answer is lost, the higher progress at the broker is this query's
  own and must not look like another member's.
- A reset moves the start of one batch. Its number identifies it: a newer reset of the same queue replaces it.

Example of a start: batch [400, 500) is in the commit log, but the driver died before the report, so the group is at 400
and the checkpoint at 500. `onOffsetConflict` decides: `checkpoint` (the default) continues at 500, `broker` reads from
400 again, `fail` raises OffsetConflict. If the batch is not in the commit log, Spark plans [400, 500) again first
(`_replayed`); then 400 agrees with the group.

Example of a reset: the query is at 500, and an operator resets the group to 200. The next batch is `from` 200 to 520.
When Spark has logged it, one pull at 200 notifies the broker, which accepts commits again. Then 520 is reported.

References: decisions 36 (one member) and 43 (stops); docs/internals/promises.md (a Spark query is the one member of its
group).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from evenq import errors
from evenq.errors import Error
from evenq.model import QueueOffset
from evenq.model.queue import MessageQueue
from pyspark_evenq.brokers import cluster
from pyspark_evenq.brokers.made_group import MadeGroup
from pyspark_evenq.brokers.watch import QueueWatch
from pyspark_evenq.member.holding import HeldQueues
from pyspark_evenq.member.member import StreamMember
from pyspark_evenq.options.member import OnConflict
from pyspark_evenq.plan.losses import named
from pyspark_evenq.plan.offsets import Positions, StreamOffset
from pyspark_evenq.plan.planner import Bounds, trimmed
from pyspark_evenq.plan.positions import QueueState

log = logging.getLogger(__name__)
FLUSH_MS = 2_000
CLOSE_MS = 1_200  # with GOODBYE_MS, less than the 2 s that a stopped query may take
GOODBYE_MS = 500
HOLD_PAUSE_S = 0.2


class Committer:
    """Copies the query's progress to the brokers, for lag and retention.

    Runs in the runner (the process on the driver that serves one query). Offered offsets are already in Spark's commit
    log. One thread sends the newest offset per queue, at most once per interval. A failure is logged, counted and
    retried. It never reaches Spark, where an exception from `commit` would end the query. The main thread calls
    `offer`, also inside a signal handler. `send` stores offsets at the brokers or raises an error of `evenq.errors`.
    """

    def __init__(self, send: Callable[[Positions], None], *, interval_ms: int) -> None:
        self._send = send
        self._interval = interval_ms / 1000
        # Reentrant: a signal handler may run while the main thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._pending: dict[MessageQueue, int] = {}
        self._sent: dict[MessageQueue, int] = {}
        self._forgotten: set[MessageQueue] = set()
        """Queues forgotten since the last attempt began."""
        self._urgent = False
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.failures = 0

    def offer(self, positions: Positions) -> None:
        """Queues progress and returns immediately. Offsets that were sent before are not sent again."""
        with self._changed:
            for queue, offset in positions.items():
                if offset > max(self._sent.get(queue, -1), self._pending.get(queue, -1)):
                    self._pending[queue] = offset
            if not self._pending or self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="evenq-committer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Drops earlier offers for queues whose reading position was moved."""
        with self._changed:
            for queue in queues:
                self._sent.pop(queue, None)
                self._pending.pop(queue, None)
                self._forgotten.add(queue)

    def flush(self, *, timeout_ms: int) -> bool:
        give_up = time.monotonic() + timeout_ms / 1000
        with self._changed:
            if self._thread is None:
                return not self._pending
            self._urgent = True
            self._changed.notify_all()
            while self._pending or self._busy:
                left = give_up - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._urgent = False
            return not (self._pending or self._busy)

    def close(self, *, timeout_ms: int) -> bool:
        done = self.flush(timeout_ms=timeout_ms)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        last = time.monotonic() - self._interval
        failed = False
        while True:
            with self._changed:
                while not self._closed and (not self._pending or self._early(last, failed=failed)):
                    self._changed.wait(self._pause(last, failed=failed) if self._pending else None)
                if self._closed:
                    return
                positions, self._pending, self._busy = self._pending, {}, True
                self._forgotten.clear()
            failed = not self._try(positions)
            last = time.monotonic()
            with self._changed:
                self._busy = False
                if failed:
                    again = {queue: at for queue, at in positions.items() if queue not in self._forgotten}
                    self._pending = again | self._pending  # newer offers win
                else:
                    self._sent.update((queue, at) for queue, at in positions.items() if queue not in self._forgotten)
                self._changed.notify_all()

    def _early(self, last: float, *, failed: bool) -> bool:
        return self._pause(last, failed=failed) > 0

    def _pause(self, last: float, *, failed: bool) -> float:
        interval = self._interval
        if self._urgent:
            interval = 0.1 if failed else 0.0
        return last + interval - time.monotonic()

    def _try(self, positions: Positions) -> bool:
        try:
            self._send(positions)
        except Error as failure:
            self.failures += 1
            log.warning("progress of %d queues not stored at the broker, trying again: %s", len(positions), failure)
            return False
        except Exception:
            self.failures += 1
            log.exception("progress of %d queues not stored at the broker, trying again", len(positions))
            return False
        return True


class OffsetConflict(errors.PreconditionFailed):
    """Checkpoint and group differ, and onOffsetConflict is fail."""


class ExclusiveQueues:
    """Implementation of `holding.Queues`."""

    def __init__(self, group: MadeGroup, watch: QueueWatch) -> None:
        self._group, self._options, self._watch = group, group.options, watch
        self.member = StreamMember(self._options)
        self.client_id = self.member.client_id
        self.committer = Committer(self._send, interval_ms=self._options.commit_interval_ms)
        self._frozen: Mapping[MessageQueue, Bounds] | None = None
        """Ends of a bounded run, fixed at its start; None: the run has no end."""
        self._planned = False
        """True after the first batch of this run; then a bounded run no longer waits for locks."""
        self._held: frozenset[MessageQueue] = frozenset()
        """Queues whose locks this query held at the start of the trigger."""
        self._now: dict[MessageQueue, int] = {}
        """Queue -> start of the next batch, where it differs from the end of the last one."""
        self._replayed: Positions | None = None
        """Starts of the last logged batch if Spark planned it again in this run, before the comparison."""
        self._met = False
        """True once the checkpoint was compared with the group's progress."""
        self._chosen: dict[MessageQueue, int] = {}
        """Queue -> group progress at which it begins instead of the checkpoint; kept only until a batch can do so."""
        self._moved: dict[MessageQueue, tuple[int, int]] = {}
        """Queue with a pending reset that a plan took over -> (offset, number of the reset)."""
        self._due: dict[MessageQueue, tuple[QueueOffset, int]] = {}
        """The part of `_moved` that is in a logged batch; kept until the broker was notified or the reset replaced."""

    def starts(self, chosen: Positions, states: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:  # noqa: ARG002
        return dict(chosen)

    def pin(self, starts: Positions) -> None:
        # Locks first: brokers accept progress only from their holder.
        if starts:
            self._hold()
        self.committer.offer(starts)
        self.committer.flush(timeout_ms=FLUSH_MS)

    def begin(self, start: StreamOffset, *, first: bool, frozen: Mapping[MessageQueue, Bounds] | None) -> None:
        self._frozen = frozen
        self._held = self._all_held(start)
        self._now = self._followed(start) | ({} if first else self._conflicts(start))
        self._met = True

    def wait(self, start: StreamOffset) -> None:
        self._watch.refresh({**start.ends, **self._now})

    def hold(self, start: StreamOffset) -> HeldQueues:
        held = self._held if self._frozen is None else self._held | self._frozen.keys()
        return HeldQueues(queues=held, ends={**start.ends, **self._now}, moved=self._now)

    def without(self, start: StreamOffset, held: HeldQueues, late: Collection[MessageQueue]) -> HeldQueues:
        # Late: the queue's bounds are not known, end before the start for now, or its lock is in doubt.
        self._moved = {queue: move for queue, move in self._moved.items() if queue not in late}
        self._chosen = {queue: offset for queue, offset in self._chosen.items() if queue in late}
        moved = {queue: offset for queue, offset in held.moved.items() if queue not in late}
        return replace(held, moved=moved, ends={**held.ends, **{queue: start.ends[queue] for queue in late}})

    def planned(self, end: StreamOffset | None) -> bool:
        self._planned = self._planned or end is not None
        return True

    def has(self, queue: MessageQueue) -> bool:  # noqa: ARG002
        return True

    def offer(self, logged: StreamOffset, but: Collection[MessageQueue] = ()) -> None:
        anew = {entry.queue for entry in trimmed(logged.ends, self._watch.bounds, logged.uids) if entry.anew}
        left_out = anew.union(but, self.member.resets())
        self.committer.offer({queue: end for queue, end in logged.ends.items() if queue not in left_out})

    def forget(self, queues: Collection[MessageQueue]) -> None:
        self.committer.forget(queues)

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        if not self._met:
            self._replayed = {**start.ends, **end.starts}
        for queue, (offset, number) in list(self._moved.items()):
            if end.starts.get(queue) == offset:
                self._due[queue] = QueueOffset(offset), number
        self._tell_followed()

    def done(self, end: StreamOffset) -> None:
        self.offer(end)

    def flush(self) -> None:
        self.committer.flush(timeout_ms=FLUSH_MS)

    def close(self) -> None:
        # A group of this query is deleted below, so it needs no progress.
        self.committer.close(timeout_ms=0 if self._group.is_made_here else CLOSE_MS)
        # After the report: brokers refuse progress of a member without its locks.
        self.member.leave(timeout_ms=GOODBYE_MS)
        self._group.delete()

    def _hold(self) -> frozenset[MessageQueue]:
        self._group.make()
        return self.member.hold(self._watch.route())

    def _all_held(self, start: StreamOffset) -> frozenset[MessageQueue]:
        """Returns the queues whose locks are held. The first plan of a bounded run waits for all that it must read."""
        give_up = time.monotonic() + self._options.read_timeout_ms / 1000
        while True:
            held = self._hold()
            frozen = {} if self._frozen is None or self._planned else self._frozen
            missing = {queue for queue in frozen.keys() - held if start.ends.get(queue, -1) < frozen[queue].high}
            if not missing or time.monotonic() > give_up:
                break
            time.sleep(HOLD_PAUSE_S)
        if missing:
            raise cluster.BrokersAway(
                f"no broker gives this query the locks of {named(missing)} within {self._options.read_timeout_ms} ms "
                "(readTimeoutMs); start it again when they are back"
            )
        return held

    def _followed(self, start: StreamOffset) -> dict[MessageQueue, int]:
        """Returns queue -> offset of a reset that the next batch follows."""
        self._tell_followed()
        resets = self.member.resets()
        # Ended or replaced resets are dropped: the broker was notified, or the group was moved again.
        self._moved = {
            queue: (offset, number) for queue, (offset, number) in self._moved.items() if resets.get(queue) == number
        }
        new = [queue for queue in resets if queue in start.ends and queue not in self._moved]
        offsets = self._watch.progress(new) if new else {}
        offsets = {queue: offset for queue, offset in offsets.items() if offset >= 0 and self._reachable(queue, offset)}
        self._moved |= {queue: (offset, resets[queue]) for queue, offset in offsets.items()}
        self.member.sent(offsets)
        # The committer never sends offsets below those it has sent, but a reset may go back.
        self.committer.forget(offsets)
        return offsets

    def _tell_followed(self) -> None:
        resets = self.member.resets()
        self._due = {queue: due for queue, due in self._due.items() if resets.get(queue) == due[1]}
        for queue, (offset, number) in self._due.items():
            self.member.follow(queue, offset, number)

    def _conflicts(self, start: StreamOffset) -> dict[MessageQueue, int]:
        """Returns queue -> group progress that counts instead of the checkpoint. Raises OffsetConflict."""
        if self._met:  # a later trigger: only queues that could not begin there yet
            return self._chosen
        replayed = self._replayed or {}
        progress = {
            queue: offset
            for queue, offset in self.member.group_progress().items()
            # The start of a replayed batch agrees as well: nothing of that batch was reported.
            if queue in start.ends and offset >= 0 and offset not in {start.ends[queue], replayed.get(queue)}
        }
        if progress and differ(self._options.membership.on_conflict, self._options.group, progress, start.ends):
            self._chosen = {queue: offset for queue, offset in progress.items() if self._reachable(queue, offset)}
        return self._chosen

    def _reachable(self, queue: MessageQueue, offset: int) -> bool:
        return self._frozen is None or (queue in self._frozen and offset <= self._frozen[queue].high)

    def _send(self, positions: Positions) -> None:
        if not self._options.group:  # no group to report for
            return
        route = self._watch.route()
        unplaced = [queue for queue in positions if queue not in route]
        if unplaced:
            log.warning("no broker of %s is known, its progress is only in the checkpoint", unplaced[0])
        # Before the call: if its answer is lost, the broker's higher offset must not look like another member's.
        self.member.sent(positions)
        for address, queues in cluster.by_address(
            {queue: route[queue] for queue in positions if queue in route}
        ).items():
            some = {queue: positions[queue] for queue in queues}
            try:
                cluster.commit(address, self._options.group, some, client_id=self.client_id)
            except errors.PreconditionFailed:
                # Another member may hold the locks: they are requested again before the next plan (decision 36).
                self.member.refused()
                raise


def differ(on_conflict: OnConflict, group: str, progress: Positions, checkpoint: Positions) -> bool:
    """Handles a difference of group `progress` and `checkpoint`. True: the group counts. Raises OffsetConflict."""
    first = min(progress)
    said = (
        f"the progress of group {group} and the checkpoint differ on {named(list(progress))}: {first} is at "
        f"{progress[first]} in the group and at {checkpoint[first]} in the checkpoint; the group was moved, or the "
        "last run was killed before it could report"
    )
    match on_conflict:
        case OnConflict.FAIL:
            raise OffsetConflict(f"{said}; set onOffsetConflict to checkpoint or broker to choose one of them")
        case OnConflict.BROKER:
            log.warning("%s; continuing at the offsets of the group", said)
            return True
    log.warning("%s; continuing at the checkpoint (onOffsetConflict)", said)
    return False
