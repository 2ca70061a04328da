"""Deduplication: a message that its producer sends again is stored once (wire contract 3.7, checklist 20).

`rpc.sending.send` and `rpc.sending.publishing` claim each message before they store it. A retry gets the answer of the
first try: immediately if that is stored, afterwards while it is being written. After a failed first try, the retry is
stored. Messages of a call that was cancelled in the middle (at the producer's deadline, after which it retries) are
looked for in the log. After a restart, or at a group's next leader, the newest messages are read back, from queues and
from timers. Across brokers nothing is known, as the contract says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from evenq.errors import Error, StoreCorrupted
from evenq.model import MessageType
from evenq.model.names import is_system_topic
from evenq.runtime.tasks import done_within, outlasting, spawn
from evenq.store import Append, Kept, RecordBlock, StoredTimer, TimerAppend
from evenq.store.log.record import HEADER_BYTES
from evenq_broker.core.sending.body_digest import mark_of
from evenq_broker.core.sending.dedup_window import QUEUE_BITS, Answer, Key, RecentMessages, key_of, pack_place, topic_of
from evenq_broker.core.sending.validation import DELAYED_MESSAGE
from evenq_broker.core.state.frames import delayed_entry, half_entry
from evenq_broker.core.state.keys import message_id_of
from evenq_broker.core.state.records import encode
from evenq_broker.core.transactions.half_messages import DECIDED_NUMBER, HALF_MESSAGE, number_of, unpack_half
from evenq_broker.loops.state.kernel import Kernel

if TYPE_CHECKING:
    from evenq.model import TopicConfig

log = logging.getLogger(__name__)

_BATCH = 32  # timers in memory at a time; each may have a body of some MiB
TICK_MS = 1_000
RESTORE_MAX_MS = 2_000
"""Longest time of a start for reading back the newest messages."""
RESTORE_READERS = 4
"""Queues that are read at the same time: one that waits for the repair of a record does not delay the others."""
READ_COUNT = 1_000
READ_BYTES = 4 << 20
WHOLE = Kept(head=True, system=True, check=False)
"""Unchecked: damage only gives a wrong message id, which no producer uses."""

_system_length = Struct(f">{HEADER_BYTES - 4}xI").unpack_from  # the last field of a record's header

Claim = tuple[Key, Append | TimerAppend]
T = TypeVar("T")


class Deduplicator:
    """The deduplication window of one broker, and the calls that wait for a first try."""

    def __init__(self, kernel: Kernel) -> None:
        settings = kernel.runtime.settings
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._window_ms = settings.duplicates_window_ms
        self.count_max = settings.duplicates_max
        self.recent = RecentMessages(window_ms=self._window_ms, count_max=self.count_max)
        self.entries = self.recent.entries
        self.claim = self.recent.claim
        self.waits: dict[Key, asyncio.Future[None]] = {}
        """Calls that wait for the first try of their message."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def kept(self, key: Key, result: Answer) -> None:
        """Notes that the message is stored."""
        self.recent.kept(key, result)
        if self.waits:
            self.wake(key)

    def failed(self, key: Key) -> None:
        """Notes that the message is not stored."""
        self.recent.failed(key)
        if self.waits:
            self.wake(key)

    async def first(self, key: Key, stored: Append | TimerAppend) -> Answer | None:
        """Returns the answer of the call that claimed the message. None: it failed; the caller must store it."""
        while True:
            known = self.claim(key, stored)
            if known is stored:
                return None
            if isinstance(known, int | bytes):
                if isinstance(known, int) and isinstance(stored, TimerAppend) and stored.kind == HALF_MESSAGE:
                    known = self._decided_entry(stored)  # before a restart: its own name is not known any more
                self._runtime.stats.topic(topic_of(key)).duplicates += 1
                return known
            await self.outcome(key)

    def claim_all(self, keys: Sequence[Key], messages: Sequence[Append]) -> bool:
        """Claims messages that are all new, in one step. False: nothing was claimed, call `store` instead."""
        entries = self.entries
        while len(entries) + len(keys) > self.count_max and entries:
            self.recent.make_room()
        if len(keys) == 1:
            return entries.setdefault(keys[0], messages[0]) is messages[0]
        if len(set(keys)) < len(keys) or not entries.keys().isdisjoint(keys):
            return False
        entries.update(zip(keys, messages, strict=True))
        return True

    def kept_all(self, keys: Sequence[Key], messages: Sequence[Append]) -> None:
        """Notes that messages claimed by `claim_all` are stored."""
        places = [message.queue_offset << QUEUE_BITS | message.queue_id for message in messages]
        self.entries.update(zip(keys, places, strict=True))
        if self.waits:
            for key in keys:
                self.wake(key)

    async def store(
        self,
        claims: Sequence[Claim],
        append: Callable[[list[Append | TimerAppend]], Awaitable[None]],
        result_of: Callable[[Append | TimerAppend], Answer],
    ) -> list[Answer]:
        """Stores the new messages with one `append`, all or none; returns the answers of all in order."""
        answers: list[Answer | None] = [None] * len(claims)
        left: Sequence[int] = range(len(claims))
        while left:
            known = {at: self.claim(*claims[at]) for at in left}
            mine = [at for at in left if known[at] is claims[at][1]]
            if mine:
                await self._append([claims[at] for at in mine], append)
                for at in mine:
                    key, stored = claims[at]
                    answers[at] = result = result_of(stored)
                    self.kept(key, result)
            waiting: list[int] = []
            for at in left:
                answer_or_rival = known[at]
                if isinstance(answer_or_rival, int | bytes):
                    answers[at] = answer_or_rival
                    self._runtime.stats.topic(topic_of(claims[at][0])).duplicates += 1
                elif answer_or_rival is not claims[at][1]:
                    waiting.append(at)
            # Storing its own took a while: the others may have their outcome by now, so check before waiting.
            if waiting and not mine:
                await self.outcome(claims[waiting[0]][0])
            left = waiting
        return [result for result in answers if result is not None]

    async def _append(
        self, claims: list[Claim], append: Callable[[list[Append | TimerAppend]], Awaitable[None]]
    ) -> None:
        try:
            await append([stored for _, stored in claims])
        except BaseException as error:
            self.broken(claims, error)
            raise

    def broken(self, claims: Sequence[Claim], error: BaseException) -> None:
        """Handles a failed store; if its call was cancelled, finds out whether the messages are stored."""
        if isinstance(error, asyncio.CancelledError):
            self._spawn(self._look(claims), "look for messages of a call that was broken off")
        else:
            for key, _ in claims:
                self.failed(key)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work to its end, also when the call is cancelled meanwhile."""
        return await outlasting(self._spawn(work, "store a message"))

    def start(self) -> None:
        """Starts to forget old ids."""
        self._runtime.spawn(self._forget(), name="forget old message ids")

    async def close(self) -> None:
        """Ends running searches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------ inside

    async def _look(self, claims: Sequence[Claim]) -> None:
        store = self._ledger.store
        try:
            await store.append_state(encode([]))  # afterwards all groups queued before it have their outcome
        except Error as error:
            log.info("a state record was not written: %s", error.message)
            # A leader that lacks copies takes no record, and may still commit earlier ones.
            await store.settle(self._window_ms)
        for key, stored in claims:
            if isinstance(stored, Append) and await self._is_there(stored):
                self.kept(key, pack_place(stored.queue_id, stored.queue_offset))
            else:
                self.failed(key)

    async def _is_there(self, stored: Append) -> bool:
        if stored.queue_offset < 0:
            return False
        try:
            messages = await self._ledger.store.read_at(stored.topic_id, stored.queue_id, [stored.queue_offset])
        except StoreCorrupted:
            return False
        # The offset alone proves nothing: a failed append releases it, and the next message of the queue gets it.
        return [(one.head, one.system) for one in messages] == [(stored.head, stored.system)]

    async def outcome(self, key: Key) -> None:
        """Waits until the call that stores the message has its outcome."""
        waiting = self.waits.get(key)
        if waiting is None:
            waiting = self.waits[key] = asyncio.get_running_loop().create_future()
        await asyncio.wait({waiting})

    def wake(self, key: Key) -> None:
        """Wakes sends that wait for the message."""
        waiting = self.waits.pop(key, None)
        if waiting is not None:
            waiting.set_result(None)

    async def _forget(self) -> None:
        clock = self._runtime.clock
        step_ms = max(10, min(TICK_MS, self._window_ms // 8))
        while True:
            self.recent.tick(clock.monotonic_ms())
            await clock.sleep_ms(step_ms)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = spawn(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------------------------------------------ after a restart

    async def restore(self) -> None:
        """Reads back messages of the last window, up to the limits of number and time."""
        begun_ms = self._runtime.clock.monotonic_ms()
        until_ms = begun_ms + RESTORE_MAX_MS
        # The last window of the log: the previous leader may have had another clock.
        since_ms = min(self._runtime.clock.now_ms(), self._ledger.store.opened_ms) - self._window_ms
        await self._restore_timers(since_ms, self.count_max // 2, until_ms=begun_ms + RESTORE_MAX_MS // 2)
        queues = iter(self._queues())
        reading = asyncio.gather(
            *(
                self._spawn(self._restore_queues(queues, since_ms, until_ms), "read back message ids")
                for _ in range(RESTORE_READERS)
            )
        )
        left_ms = until_ms - self._runtime.clock.monotonic_ms()
        if await done_within(asyncio.shield(reading), left_ms, clock=self._runtime.clock):
            reading.result()  # raises an error after which a start cannot continue
        if next(queues, None) is not None or not reading.done():
            log.info("only %d message ids from before the restart were restored", len(self.recent))

    def _queues(self) -> list[tuple[TopicConfig, int]]:
        """Returns the queues, also removed ones: the first try may lie there. Lite topics come last."""
        known = [(self._catalog.topics.by_id(topic_id), queue_id) for topic_id, queue_id in self._ledger.store.queues()]
        mine = [(topic, queue_id) for topic, queue_id in known if topic is not None and not is_system_topic(topic.name)]
        return sorted(mine, key=lambda one: one[0].message_type is MessageType.LITE)

    async def _restore_queues(self, queues: Iterator[tuple[TopicConfig, int]], since_ms: int, until_ms: int) -> None:
        """Reads queue after queue until none or no time is left. A begun one is read to its end, also while serving."""
        while self._runtime.clock.monotonic_ms() < until_ms and (most := self.count_max - len(self.entries)) > 0:
            topic, queue_id = next(queues, (None, 0))
            if topic is None:
                return
            await self._restore_queue(topic, queue_id, since_ms, most)

    async def _restore_queue(self, topic: TopicConfig, queue_id: int, since_ms: int, most: int) -> None:
        store, ids = self._ledger.store, (topic.topic_id, queue_id)
        low, high = store.queue_range(*ids)
        if low == high:
            return
        try:
            at = max(await store.offset_at(*ids, since_ms), high - most)
            while at < high:
                block = await store.read_block(*ids, at, count_max=READ_COUNT, bytes_max=READ_BYTES, kept=WHOLE)
                self._remember(block, *ids)
                if block.next_offset <= at:
                    break
                at = block.next_offset
        except StoreCorrupted as error:
            log.warning("message ids of topic %s were not restored: %s", topic.name, error.message)

    async def _restore_timers(self, since_ms: int, most: int, *, until_ms: int) -> None:
        """Restores delayed and half messages that are in no queue yet, with the answers of their first tries."""
        count = 0
        try:
            async with aclosing(self._ledger.store.timers.newest(batch=_BATCH)) as newest:
                async for timer in newest:
                    if timer.store_ms < since_ms or count >= most or self._runtime.clock.monotonic_ms() >= until_ms:
                        break
                    topic = self._catalog.topics.by_id(timer.topic_id)
                    message_id = message_id_of(timer.system)
                    if topic is None or is_system_topic(topic.name) or not message_id:
                        continue  # staged rows have no id: their own numbers identify repeated blocks
                    answer = self._answer_of(timer, message_id)
                    if answer is not None:
                        head = unpack_half(timer.head)[1] if timer.kind == HALF_MESSAGE else timer.head
                        self.entries[key_of(message_id, mark_of(head, timer.system), timer.topic_id)] = answer
                        count += 1
        except Error as error:
            log.warning("message ids of delayed and half messages were not restored: %s", error.message)

    def _answer_of(self, timer: StoredTimer, message_id: bytes) -> bytes | None:
        ledger = self._ledger
        if timer.kind == DELAYED_MESSAGE:
            handle = ledger.recalls.make(timer.topic_id, timer.log_offset, timer.due_ms, message_id.decode())
            return delayed_entry(message_id, handle)
        if timer.kind == HALF_MESSAGE:
            number = number_of(timer.log_offset, timer.head)
            return half_entry(message_id, ledger.transaction_ids.make(timer.topic_id, number))
        return None

    def _decided_entry(self, stored: TimerAppend) -> bytes:
        """Answers for a half message that is already decided: another decision of its sender changes nothing."""
        name = self._ledger.transaction_ids.make(stored.topic_id, DECIDED_NUMBER)
        return half_entry(message_id_of(stored.system), name)

    def _remember(self, block: RecordBlock, topic_id: int, queue_id: int) -> None:
        # Up to `duplicates_max` messages before a start serves: bytes, not objects.
        entries, data, at = self.recent.entries, b"".join(block.pieces()), 0
        for offset, size in enumerate(block.sizes, block.first_offset):
            end = at + size
            middle = end - _system_length(data, at)[0]
            head, system = data[at + HEADER_BYTES : middle], data[middle:end]
            at = end
            if message_id := message_id_of(system):
                entries.setdefault(key_of(message_id, mark_of(head, system), topic_id), pack_place(queue_id, offset))
        block.give_back()
