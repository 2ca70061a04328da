"""A message that its producer sends again is stored once (wire contract 3.7, checklist 20).

`rpc.sending.send` and `rpc.sending.publishing` claim each message before they store it. A retry is answered like the
first: at once when that is stored, after it while it is being written; one whose first try failed is stored. A call
that was broken off in the middle (the producer's deadline, and that is when it tries again) leaves its messages to be
looked for in the log. After a restart, or at a group's next leader, the newest messages are read back: those of the
queues, and those that are timers yet. Across brokers nothing is known, as the contract says.
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
from evenq.runtime.tasks import outlasting, spawn
from evenq.store import Append, Kept, RecordBlock, StoredTimer, TimerAppend
from evenq.store.log.record import HEADER_BYTES
from evenq_broker.core.sending.dedup_window import QUEUE_BITS, Answer, Key, RecentMessages, key_of, pack_place, topic_of
from evenq_broker.core.sending.timer_entries import delayed_entry, half_entry
from evenq_broker.core.sending.validation import DELAYED_MESSAGE, digest_of
from evenq_broker.core.state.keys import message_id_of
from evenq_broker.core.state.records import encode
from evenq_broker.core.transactions.half_messages import DECIDED_NUMBER, HALF_MESSAGE, number_of
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.state.signals import done_within
from evenq_broker.runtime import Runtime

if TYPE_CHECKING:
    from evenq.model import TopicConfig

__all__ = ["Claim", "Deduplicator"]

log = logging.getLogger(__name__)

TICK_MS = 1_000
RESTORE_MAX_MS = 2_000
"""Longest time of a start for reading back what came last."""
RESTORE_READERS = 4
"""Queues that are read at the same time: one that waits for the repair of a record does not delay the others."""
READ_COUNT = 1_000
READ_BYTES = 4 << 20
WHOLE = Kept(head=True, system=True, check=False)
"""Damage gives a wrong message id here, which nobody asks for."""

_system_length = Struct(f">{HEADER_BYTES - 4}xI").unpack_from  # the last field of a record's header

Claim = tuple[Key, Append | TimerAppend]
T = TypeVar("T")


class Deduplicator:
    """The window of one broker, and those who wait for a first try."""

    def __init__(self, runtime: Runtime, catalog: Catalog, ledger: Ledger) -> None:
        settings = runtime.settings
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._window_ms = settings.duplicates_window_ms
        self.count_max = settings.duplicates_max
        self.recent = RecentMessages(window_ms=self._window_ms, count_max=self.count_max)
        self.entries = self.recent.entries
        self.claim = self.recent.claim
        self.waits: dict[Key, asyncio.Future[None]] = {}
        """Those who came while the first try was under way."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def kept(self, key: Key, result: Answer) -> None:
        """The message is stored."""
        self.recent.kept(key, result)
        if self.waits:
            self.wake(key)

    def failed(self, key: Key) -> None:
        """The message is not stored."""
        self.recent.failed(key)
        if self.waits:
            self.wake(key)

    async def first(self, key: Key, stored: Append | TimerAppend) -> Answer | None:
        """For a message that another call claimed: what that was answered. None: its try failed, and now the message
        is the caller's to store.
        """
        while True:
            known = self.claim(key, stored)
            if known is stored:
                return None
            if isinstance(known, int | bytes):
                if isinstance(known, int) and isinstance(stored, TimerAppend) and stored.kind == HALF_MESSAGE:
                    known = self._decided_entry(stored)  # before a restart: its own name is not known any more
                self._runtime.stats.topic(topic_of(key)).duplicates += 1
                return known
            await self._wait(key)

    def claim_all(self, keys: Sequence[Key], messages: Sequence[Append]) -> bool:
        """Claim messages that are all new, in one go. False: nothing was claimed, `store` is to look at each."""
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
        """What `claim_all` claimed is stored."""
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
        """Store those that are new, with one `append`, all or none; the answers of all in order."""
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
            # Storing its own took a while: the others may have their outcome by now, so look before waiting.
            if waiting and not mine:
                await self._wait(claims[waiting[0]][0])
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
        """Storing the messages ended with an error; if their call was broken off, find out whether they are stored."""
        if isinstance(error, asyncio.CancelledError):
            self._spawn(self._look(claims), "look for messages of a call that was broken off")
        else:
            for key, _ in claims:
                self.failed(key)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to its end, also when the call is broken off meanwhile."""
        return await outlasting(self._spawn(work, "store a message"))

    def start(self) -> None:
        """Forget old ids from now on."""
        self._runtime.spawn(self._forget(), name="forget old message ids")

    async def close(self) -> None:
        """End what still looks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------ inside

    async def _look(self, claims: Sequence[Claim]) -> None:
        store = self._ledger.store
        try:
            await store.append_state(encode([]))  # whatever was queued before it has its outcome afterwards
        except Error as error:
            log.info("a state record was not written: %s", error.message)
            # A leader that lacks copies takes no record, and may still commit what it took before.
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
        # The place alone proves nothing: an append that failed gives it back, and the next message of the queue has it.
        return [(one.head, one.system) for one in messages] == [(stored.head, stored.system)]

    async def _wait(self, key: Key) -> None:
        waiting = self.waits.get(key)
        if waiting is None:
            waiting = self.waits[key] = asyncio.get_running_loop().create_future()
        await asyncio.wait({waiting})

    def wake(self, key: Key) -> None:
        """Sends that wait for it look again."""
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
        """Read back what the queues got in the last window, as many and for as long as is allowed."""
        begun_ms = self._runtime.clock.monotonic_ms()
        until_ms = begun_ms + RESTORE_MAX_MS
        # The last window of the log: the leader before may have had another clock.
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
            reading.result()  # raises what a start cannot continue after
        if next(queues, None) is not None or not reading.done():
            log.info("only %d message ids from before the restart were restored", len(self.recent))

    def _queues(self) -> list[tuple[TopicConfig, int]]:
        """Also those that their topics have no more, since the first try may lie in one; lite topics, of which there
        may be very many, come last.
        """
        known = [(self._catalog.topics.by_id(topic_id), queue_id) for topic_id, queue_id in self._ledger.store.queues()]
        mine = [(topic, queue_id) for topic, queue_id in known if topic is not None and not is_system_topic(topic.name)]
        return sorted(mine, key=lambda one: one[0].message_type is MessageType.LITE)

    async def _restore_queues(self, queues: Iterator[tuple[TopicConfig, int]], since_ms: int, until_ms: int) -> None:
        """The next queue, until none is left, or no time. A queue that is being read is read to its end, also while
        the broker serves: its reader may have waited for the repair of a damaged record.
        """
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
        """Delayed and half messages that are in no queue yet, with the answers that their first tries got."""
        count = 0
        try:
            async with aclosing(self._ledger.store.timers.newest()) as newest:
                async for timer in newest:
                    if timer.store_ms < since_ms or count >= most or self._runtime.clock.monotonic_ms() >= until_ms:
                        break
                    topic = self._catalog.topics.by_id(timer.topic_id)
                    message_id = message_id_of(timer.system)
                    if topic is None or is_system_topic(topic.name) or not message_id:
                        continue  # staged rows have no id: their own numbers tell repeated blocks
                    answer = self._answer_of(timer, message_id)
                    if answer is not None:
                        self.entries[key_of(message_id, digest_of(timer.system), timer.topic_id)] = answer
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
        """For a half message that is a message of its topic already: what its sender decides now changes nothing."""
        name = self._ledger.transaction_ids.make(stored.topic_id, DECIDED_NUMBER)
        return half_entry(message_id_of(stored.system), name)

    def _remember(self, block: RecordBlock, topic_id: int, queue_id: int) -> None:
        # Up to `duplicates_max` messages, before a start serves: bytes and not objects.
        entries, data, at = self.recent.entries, b"".join(block.pieces()), 0
        for offset, size in enumerate(block.sizes, block.first_offset):
            end = at + size
            system = data[end - _system_length(data, at)[0] : end]
            at = end
            if message_id := message_id_of(system):
                entries.setdefault(key_of(message_id, digest_of(system), topic_id), pack_place(queue_id, offset))
        block.give_back()
