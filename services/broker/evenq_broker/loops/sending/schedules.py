"""Fires schedules: recurring messages of this broker (decision 150).

A firing is one group of the log: its messages, and `ScheduleFired` with the time up to which the schedule is done.
Recovery and followers have both or neither, so the next start, or the next leader, continues exactly there. Invariants:

- The state has the firing from the step of the append, as a snapshot must. If the store certainly refused the group,
  the state returns to what it was, and a snapshot in between has that too.
- A schedule whose firing is being stored is not looked at, and is not changed by calls: they wait.
- Times come from the machine's clock, since rules are about it. `done_ms` does not move back, except by `resume`.
- A refused firing (full disk, missing copies, drained broker, closed topic) is tried again.

Example: `every` 10 s, done up to 100 s, the broker is back at 145 s. With `one` the message is that of 140 s. A kill
before the group is safe repeats this decision, a kill after it begins at 140 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from evenq.errors import BadRequest, Error, NotFound, PreconditionFailed, QueueClosed
from evenq.model import TopicConfig
from evenq.runtime.failpoints import passing
from evenq.store import Append
from evenq_broker.core.sending.cron import Cron, due_times
from evenq_broker.core.sending.schedules import (
    KeptSchedule,
    ScheduleTable,
    fired,
    is_same,
    kept_of,
    message_id_of,
    must_be_legal,
    rule_of,
)
from evenq_broker.core.sending.validation import checked
from evenq_broker.core.state.records import encode_op
from evenq_broker.core.state.schedule_records import Schedule, ScheduleFired, SchedulePut, ScheduleRemoved
from evenq_broker.loops.state.journal import REFUSED
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.scheduled_messages import scheduled_message
from evenq_broker.runtime import limits_of

log = logging.getLogger(__name__)

TICK_MS = 1_000
STEPS_MAX = 1_000
"""Firing times that are computed in one step of the loop, some tens of milliseconds."""
STEPS_EACH = 250
STEPS_OF_A_FIRING = 20
PAUSE_MS = 10
"""Between two such steps."""
PASSED_MAX_MS = 366 * 86_400_000
"""Times of a cron rule that are longer ago are not counted: a clock that jumps from 1970 would cost minutes."""


def zone_of(name: str) -> tzinfo:
    """Returns a time zone of the machine. Raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        if not available_timezones():
            raise ValueError(
                f"the broker's machine has no time zone database, so only UTC is known, not {name!r}; install the "
                "system's tzdata, or `pip install tzdata`, and start the broker again"
            ) from error
        raise ValueError(
            f"the time zone {name!r} is unknown; give a name of the IANA database, such as Europe/Berlin or UTC"
        ) from error


class _Storing(NamedTuple):
    stored: asyncio.Future[None]
    before: Schedule | None
    """None: there was none of the name."""
    outcome: asyncio.Future[None]
    """Done when the outcome is in the state."""

    def is_refused(self) -> bool:
        """True if certainly nothing of the firing is in the log."""
        stored = self.stored
        return stored.done() and not stored.cancelled() and isinstance(stored.exception(), REFUSED)


class Schedules:
    """The schedules of one broker, and the loop that fires them."""

    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self.table = ScheduleTable(all_max=self._runtime.settings.schedules_max, users=self._runtime.users)
        self._storing: dict[tuple[int, str], _Storing] = {}
        """Firings without an outcome."""
        self._again_ms: dict[tuple[int, str], int] = {}
        """When refused firings are tried again, by the monotonic clock."""
        self._turn = 0
        self._running = False
        self.firings = self.passed = 0
        """Messages fired, and missed times without a message, since the start."""
        self._ledger.keeps(dict.fromkeys((SchedulePut, ScheduleFired, ScheduleRemoved), self.table.apply), self._dump)

    # ------------------------------------------------------------------------------------------------ the loop

    def start(self) -> None:
        """Reads the rules of the replayed schedules, and starts to fire."""
        for kept in self.table:
            self._read_rule(kept)
        self._run()

    def _read_rule(self, kept: KeptSchedule) -> None:
        try:
            kept.put(kept.schedule, rule_of(kept.schedule, zone_of))
        except ValueError as error:
            self._troubled(kept, str(error))

    def _run(self) -> None:
        if not self._running and len(self.table) and self._runtime.failed is not None:
            self._running = True
            self._runtime.spawn(self._fire_all(), name="schedules")

    async def _fire_all(self) -> None:
        try:
            while len(self.table):
                await self._runtime.clock.sleep_ms(self.tick())
        finally:
            self._running = False

    def tick(self) -> int:
        """Fires what is due; returns when to look again, in ms."""
        now_ms, steps, wait_ms = self._runtime.clock.now_ms(), 0, TICK_MS
        for kept in self.table:
            key = kept.schedule.key
            if kept.next_ms is None or kept.schedule.paused or kept.schedule.moving_to or key in self._storing:
                continue
            if kept.next_ms > now_ms:
                wait_ms = min(wait_ms, kept.next_ms - now_ms)
            elif self._again_ms.get(key, 0) <= self._runtime.clock.monotonic_ms():
                if steps >= STEPS_MAX:
                    return PAUSE_MS
                steps += self._fire(kept, now_ms)
                if kept.looked_ms:
                    wait_ms = PAUSE_MS
        return wait_ms

    def _fire(self, kept: KeptSchedule, now_ms: int) -> int:
        """Fires one schedule that is due, or looks at a part of its missed times; returns the steps that it took."""
        schedule, rule = kept.schedule, kept.rule
        assert rule is not None, "a schedule without a rule has no next firing"
        after_ms = max(schedule.done_ms, kept.looked_ms)
        if isinstance(rule, Cron) and now_ms - after_ms > PASSED_MAX_MS:
            after_ms = now_ms - PASSED_MAX_MS
        due = due_times(rule, after_ms, now_ms, keep=kept_of(schedule), steps=STEPS_EACH)
        if due.more:
            kept.looked_ms, kept.looked_passed = due.until_ms, kept.looked_passed + due.passed
            return STEPS_EACH
        times, op = fired(schedule, replace(due, passed=due.passed + kept.looked_passed), now_ms)
        try:
            messages = self._messages(schedule, times)
            passing("schedule.firing")
            stored = self._ledger.journal.append(messages, [encode_op(op)])
        except Error as error:
            self._refused(kept, error)
            return STEPS_OF_A_FIRING
        # In the step of the append: a snapshot has to include the firing.
        self._storing[schedule.key] = _Storing(stored, schedule, asyncio.get_running_loop().create_future())
        kept.apply(op)
        stored.add_done_callback(partial(self._stored, kept, schedule, messages))
        return STEPS_OF_A_FIRING + len(due.newest)

    def _messages(self, schedule: Schedule, times: Sequence[int]) -> list[Append]:
        """Returns the messages of a firing. Raises Error if the topic takes none now."""
        topic = self._catalog.topics.by_id(schedule.topic_id)
        assert topic is not None, "the schedules of a deleted topic are gone"
        if self._catalog.draining:
            raise QueueClosed(f"broker {self._runtime.settings.broker_name} is being drained")
        if not topic.permission.writable:
            raise QueueClosed(f"topic {topic.name} is closed for writing here")
        return [self._message(schedule, topic, at_ms) for at_ms in times]

    def _message(self, schedule: Schedule, topic: TopicConfig, at_ms: int) -> Append:
        message = scheduled_message(schedule, topic.name, at_ms, message_id_of(schedule, at_ms))
        entry = checked(message, topic, limits_of(self._runtime), now_ms=self._runtime.clock.now_ms())
        assert isinstance(entry, Append), "a schedule's message has no delivery time"
        if entry.queue_id < 0:
            self._turn += 1
            entry.queue_id = self._turn % topic.write_queues
        return entry

    def _stored(
        self, kept: KeptSchedule, before: Schedule, messages: Sequence[Append], stored: asyncio.Future[None]
    ) -> None:
        """Handles the outcome of a firing."""
        self._storing.pop(before.key).outcome.set_result(None)
        error = None if stored.cancelled() else stored.exception()
        if error is None:
            passing("schedule.fired")
            self.firings += len(messages)
            self.passed += kept.schedule.passed - before.passed
            if kept.schedule.passed > before.passed:
                kept.missed_at_ms = self._runtime.clock.monotonic_ms()
            for entry in messages:
                self._runtime.stats.topic(entry.topic_id).came([len(entry.head) + len(entry.system)])
            if kept.problem:
                log.info("schedule %s of %s fires again", before.name, self._topic(before.topic_id))
            kept.problem = ""
            self._again_ms.pop(before.key, None)
        elif isinstance(error, REFUSED):  # otherwise the group may be in the log, and the next start knows
            kept.schedule = before
            kept.moved()
            self._refused(kept, error)

    def _refused(self, kept: KeptSchedule, error: Error) -> None:
        self._again_ms[kept.schedule.key] = self._runtime.clock.monotonic_ms() + TICK_MS
        self._troubled(kept, f"{error.message}; it is tried again")

    def _troubled(self, kept: KeptSchedule, problem: str) -> None:
        if not kept.problem:
            schedule = kept.schedule
            log.warning("schedule %s of %s does not fire: %s", schedule.name, self._topic(schedule.topic_id), problem)
        kept.problem = problem

    def _topic(self, topic_id: int) -> str:
        return f"topic {self._catalog.topic_name(topic_id)}"

    # ------------------------------------------------------------------------------------------------ changes

    async def put(self, topic: TopicConfig, definition: Schedule) -> KeptSchedule:
        """Creates or changes a schedule; durable when it returns. One with the same definition stays as it is.

        A changed one keeps what it counted, its pause and its message group; its rule counts from now. Raises
        BadRequest, TooManyRequests and the errors of a message that the topic does not take.
        """
        wanted = replace(definition, topic_id=topic.topic_id)
        must_be_legal(wanted)
        try:
            rule = rule_of(wanted, zone_of)
        except ValueError as error:
            raise BadRequest(str(error)) from error
        now_ms = self._runtime.clock.now_ms()
        if rule.next_ms(now_ms) is None:
            raise BadRequest(
                f"the schedule {wanted.cron!r} never fires: no day of the next 50 years matches; change it"
            )
        self._message(wanted, topic, now_ms)
        kept = await self.idle(topic.topic_id, wanted.name)
        _must_stay(kept)
        if kept is not None and kept.schedule.message_group != wanted.message_group:
            # Its broker is the home of the group, and the queue of another group may be at another broker.
            raise BadRequest(
                f"schedule {wanted.name} sends to message group {kept.schedule.message_group!r} and cannot be changed "
                f"to {wanted.message_group!r}; delete it and create it again"
            )
        if kept is not None and is_same(kept.schedule, wanted):
            await self._ledger.journal.settled()
            return kept
        if self._catalog.topics.by_id(topic.topic_id) is None:
            raise NotFound(f"topic {topic.name} was deleted meanwhile")
        if kept is None:
            self.must_have_room(topic)
            uid = f"{self._runtime.rng.getrandbits(128):032x}"
            made = replace(wanted, uid=uid, made_ms=now_ms, done_ms=now_ms)
        else:
            old = kept.schedule
            made = replace(
                wanted,
                uid=old.uid,
                paused=old.paused,
                made_ms=old.made_ms,
                done_ms=max(now_ms, old.done_ms),
                fired=old.fired,
                passed=old.passed,
                last_ms=old.last_ms,
                came_from=old.came_from,
                hop=old.hop,
            )
        kept = self.table.put(made, rule)
        self._run()
        await self._ledger.journal.record(SchedulePut(made))
        return kept

    async def pause(self, topic: TopicConfig, name: str, *, paused: bool) -> KeptSchedule:
        """Pauses a schedule, or resumes it from now on: times of the pause are not missed ones. Raises NotFound."""
        kept = await self._known(topic, name)
        done_ms = kept.schedule.done_ms if paused else self._runtime.clock.now_ms()
        if paused and kept.schedule.paused:
            await self._ledger.journal.settled()
            return kept
        made = replace(kept.schedule, paused=paused, done_ms=done_ms)
        kept.put(made, kept.rule)
        await self._ledger.journal.record(SchedulePut(made))
        return kept

    async def delete(self, topic: TopicConfig, name: str) -> None:
        """Removes a schedule; durable when it returns. Raises NotFound."""
        await self._known(topic, name)
        await self.remove(topic.topic_id, name)

    async def remove(self, topic_id: int, name: str) -> None:
        """Removes a schedule, also one that is handed over."""
        self.table.remove(topic_id, name)
        self._again_ms.pop((topic_id, name), None)
        await self._ledger.journal.record(ScheduleRemoved(topic_id, name))

    async def settled(self) -> None:
        """Ends when all earlier changes are safe."""
        await self._ledger.journal.settled()

    def must_have_room(self, topic: TopicConfig) -> None:
        """Raises TooManyRequests if one more schedule of the topic does not fit."""
        names = {one.topic_id: one.name for one in self._catalog.topics.all()}
        self.table.must_have_room(topic.name, topic.topic_id, names)

    async def write(self, made: Schedule) -> KeptSchedule:
        """Stores a schedule that is handed over, as it is given. It neither fires nor changes until that is safe; if it
        certainly was not stored, the state is what it was.
        """
        kept = self.table.get(*made.key)
        before = None if kept is None else kept.schedule
        stored = self._ledger.journal.record_once(SchedulePut(made))
        outcome = asyncio.get_running_loop().create_future()
        self._storing[made.key] = _Storing(stored, before, outcome)
        kept = self.table.put(made)
        self._read_rule(kept)
        stored.add_done_callback(partial(self._written, kept, before))
        self._run()
        await asyncio.wait({outcome})
        await stored
        return kept

    def _written(self, kept: KeptSchedule, before: Schedule | None, stored: asyncio.Future[None]) -> None:
        key = kept.schedule.key
        self._storing.pop(key).outcome.set_result(None)
        if not stored.cancelled() and isinstance(stored.exception(), REFUSED):
            if before is None:
                self.table.remove(*key)
            else:
                kept.put(before, kept.rule)

    def forget_topic(self, topic_id: int) -> None:
        """Forgets the schedules of a deleted topic; its record in the journal ends them too."""
        self.table.forget_topic(topic_id)
        self._again_ms = {key: at for key, at in self._again_ms.items() if key[0] != topic_id}

    def known(self, topic: TopicConfig, name: str) -> KeptSchedule:
        """Returns a schedule. Raises NotFound."""
        kept = self.table.get(topic.topic_id, name)
        if kept is None:
            raise NotFound(f"topic {topic.name} has no schedule {name[:80]!r}; see `evenq schedule list {topic.name}`")
        return kept

    async def _known(self, topic: TopicConfig, name: str) -> KeptSchedule:
        kept = await self.idle(topic.topic_id, name)
        _must_stay(kept)
        if kept is None:  # its deletion may rest on a record that is not safe yet (decision 62)
            await self._ledger.journal.settled()
        return self.known(topic, name)

    async def idle(self, topic_id: int, name: str) -> KeptSchedule | None:
        """Returns a schedule while nothing of it is being stored; None: there is none."""
        while (storing := self._storing.get((topic_id, name))) is not None:
            await asyncio.wait({storing.outcome})
        return self.table.get(topic_id, name)

    def _dump(self) -> Iterator[SchedulePut]:
        for kept in self.table:
            storing = self._storing.get(kept.schedule.key)
            schedule = kept.schedule if storing is None or not storing.is_refused() else storing.before
            if schedule is not None:
                yield SchedulePut(schedule)


def _must_stay(kept: KeptSchedule | None) -> None:
    if kept is not None and kept.schedule.moving_to:
        raise PreconditionFailed(f"schedule {kept.schedule.name} cannot be changed: {kept.trouble}")
