"""All queues of the topics are the query's: `assignment=exclusive`.

Called by the runner of `stream`. `member` holds the locks; here is how a batch follows from them: which queues may be
planned, where a group was moved to by an operator, whether checkpoint and group agree at a start, and what is reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from evenq import errors
from evenq.model import QueueOffset
from evenq.model.queue import MessageQueue
from pyspark_evenq import cluster
from pyspark_evenq.committer import Committer
from pyspark_evenq.holding import HeldQueues
from pyspark_evenq.losses import named
from pyspark_evenq.made_group import MadeGroup
from pyspark_evenq.member import StreamMember
from pyspark_evenq.member_options import OnConflict
from pyspark_evenq.offsets import Positions, StreamOffset
from pyspark_evenq.planner import Bounds, trimmed
from pyspark_evenq.positions import QueueState
from pyspark_evenq.watch import QueueWatch

__all__ = ["ExclusiveQueues", "OffsetConflict", "differ"]

log = logging.getLogger(__name__)
FLUSH_MS = 2_000
CLOSE_MS = 1_200  # together with the goodbye less than the 2 s that a stopped query may take
GOODBYE_MS = 500
HOLD_PAUSE_S = 0.2


class OffsetConflict(errors.PreconditionFailed):
    """Checkpoint and group differ, and onOffsetConflict is fail."""


class ExclusiveQueues:
    """See `holding.Queues`."""

    def __init__(self, group: MadeGroup, watch: QueueWatch) -> None:
        self._group, self._options, self._watch = group, group.options, watch
        self.member = StreamMember(self._options)
        self.client_id = self.member.client_id
        self.committer = Committer(self._send, interval_ms=self._options.commit_interval_ms)
        self._frozen: Mapping[MessageQueue, Bounds] | None = None
        self._planned = False
        self._held: frozenset[MessageQueue] = frozenset()
        self._now: dict[MessageQueue, int] = {}
        """Where the next batch begins on queues that do not begin where the last one ended."""
        self._replayed: Positions | None = None
        """Where the last logged batch begins, if it was planned again."""
        self._met = False
        """True once the checkpoint was compared with the group's progress."""
        self._chosen: dict[MessageQueue, int] = {}
        """Queues that begin at the group's progress, as soon as they can."""
        self._moved: dict[MessageQueue, tuple[int, int]] = {}
        """Queues that an operator moved: the offset, and the number of the move."""
        self._due: dict[MessageQueue, tuple[QueueOffset, int]] = {}
        """Those of them that begin there in a logged batch, which their brokers may not know yet."""

    def starts(self, chosen: Positions, states: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:  # noqa: ARG002
        return dict(chosen)

    def pin(self, starts: Positions) -> None:
        """A restart that finds it there may plan its logged batch before its predecessor has gone."""
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
        """It is not known how far they go, or not yet as far as that, or their lock is in doubt."""
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
        """No offsets that count other messages now: they would be a progress that the group has not made."""
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
        # A group that is deleted in a moment needs no progress.
        self.committer.close(timeout_ms=0 if self._group.is_made_here else CLOSE_MS)
        # After the report: brokers refuse progress of a member that has let go of its locks.
        self.member.leave(timeout_ms=GOODBYE_MS)
        self._group.delete()

    def _hold(self) -> frozenset[MessageQueue]:
        self._group.make()
        return self.member.hold(self._watch.route())

    def _all_held(self, start: StreamOffset) -> frozenset[MessageQueue]:
        """The queues that are ours to plan. A run that has an end waits for the brokers of all its queues first."""
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
        """Where an operator moved the group, for the queues that are to follow with the next batch."""
        self._tell_followed()
        resets = self.member.resets()
        self._moved = {
            queue: (offset, number) for queue, (offset, number) in self._moved.items() if resets.get(queue) == number
        }
        new = [queue for queue in resets if queue in start.ends and queue not in self._moved]
        offsets = self._watch.progress(new) if new else {}
        offsets = {queue: offset for queue, offset in offsets.items() if offset >= 0 and self._reachable(queue, offset)}
        self._moved |= {queue: (offset, resets[queue]) for queue, offset in offsets.items()}
        self.member.sent(offsets)
        # It sends nothing that lies before what it has sent, and a move may go back.
        self.committer.forget(offsets)
        return offsets

    def _tell_followed(self) -> None:
        resets = self.member.resets()
        self._due = {queue: due for queue, due in self._due.items() if resets.get(queue) == due[1]}
        for queue, (offset, number) in self._due.items():
            self.member.follow(queue, offset, number)

    def _conflicts(self, start: StreamOffset) -> dict[MessageQueue, int]:
        """Where a query that starts goes by the group and not by the checkpoint. Raises OffsetConflict."""
        if self._met:
            return self._chosen
        replayed = self._replayed or {}
        progress = {
            queue: offset
            for queue, offset in self.member.group_progress().items()
            # Where the logged batch begins agrees as well: that batch is planned again, and nothing of it was
            # reported.
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
        # Before the call: if its answer is lost, the broker's newer offset must not look like another member's work.
        self.member.sent(positions)
        for address, queues in cluster.by_address(
            {queue: route[queue] for queue in positions if queue in route}
        ).items():
            some = {queue: positions[queue] for queue in queues}
            try:
                cluster.commit(address, self._options.group, some, client_id=self.client_id)
            except errors.PreconditionFailed:
                # Another one may hold the locks: they are asked for again before anything is planned (decision 36).
                self.member.refused()
                raise


def differ(on_conflict: OnConflict, group: str, progress: Positions, checkpoint: Positions) -> bool:
    """The group's `progress` on these queues is not what the checkpoint says. True: the group counts.
    Raises OffsetConflict.
    """
    first = min(progress)
    said = (
        f"the progress of group {group} and the checkpoint differ on {named(list(progress))}: {first} is at "
        f"{progress[first]} in the group and at {checkpoint[first]} in the checkpoint; the group was moved, or the "
        "last run was killed before it could report"
    )
    match on_conflict:
        case OnConflict.FAIL:
            raise OffsetConflict(f"{said}; set onOffsetConflict to checkpoint or broker to say which one counts")
        case OnConflict.BROKER:
            log.warning("%s; continuing at the offsets of the group", said)
            return True
    log.warning("%s; continuing at the checkpoint (onOffsetConflict)", said)
    return False
