"""Fires timers: sleeps until the next one is due, takes due ones in batches, lets the owner decide what each becomes,
and appends that together with the timers' end as one group (RD-17, RD-18).

So a timer fires exactly once in the log: its message and its end survive together or not at all. A batch that cannot be
stored now (full, overloaded) is given back and tried again. A timer that is not accepted at all, or is damaged, is set
aside and tried again after growing pauses, the others first: another copy may repair damage as soon as it answers. The
wall clock may jump: it is read five times a second, and a timer that has fired has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from evenq.errors import Error, StorePoisoned
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.store.log.messages import Append, StoredTimer, TimerAppend
from evenq.store.timers.keeper import NEVER, AppendGroup, TimerKeeper

log = logging.getLogger(__name__)

DELAYED_MESSAGE: Final = 1
"""The kind of a timer that becomes an ordinary message of its topic and queue."""
BATCH_MAX: Final = 512
BATCH_BYTES: Final = 4 << 20
SLEEP_MAX_MS: Final = 200
RETRY_MS: Final = 200
ASIDE_MS: Final = 10_000  # first pause of what the owner or the store does not accept at all; it doubles each time
ASIDE_LONGEST_MS: Final = 600_000
ASIDE_TRIES: Final = 16  # timers tried again before the next batch of others
ASIDE_MAX: Final = 65_536  # bounds memory: about 10 MB
DAMAGED_MAX: Final = ASIDE_MAX // 2  # of those aside: more damaged ones wait for the next start, so that others fire

Decision = Append | TimerAppend | None
"""Result of a due timer: a message, another timer (renewed, or of another kind), or nothing."""
OnDue = Callable[[list[StoredTimer]], Sequence[Decision]]
"""Called on the loop; returns one decision per timer. The same timer may be passed again if the store was full."""


def deliver(timers: list[StoredTimer]) -> list[Decision]:
    """Returns the same messages, to become consumable in their topic and queue (RD-17)."""
    return [
        Append(timer.topic_id, timer.queue_id, timer.tag_hash, timer.born_ms, timer.head, timer.system)
        for timer in timers
    ]


def _never() -> bool:
    return False


class TimerService:
    """One task that fires the timers of one store."""

    def __init__(
        self,
        keeper: TimerKeeper,
        clock: Clock,
        append: AppendGroup,
        on_due: OnDue = deliver,
        *,
        refused: Callable[[], bool] = _never,
        batch_max: int = BATCH_MAX,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """`refused`: whether the store accepts nothing for now; then nothing is tried, and no timer is set aside."""
        self._keeper = keeper
        self._pending = keeper.pending
        self._clock = clock
        self._append = append
        self._on_due = on_due
        self._refused = refused
        self._batch_max = batch_max
        self._batch_bytes = batch_bytes
        self._wake: asyncio.Future[None] | None = None
        self._aside: list[tuple[int, bytes, int]] = []
        """(monotonic ms of the next try, key, pause before it): a heap of timers that cannot be fired for a while."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper.on_ready = self._ready
        self._task = spawn(self._run(), name="store-timers")

    async def stop(self) -> None:
        """Ends firing; what is on its way to the disk still gets there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                pause_ms = await self._fire_due()
            except StorePoisoned:
                return  # the owner was notified; a restart fires what is left
            if pause_ms:
                await self._clock.sleep_ms(pause_ms)
            else:
                await self._wait()

    async def _fire_due(self) -> int:
        """Fires until nothing is due. Returns the pause in ms before the next try; 0 without trouble."""
        while True:
            if self._refused():
                return RETRY_MS
            room = ASIDE_MAX - len(self._aside)
            keys = self._pending.due(self._clock.now_ms(), min(self._batch_max, room))
            self._keeper.kick()
            try:
                tried = await self._fire_all(keys)
                tried += await self._try_aside()
            except Error as error:
                if not error.retryable and not self._refused():
                    raise
                self._keeper.retried()
                log.warning(
                    "timers could not be fired, trying again in %d ms: %s",
                    RETRY_MS,
                    error,
                    extra={"error": str(error), "retry_in_ms": RETRY_MS},
                )
                return RETRY_MS
            if not tried:
                return 0 if room else RETRY_MS

    async def _fire_all(self, keys: list[bytes]) -> int:
        """Fires taken timers, batch by batch; those that could not be tried are due again."""
        left = list(keys)
        try:
            while left:
                del left[: await self._fire(left)]
        finally:
            self._pending.give_back(left)
        return len(keys)

    async def _fire(self, keys: list[bytes]) -> int:
        """Fires as many as fit a batch; returns how many of `keys` are finished, fired or set aside."""
        timers = await self._keeper.read(keys, self._batch_bytes)
        batch = keys[: len(timers)]
        damaged = [key for key, timer in zip(batch, timers, strict=True) if timer is None]
        if damaged:
            self._put_aside(damaged, ASIDE_MS, more=max(0, DAMAGED_MAX - len(self._aside)))
            self._keeper.damaged(damaged)
        due = {key: timer for key, timer in zip(batch, timers, strict=True) if timer is not None}
        refused = await self._store(due) if due else None
        if refused is not None:
            log.error("%d timers could not be fired together, trying them one by one", len(due), exc_info=refused)
            await self._one_by_one(due)
        return len(batch)

    async def _store(self, due: dict[bytes, StoredTimer]) -> Exception | None:
        """Appends what timers become, and their end. Returns why owner or store will not accept it, ever or for long.
        Raises StorePoisoned, and errors after which the store may accept it soon.
        """
        timers = list(due.values())
        try:
            messages, renewed = self._decided(timers)
            await asyncio.shield(self._append(messages, timers=renewed, ended=[timer.log_offset for timer in timers]))
        except Error as error:
            if isinstance(error, StorePoisoned) or error.retryable or self._refused():
                raise
            return error
        except Exception as error:  # noqa: BLE001  # whatever the owner raises, the others continue
            return error
        self._keeper.fired(list(due))
        return None

    def _decided(self, timers: list[StoredTimer]) -> tuple[list[Append], list[TimerAppend]]:
        decisions = self._on_due(timers)
        if len(decisions) != len(timers):
            raise ValueError(f"{len(decisions)} decisions for {len(timers)} due timers")
        messages: list[Append] = []
        renewed: list[TimerAppend] = []
        for decision in decisions:
            match decision:
                case Append():
                    messages.append(decision)
                case TimerAppend():
                    renewed.append(decision)
                case None:
                    pass
        return messages, renewed

    async def _one_by_one(self, due: dict[bytes, StoredTimer]) -> None:
        """Fires the timers of a refused batch one by one, to find those that are not accepted."""
        for key, timer in due.items():
            refused = await self._store({key: timer})
            if refused is not None:
                log.error(
                    "timer %d could not be fired, trying again after growing pauses: %r",
                    timer.log_offset,
                    refused,
                    extra={"timer": timer.log_offset, "due_ms": timer.due_ms, "error": repr(refused)},
                )
                self._put_aside([key], ASIDE_MS)

    async def _try_aside(self) -> int:
        """Tries a few timers again whose pause has ended; returns how many."""
        now_ms, tried = self._clock.monotonic_ms(), 0
        while self._aside and self._aside[0][0] <= now_ms and tried < ASIDE_TRIES:
            _, key, pause_ms = heappop(self._aside)
            if self._pending.take_aside([key]):
                tried += 1
                await self._try_again(key, pause_ms)
            elif self._pending.is_aside(key):
                self._plan(key, pause_ms)  # it is held just now
        self._keeper.waiting_aside(len(self._aside))
        return tried

    async def _try_again(self, key: bytes, pause_ms: int) -> None:
        try:
            (timer,) = await self._keeper.read([key], self._batch_bytes)
            if timer is None or await self._store({key: timer}) is not None:
                self._put_aside([key], min(2 * pause_ms, ASIDE_LONGEST_MS))
        finally:
            self._pending.give_back([key])  # if it could not be tried

    def _put_aside(self, keys: list[bytes], pause_ms: int, *, more: int = ASIDE_MAX) -> None:
        """`more`: how many of them at most are tried again before the next start."""
        self._pending.set_aside(keys)
        for key in keys[:more]:
            self._plan(key, pause_ms)
        self._keeper.waiting_aside(len(self._aside))

    def _plan(self, key: bytes, pause_ms: int) -> None:
        heappush(self._aside, (self._clock.monotonic_ms() + pause_ms, key, pause_ms))

    async def _wait(self) -> None:
        """Waits for the next due timer, an earlier one, or more read-ahead; not for long, since the clock may jump."""
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
