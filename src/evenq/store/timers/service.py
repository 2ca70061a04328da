"""Fires timers: sleeps until the next one is due, takes due ones in batches, asks the owner what each becomes, and
appends that together with the timers' end as one group (RD-17, RD-18).

So a timer fires exactly once in the log: its message and its end survive together or not at all. A batch that cannot
be stored now (full, overloaded) goes back and is tried again. The wall clock may jump: it is looked at five times a
second, and what has fired has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from evenq.errors import Error, StoreCorrupted, StorePoisoned
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.store.messages import Append, StoredTimer, TimerAppend
from evenq.store.timers.keeper import NEVER, AppendGroup, ReadTimers, TimerKeeper
from evenq.store.timers.keys import id_of

__all__ = ["DELAYED_MESSAGE", "Decision", "OnDue", "TimerService", "deliver"]

log = logging.getLogger(__name__)

DELAYED_MESSAGE: Final = 1
"""The kind of a timer that becomes an ordinary message of its topic and queue."""
BATCH_MAX: Final = 512
BATCH_BYTES: Final = 4 << 20
SLEEP_MAX_MS: Final = 200
RETRY_MS: Final = 200
ASIDE_MS: Final = 10_000  # for what the owner or the store cannot take at all
ASIDE_MAX: Final = 4_096

Decision = Append | TimerAppend | None
"""What a due timer becomes: a message, another timer (renewed, or of another kind), or nothing."""
OnDue = Callable[[list[StoredTimer]], Sequence[Decision]]
"""Called on the loop; as many decisions as timers. It may be asked about the same timer again if the store was full."""


def deliver(timers: list[StoredTimer]) -> list[Decision]:
    """The same messages, now consumable in their topic and queue (RD-17)."""
    return [
        Append(timer.topic_id, timer.queue_id, timer.tag_hash, timer.born_ms, timer.head, timer.system)
        for timer in timers
    ]


class TimerService:
    """One task that fires the timers of one store."""

    def __init__(
        self, keeper: TimerKeeper, clock: Clock, read_timers: ReadTimers, append: AppendGroup,
        on_due: OnDue = deliver, *, batch_max: int = BATCH_MAX, batch_bytes: int = BATCH_BYTES,
    ) -> None:  # fmt: skip
        self._keeper = keeper
        self._pending = keeper.pending
        self._clock = clock
        self._read_timers = read_timers
        self._append = append
        self._on_due = on_due
        self._batch_max = batch_max
        self._batch_bytes = batch_bytes
        self._wake: asyncio.Future[None] | None = None
        self._aside: list[tuple[int, bytes]] = []
        """(monotonic ms, key) of timers that cannot be fired for a while."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Fire from now on."""
        self._keeper.on_ready = self._ready
        self._task = spawn(self._run(), name="store-timers")

    async def stop(self) -> None:
        """Fire no more; what is on its way to the disk still gets there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                pause_ms = await self._fire_due()
            except StorePoisoned:
                return  # the owner was told; a restart fires what is left
            except StoreCorrupted as error:
                self._keeper.failed(str(error))
                return
            if pause_ms:
                await self._clock.sleep_ms(pause_ms)
            else:
                await self._wait()

    async def _fire_due(self) -> int:
        """Fire until nothing is due. Returns a pause, ms, before it makes sense to try again; 0 without trouble."""
        while True:
            self._take_back_aside()
            room = ASIDE_MAX - len(self._aside)
            keys = self._pending.due(self._clock.now_ms(), min(self._batch_max, room))
            self._keeper.kick()
            if not keys:
                return 0 if room else RETRY_MS
            try:
                while keys:
                    done = await self._fire(keys)
                    del keys[:done]
            except Error as error:
                if isinstance(error, StorePoisoned | StoreCorrupted) or not error.retryable:
                    raise
                self._keeper.retried()
                log.warning("timers cannot fire now", extra={"error": str(error), "retry_in_ms": RETRY_MS})
                return RETRY_MS
            finally:
                self._pending.give_back(keys)

    async def _fire(self, keys: list[bytes]) -> int:
        """Fire as many as fit a batch; returns how many of `keys` are done with, fired or put aside."""
        found = await self._read_timers([id_of(key) for key in keys], self._batch_bytes)
        batch = keys[: len(found)]
        timers = [timer for timer in found if timer is not None]
        if len(timers) < len(batch):
            missing = next(id_of(key) for key, timer in zip(batch, found, strict=True) if timer is None)
            raise StoreCorrupted(f"the log has no whole timer at log offset {missing}, although it is pending")
        try:
            await self._store(timers)
        except Error as error:
            if isinstance(error, StorePoisoned) or error.retryable:
                raise
            await self._one_by_one(batch, timers)
        except Exception:
            log.exception("the owner of the timers failed; trying again later", extra={"timers": len(batch)})
            self._put_aside(batch)
        else:
            self._keeper.fired(batch)
        return len(batch)

    async def _store(self, timers: list[StoredTimer]) -> None:
        messages: list[Append] = []
        renewed: list[TimerAppend] = []
        for decision in self._decisions(timers):
            match decision:
                case Append():
                    messages.append(decision)
                case TimerAppend():
                    renewed.append(decision)
                case None:
                    pass
        await asyncio.shield(self._append(messages, timers=renewed, ended=[timer.log_offset for timer in timers]))

    def _decisions(self, timers: list[StoredTimer]) -> Sequence[Decision]:
        decisions = self._on_due(timers)
        if len(decisions) != len(timers):
            raise ValueError(f"{len(decisions)} decisions for {len(timers)} due timers")
        return decisions

    async def _one_by_one(self, batch: list[bytes], timers: list[StoredTimer]) -> None:
        """The store will not take the batch as a whole: find out which of them."""
        for key, timer in zip(batch, timers, strict=True):
            try:
                await self._store([timer])
            except Error as error:
                if isinstance(error, StorePoisoned):
                    raise
                log.error("a timer cannot fire", extra={"timer": timer.log_offset, "error": str(error)})  # noqa: TRY400  # the sentence says all
                self._put_aside([key])
            else:
                self._keeper.fired([key])

    def _put_aside(self, keys: list[bytes]) -> None:
        until_ms = self._clock.monotonic_ms() + ASIDE_MS
        self._aside += [(until_ms, key) for key in keys]

    def _take_back_aside(self) -> None:
        now_ms = self._clock.monotonic_ms()
        while self._aside and self._aside[0][0] <= now_ms:
            self._pending.give_back([self._aside.pop(0)[1]])

    async def _wait(self) -> None:
        """Until the next timer is due, an earlier one was put, or more was read; at most so long that a jump of the
        wall clock is seen.
        """
        next_ms = self._pending.next_ready_ms()
        self._keeper.alarm_ms = NEVER if next_ms is None else next_ms
        wait_ms = SLEEP_MAX_MS
        if next_ms is not None:
            wait_ms = min(wait_ms, next_ms - self._clock.now_ms())
        if wait_ms <= 0:
            return
        self._wake = asyncio.get_running_loop().create_future()
        sleeper = spawn(self._sleep(wait_ms), name="store-timers-sleep")
        try:
            await self._wake
        finally:
            self._wake = None
            sleeper.cancel()
            await asyncio.gather(sleeper, return_exceptions=True)

    async def _sleep(self, wait_ms: int) -> None:
        await self._clock.sleep_ms(wait_ms)
        self._ready()

    def _ready(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
