"""What should have become of every timer of a story: put, pending, ended, perhaps ended, fired.

After a crash it is not known of a cancellation that was not answered whether it took place: such timers may fire or not.
All others are counted exactly: as many are pending as were put, less those that ended and those that fired.
"""

from __future__ import annotations

from evenq.errors import StoreFull
from evenq.store import FlushMode, TimerAppend
from evenq_proofs.fault_disk import Keep
from evenq_proofs.storage.history import NEVER
from evenq_proofs.storage.session import READ_MAX, TIMER_QUEUE, Violation
from evenq_proofs.storage.story_reads import USUAL_MS, Kept, ReadStory, same


class TimerStory(ReadStory):
    """A story's timers."""

    def __init__(self, flush: FlushMode, kept: Kept, cache_bytes: int) -> None:
        super().__init__(flush, kept, cache_bytes)
        self.killing: Keep | None = None
        """The machine is about to stop in the middle of something; this much will be left."""
        self.cancelled: dict[bytes, int] = {}
        """Head of a timer to the log's end when its cancellation was answered; NEVER if it was not answered."""
        self.rolled: set[bytes] = set()
        """Timers that retention may have given another id."""

    def put(self) -> dict[bytes, TimerAppend]:
        return {timer.head: timer for group in self.history.groups for timer in group.timers}

    def ended(self) -> set[bytes]:
        """Ended for certain."""
        listed = {head for group in self.history.groups for head in group.ended}
        return listed | {head for head, log_end in self.cancelled.items() if log_end != NEVER}

    def unsure(self) -> set[bytes]:
        """Perhaps ended, perhaps not."""
        return {head for head, log_end in self.cancelled.items() if log_end == NEVER} - self.ended()

    def pending(self) -> list[TimerAppend]:
        """Pending for certain, not due yet, and under their first id; the next one due first."""
        gone = self.ended() | self.unsure() | self.rolled | {stored.head for stored in self.fired}
        return sorted(
            (timer for head, timer in self.put().items() if head not in gone and timer.due_ms > self.wall_ms),
            key=lambda timer: timer.due_ms,
        )

    async def cancel(self, index: int) -> None:
        """One that was put, whatever became of it."""
        put = list(self.put().values())
        if not put:
            return
        timer = put[index % len(put)]
        due = timer.head in {pending.head for pending in self.pending()}
        before = self.cancelled.get(timer.head)
        self.cancelled.setdefault(timer.head, NEVER)
        try:
            done = await self.session.store.cancel_timers([timer.log_offset])
        except StoreFull:
            if self.disk.fault is None:
                raise
            if before is None:
                del self.cancelled[timer.head]
            return
        if done:
            if timer.head in {stored.head for stored in self.fired} | self.ended():
                raise Violation(f"{timer!r} was cancelled, but it was not pending")
            self.cancelled[timer.head] = self.session.store.stats.log_end
        elif due:
            raise Violation(f"{timer!r} is pending and cannot be cancelled")
        elif before is None:
            del self.cancelled[timer.head]

    async def absorb(self, start: int) -> None:
        """Look at the timers that fired: once each, not early, none that was cancelled."""
        low, high = self.session.store.queue_range(*TIMER_QUEUE)
        if low > len(self.fired) and start >= len(self.fired):
            raise Violation(f"messages {len(self.fired)} to {low} of fired timers are gone before anyone saw them")
        if start >= high:
            return
        result = await self.session.store.read(*TIMER_QUEUE, max(start, low), count_max=10_000, bytes_max=READ_MAX)
        put, ended = self.put(), self.ended()
        seen = {stored.head for stored in self.fired}
        for stored in result.messages:
            if stored.queue_offset < len(self.fired):
                same(stored, self.fired[stored.queue_offset])
                continue
            timer = put.get(stored.head)
            if timer is None or stored.system != timer.system or stored.tag_hash != timer.tag_hash:
                raise Violation(f"{stored!r} is no timer's")
            if stored.head in seen or stored.head in ended:
                raise Violation(f"{timer!r} fired {'again' if stored.head in seen else 'although it was ended'}")
            if self.wall_ms < timer.due_ms or stored.store_ms < timer.due_ms:
                raise Violation(f"{timer!r} fired early, at {self.wall_ms}")
            seen.add(stored.head)
            self.fired.append(stored)

    def check_pending(self) -> None:
        gone = self.ended() | {stored.head for stored in self.fired}
        left = self.put().keys() - gone
        least = len(left - self.unsure())
        found = self.session.store.timers.stats.pending
        if not least <= found <= len(left) and self.killing is None:
            raise Violation(f"{found} timers are pending, {least} to {len(left)} should be")

    def may_roll(self) -> None:
        old = self.wall_ms - USUAL_MS
        self.rolled |= {head for head, timer in self.put().items() if timer.store_ms < old}
