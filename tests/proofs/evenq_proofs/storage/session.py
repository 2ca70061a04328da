"""A store that is opened, used and compared with its history, over the public API only.

The owner's state is a count: record n is `state_of(n)`, a snapshot is the number of records in it, so a start can tell
exactly how many it was given back, and that each had its bytes and its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoredMessage, StoreOptions, TimerAppend
from evenq_proofs.storage.history import NEVER, Group, History, Queue, state_of
from evenq_proofs.storage.trace_disk import TraceDisk

OPTIONS = StoreOptions(
    segment_bytes=8192, flush=FlushMode.SYNC, cache_bytes=6_000, retention_ms=20_000, retention_hour=-1
)
READ_MAX = 1 << 30
TIMER_QUEUE: Queue = (9, 0)
"""Where all timers of a workload go; nothing else goes there."""


class Violation(AssertionError):
    """The store broke a promise."""


@dataclass
class Session:
    """One opened store and what it gave back to its owner."""

    disk: TraceDisk
    history: History
    options: StoreOptions
    clock: FakeClock
    base: int = 0
    """Operations of the history before this disk's first one."""
    snapshot: int = 0
    replayed: list[tuple[int, bytes]] = field(default_factory=list)
    waiting: list[Group] = field(default_factory=list)
    firing: bool = False
    store: MessageStore = field(init=False)

    @classmethod
    async def open(
        cls, disk: TraceDisk, history: History, options: StoreOptions = OPTIONS, *, clock: FakeClock | None = None,
        base: int = 0, **more: Any,
    ) -> Session:  # fmt: skip
        """Open, and check what came back of the owner's state. Raises what `MessageStore.open` raises."""
        session = cls(disk, history, options, clock or FakeClock(), base)
        session.store = await MessageStore.open(
            Path("trace"), options, clock=session.clock, disk=disk, broker_name="broker-a",
            on_state=lambda log_offset, payload: session.replayed.append((log_offset, payload)),
            on_snapshot=session._on_snapshot, keys_of=keys_of, **more,
        )  # fmt: skip
        disk.before = session._note_acks
        session._note_synced()
        return session

    @property
    def at(self) -> int:
        """Operations done so far."""
        return self.base + len(self.disk.ops)

    def _on_snapshot(self, payload: bytes) -> None:
        if not payload.isdigit():
            raise Violation(f"the snapshot given back is {payload[:40]!r}")
        self.snapshot = int(payload)

    # -- use ----------------------------------------------------------------------------------------------------------

    def append(
        self, messages: list[Append], *, state: bool = False, timers: Sequence[TimerAppend] = (),
        ended: Sequence[TimerAppend] = (),
    ) -> Group:  # fmt: skip
        """Start one append call; a refusal is raised and leaves no trace."""
        number = self.history.states if state else None
        group = Group(messages, number, self.at, timers=list(timers), ended=[timer.head for timer in ended])
        if timers or ended:
            payload = state_of(self.history.states) if state else b""
            ids = [timer.log_offset for timer in ended]
            group.future = self.store.append(messages, state=payload, timers=timers, ended=ids)
        elif not messages:
            assert state
            group.future = self.store.append_state(state_of(self.history.states))
        elif state:
            group.future = self.store.append(messages, state=state_of(self.history.states))
        else:
            group.future = self.store.append(messages)
        self.history.states += state
        self.history.groups.append(group)
        self.waiting.append(group)
        return group

    async def settle(self) -> list[BaseException]:
        """Wait for what was started; returns what failed. Groups refused for good leave the history."""
        groups, self.waiting = self.waiting, self.waiting
        failures: list[BaseException] = []
        for group in list(groups):
            assert group.future is not None
            try:
                await group.future
            except Exception as error:  # noqa: BLE001 - the caller judges
                failures.append(error)
        self._note_acks()
        self.waiting = []
        self._note_synced()
        return failures

    def take_back(self, groups: list[Group]) -> None:
        """These were refused for good: they must never appear, and their state numbers are free again."""
        for group in groups:
            self.history.groups.remove(group)
            self.history.states -= group.state is not None

    async def flush(self) -> None:
        await self.store.flush()
        self._note_synced()

    async def checkpoint(self) -> None:
        await self.store.checkpoint()
        self._note_synced()

    async def clean(self) -> None:
        await self.store.clean()
        self._note_synced()

    async def save_snapshot(self) -> None:
        await self.store.save_snapshot(b"%d" % self.history.states)
        self._note_synced()

    async def close(self) -> None:
        await self.store.close()
        self._note_acks()
        self.disk.before = lambda: None

    def _note_acks(self) -> None:
        """Before each operation: who was answered by now?"""
        for group in self.waiting:
            future = group.future
            assert future is not None
            if group.log_end == NEVER and future.done() and not future.cancelled() and future.exception() is None:
                group.acked_at = self.at
                group.log_end = self.store.stats.log_end

    def _note_synced(self) -> None:
        self.history.synced.append((self.at, self.store.stats.log_synced))

    async def cancel(self, timer: TimerAppend) -> None:
        """Cancel a timer; noted if it was still pending."""
        tried = self.at
        place = len(self.history.cancelled)
        self.history.cancelled.append((tried, NEVER, timer.head))
        done = await self.store.cancel_timers([timer.log_offset])
        self.history.cancelled[place] = (tried, self.at if done else NEVER, timer.head)

    # -- comparison ---------------------------------------------------------------------------------------------------

    def states_found(self) -> int:
        """State records the owner has back; each was checked for its bytes, order and place."""
        count = self.snapshot
        if not self.replayed:
            return count
        groups = [group for group in self.history.groups if group.state is not None]
        first = None
        for number, group in enumerate(groups):
            if state_of(number) == self.replayed[0][1]:
                first = number
            assert group.state == number
        if first is None:
            raise Violation(f"a state record nobody wrote came back: {self.replayed[0][1][:60]!r}")
        if first > count:
            raise Violation(f"state records {count} to {first} are missing: the snapshot holds {count}")
        last = -1
        for number, (log_offset, payload) in enumerate(self.replayed, first):
            if number >= len(groups) or payload != state_of(number):
                raise Violation(f"state record {number} came back as {payload[:60]!r}")
            if log_offset <= last:
                raise Violation(f"state record {number} came back out of order")
            last = log_offset
        return max(count, first + len(self.replayed))

    async def compare(self, *, least: int, most: int, at: int, live: bool = False) -> int:
        """Read everything. Returns how many groups of the history are there; Violation if that is no prefix between
        `least` and `most`, or if any byte differs. `live`: the store was used since it was opened, so its owner knows
        the state records without it.
        """
        found_states = self.history.states if live else self.states_found()
        queues = {(m.topic_id, m.queue_id) for group in self.history.groups for m in group.messages}
        ends = {queue: self.store.queue_range(*queue)[1] for queue in queues}
        prefix = self._prefix(ends, found_states, least=least, most=most)
        wanted: dict[Queue, list[Append]] = {queue: [] for queue in queues}
        for group in self.history.groups[:prefix]:
            for message in group.messages:
                wanted[message.topic_id, message.queue_id].append(message)
        for queue, messages in wanted.items():
            await self._compare_queue(queue, messages, self.expired_before(queue, at))
        return prefix

    def expired_before(self, queue: Queue, at: int) -> int:
        """Messages of a queue stored before this time may be gone after this number of operations."""
        del queue
        return self.history.expired_before(at)

    def _prefix(self, ends: dict[Queue, int], states: int, *, least: int, most: int) -> int:
        left = dict(ends)
        found = f"queue ends {ends}, {states} state records"
        for number, group in enumerate([*self.history.groups, None]):
            if states == 0 and not any(left.values()):
                # Groups that follow would each add something, so this is the only prefix that fits.
                if not least <= number <= most:
                    raise Violation(f"{number} append calls are there; at least {least} and at most {most} should be")
                return number
            if group is None:
                break
            for message in group.messages:
                left[message.topic_id, message.queue_id] -= 1
            states -= group.state is not None
        raise Violation(
            f"what is there is no row of whole append calls: {found}; "
            f"left over {left} and {states} states; {least} to {most} calls are due"
        )

    async def compare_found(self, prefix: int, at: int) -> None:
        """The index finds what it should, newest first, and nothing else."""
        del at
        for topic_id, key in ((1, b"k0"), (1, b"k5"), (7, b"k1"), (2, b"nobody")):
            wanted = [
                message.log_offset
                for group in self.history.groups[:prefix]
                for message in group.messages
                if message.topic_id == topic_id and key in keys_of(message.head, message.system)
                and message.queue_offset >= self.store.queue_range(topic_id, message.queue_id)[0]
            ]  # fmt: skip
            found = await self.store.find(topic_id, key, count_max=100_000, bytes_max=READ_MAX)
            if [message.log_offset for message in found] != wanted[::-1]:
                places = [message.log_offset for message in found]
                raise Violation(f"{key!r} of topic {topic_id} finds {places}, {wanted[::-1]} were stored")

    async def check_timers(self, prefix: int, at: int, *, promised: bool = True) -> list[bytes]:
        """Each timer that was put was delivered once, was cancelled, or is pending: none is gone, none is there twice.
        Returns what was delivered (its heads), as far as retention left it.
        """
        groups = self.history.groups[:prefix]
        put = {timer.head: timer for group in groups for timer in group.timers}
        low, high = self.store.queue_range(*TIMER_QUEUE)
        heads = await self._fired(put) if high else []
        ended = {head for group in groups for head in group.ended}
        perhaps, surely = set(ended), set(ended)
        for tried, done, head in self.history.cancelled:
            if promised and done <= at and head in heads:
                raise Violation(f"a timer fired that was cancelled at {tried}: {head!r}")
            if tried <= at and head in put:
                perhaps.add(head)
            if promised and done <= at and head in put:
                surely.add(head)
        pending = self.store.timers.stats.pending
        most, least = len(put) - high - len(surely), len(put) - high - len(perhaps.difference(heads))
        if not least <= pending <= most:
            raise Violation(
                f"{len(put)} timers were put, {high} fired, {len(surely)} to {len(perhaps)} were ended, "
                f"but {pending} are pending (messages before {low} are not there any more)"
            )
        return heads

    async def compare_timers(self, prefix: int, at: int, *, promised: bool = True, rotten: int = 0) -> None:
        """Let all timers fire: each that was put is delivered once, unless it was cancelled; and nothing else is. Up
        to `rotten` are not delivered if the store counts them as damaged.
        """
        put = {timer.head: timer for group in self.history.groups[:prefix] for timer in group.timers}
        if not put:
            return
        if not self.firing:
            self.store.fire_timers()
            self.firing = True
        ahead = max(timer.due_ms for timer in put.values()) - self.clock.now_ms()
        self.clock.jump_wall(max(0, ahead) + 1)  # it is dear to go there in steps of the flusher
        for _ in range(100):
            if self.store.timers.stats.pending == self.store.timers.stats.damaged:
                break
            if self.store.failure is not None:
                raise Violation(f"timers stop the store: {self.store.failure}")
            await self.clock.advance(200)
        else:
            raise Violation(f"{self.store.timers.stats.pending} timers are due and do not fire")
        damaged = self.store.timers.stats.damaged
        if damaged > rotten:
            raise Violation(f"{damaged} timers are damaged")
        heads = await self.check_timers(prefix, at, promised=promised)
        never = {head for tried, _, head in self.history.cancelled if tried <= at}
        lost = put.keys() - never - set(heads)
        if len(lost) > damaged + self.store.queue_range(*TIMER_QUEUE)[0]:
            raise Violation(f"timers are lost: {sorted(lost)}")

    async def _fired(self, put: dict[bytes, TimerAppend]) -> list[bytes]:
        """Heads of what timers became: once each, not early, as it was put."""
        start, high = self.store.queue_range(*TIMER_QUEUE)
        messages: list[StoredMessage] = []
        while start < high:
            result = await self.store.read(*TIMER_QUEUE, start, count_max=100_000, bytes_max=READ_MAX)
            if not result.messages:
                raise Violation(f"the timers' queue has nothing at {start} of {high}")
            messages += result.messages
            start += len(result.messages)
        heads = [message.head for message in messages]
        if start != high or len(set(heads)) != len(heads):
            twice = {head for head in heads if heads.count(head) > 1}
            raise Violation(f"timers' messages up to {start} of {high} are served, {twice} twice")
        for message in messages:
            timer = put.get(message.head)
            if timer is None:
                raise Violation(f"a timer fired that was not put: {message!r}")
            if message.system != timer.system or message.tag_hash != timer.tag_hash or message.store_ms < timer.due_ms:
                raise Violation(f"{timer!r} fired as {message!r} at {message.store_ms}")
        return heads

    async def _compare_queue(self, queue: Queue, wanted: list[Append], expired_ms: int) -> None:
        low, high = self.store.queue_range(*queue)
        if low > high or any(message.store_ms >= expired_ms for message in wanted[:low]):
            raise Violation(f"queue {queue} is {low}..{high}: messages are gone that are younger than {expired_ms}")
        start = low
        while start < high:
            result = await self.store.read(*queue, start, count_max=200, bytes_max=READ_MAX)
            if not result.messages:
                raise Violation(f"queue {queue} has nothing at {start} of {low}..{high}")
            for message in result.messages:
                due = wanted[start]
                if (
                    message.queue_offset != start
                    or message.head != due.head
                    or message.system != due.system
                    or message.tag_hash != due.tag_hash
                    or message.born_ms != due.born_ms
                    or message.store_ms != due.store_ms
                    or message.log_offset != due.log_offset
                ):
                    raise Violation(f"queue {queue} has {message!r} at {start}, {due!r} was stored")
                start += 1


def keys_of(head: bytes, system: bytes) -> list[bytes]:
    """Keys of a message: one of seven by its number, and its number."""
    del head
    number = int(system[3:])
    return [b"k%d" % (number % 7), system]


def asynchronous(options: StoreOptions = OPTIONS) -> StoreOptions:
    """The same store that answers before the sync."""
    return replace(options, flush=FlushMode.ASYNC)
