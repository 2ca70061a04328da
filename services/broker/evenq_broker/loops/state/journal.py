"""The journal: operations of one loop step become one state record of the log; a snapshot is the whole state.

`record` changes nothing by itself: the caller has changed the state and now makes that change durable. All callers of
one step share one future. It does not take part in their cancellation, so one cancelled call cannot lose the others'
answers.

The state is ahead of the log, for long where copies are away, so two things must hold. First, a caller that finds its
change already made answers only behind `safe`: otherwise a second ack would be answered OK for a first one that is lost
after a failover. Second, operations that the store rejected are owed, because the state has them: they are first in the
next record. A deposed leader that did not run has no pending records and does not know its successor. So a caller that
reports a group's progress waits for `confirmed`: a record, perhaps an empty one, that only a leader can commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from evenq.errors import HaNotAvailable, StoreError, StoreFull, TooManyRequests
from evenq.runtime.failpoints import passing
from evenq.store import Append, MessageStore
from evenq_broker.core.diagnosis.trace import Trace
from evenq_broker.core.state.log_time import WITH_DEADLINE, in_log_time
from evenq_broker.core.state.records import VERSION, Op, encode_op
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)

OWED_BYTES_MAX = 8 << 20
"""Of operations that the store rejected. Beyond it only a new start brings state and log together."""
LOG_TIME_SLACK_MS = 1_000
"""Clocks that are right are adjusted all the time, by less than this."""
REFUSED = (HaNotAvailable, StoreFull, TooManyRequests)
"""Errors after which certainly nothing of the record is in the log."""


class _Batch(asyncio.Future[None]):
    """Shared by all callers of one step, so none may cancel it; a cancelled caller continues when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        return False


class Journal:
    """Writes durable state. `record` may be called from `begin` on."""

    def __init__(self, runtime: Runtime, trace: Trace | None, state: Callable[[], bytes]) -> None:
        """`trace` gets every record; `state` returns the whole state for the last snapshot."""
        self._runtime, self._trace, self._state = runtime, trace, state
        self._store: MessageStore | None = None
        self._ops: list[bytes] = []
        self._once: set[int] = set()
        """Places in `_ops` of those that are not owed when they are rejected."""
        self._owed: list[bytes] = []
        """Operations that the store rejected, in order."""
        self._batch: _Batch | None = None
        self._newest: _Batch | None = None
        """The last one with operations that the store got; it is safe when all before it are."""
        self._under_way: deque[tuple[asyncio.Future[None], _Batch, list[bytes]]] = deque()
        """Records that the store has not answered: its future, the batch, and the operations, in order."""
        self._unsaved = False
        self.records = 0
        """State records written since the start."""

    def begin(self, store: MessageStore) -> None:
        """Connects the opened store: records are written to it from now on."""
        self._store = store

    def record(self, *ops: Op) -> asyncio.Future[None]:
        """Makes these changes durable; done when they are safe by the flush mode (D4)."""
        if not WITH_DEADLINE.isdisjoint(map(type, ops)) and (ahead_ms := self.ahead_ms()):
            ops = tuple([in_log_time(op, ahead_ms) for op in ops])
        return self.record_encoded(map(encode_op, ops))

    def record_encoded(self, ops: Iterable[bytes]) -> asyncio.Future[None]:
        """As `record`, for encoded operations (`core.state.records.encode_op`)."""
        self._ops.extend(ops)
        return self._gathering()

    def ahead_ms(self) -> int:
        """Returns how far this process's time is ahead of the log's, ms; 0: up to `LOG_TIME_SLACK_MS`."""
        store = self._store
        if store is None:
            return 0
        ahead_ms = self._runtime.now_ms() - max(self._runtime.clock.now_ms(), store.last_store_ms)
        return ahead_ms if abs(ahead_ms) > LOG_TIME_SLACK_MS else 0

    def record_once(self, *ops: Op) -> asyncio.Future[None]:
        """As `record`, for a caller that undoes its change if this fails: rejected operations are not written later."""
        self._once.update(range(len(self._ops), len(self._ops) + len(ops)))
        return self.record(*ops)

    def append(self, messages: Sequence[Append], ops: Iterable[bytes]) -> asyncio.Future[None]:
        """Stores messages and encoded operations as one group of the log: all or none. Operations that were recorded
        before precede it. Rejected ones are not owed: the caller undoes its change, and makes it in the step of this
        call. Raises as `MessageStore.append`.
        """
        assert self._store is not None, "nothing is recorded before the store is open"
        self._look_over()  # operations rejected meanwhile are owed, and precede the group
        self.flush()
        payload = b"".join((bytes((VERSION,)), *ops))
        stored = self._store.append(messages, state=payload)
        self.records += 1
        self._unsaved = True
        if self._trace is not None:
            self._trace.add(self._runtime.now_ms(), payload)
        return stored

    def safe(self) -> asyncio.Future[None] | None:
        """Done when all earlier records are safe, failed if some may be lost; None: all are safe."""
        if self._owed:
            return self._gathering()
        batch = self._batch or self._newest
        settled = batch is None or (batch.done() and batch.exception() is None)
        return None if settled else batch

    async def settled(self) -> None:
        """Waits for `safe`. Raises its error."""
        pending = self.safe()
        if pending is not None:
            await pending

    def confirmed(self) -> asyncio.Future[None] | None:
        """With copies: done when a record appended after this call is committed, so this broker still led, and knew
        everything acknowledged. For an answer that reports the state. With one copy: `safe`.
        """
        return self.safe() if self._runtime.leadership.attach is None else self._gathering()

    async def still_leads(self) -> None:
        """Waits for `confirmed`, on a full disk for `safe`: nothing can be appended there. Raises its error."""
        safe, confirmed = self.safe(), self.confirmed()
        if confirmed is not None:
            try:
                await confirmed
            except StoreFull:
                if safe is not None:
                    await safe

    def flush(self) -> None:
        """Writes waiting operations immediately: later appends follow them in the log."""
        if self._batch is not None or self._owed:
            self._gathering()
            self._flush()

    def amend(self, amended: Callable[[bytes], bytes]) -> None:
        """Replaces each operation that is not in the log by `amended` of it (empty: none): the state was corrected."""
        for held in (self._ops, self._owed, *(ops for _, _, ops in self._under_way)):
            held[:] = map(amended, held)  # in place: pending records refer to their list

    def _gathering(self) -> _Batch:
        """Returns the batch of this step."""
        if self._batch is None:
            loop = asyncio.get_running_loop()
            self._batch = _Batch(loop=loop)
            self._batch.add_done_callback(_seen)
            # One record for all changes of a step: a batch of acks costs one append.
            loop.call_soon(self._flush)
        return self._batch

    def _flush(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        self._look_over()  # operations rejected meanwhile precede new ones
        kept = [op for at, op in enumerate(self._ops) if at not in self._once] if self._once else self._ops
        again = [*self._owed, *kept] if self._owed else kept
        payload = b"".join((bytes((VERSION,)), *self._owed, *self._ops))
        if self._ops or self._owed:
            self._newest = batch
        self._ops, self._once, self._owed = [], set(), []
        assert self._store is not None, "nothing is recorded before the store is open"
        if self._trace is not None:
            self._trace.add(self._runtime.now_ms(), payload)
        passing("journal.flushing")
        try:
            stored = self._store.append_state(payload)
        except Exception as error:  # noqa: BLE001  the waiting callers get it
            self._not_recorded(error, again)
            batch.set_exception(error)
            return
        passing("journal.handed_over")
        self.records += 1
        self._unsaved = True
        self._under_way.append((stored, batch, again))
        stored.add_done_callback(lambda _: self._look_over())

    def _look_over(self) -> None:
        """Completes batches whose record has its outcome, in order."""
        while self._under_way and self._under_way[0][0].done():
            self._answered(*self._under_way.popleft())

    def _answered(self, source: asyncio.Future[None], target: _Batch, ops: list[bytes]) -> None:
        error = source.exception() if not source.cancelled() else asyncio.CancelledError()
        passing("journal.safe")
        if error is None:
            target.set_result(None)
        elif isinstance(error, Exception):
            self._not_recorded(error, ops)
            target.set_exception(error)
        else:
            target.set_exception(RuntimeError("the store ended before the record was safe"))

    def _not_recorded(self, error: Exception, ops: list[bytes]) -> None:
        if not isinstance(error, REFUSED):
            return  # the record may be there, or the store accepts nothing any more
        self._owed += ops
        if sum(map(len, self._owed)) > OWED_BYTES_MAX:
            self._runtime.fail(
                StoreError(
                    f"{OWED_BYTES_MAX >> 20} MiB of state could not be recorded ({error}): only a new start brings "
                    "state and log together again"
                )
            )

    async def close(self) -> None:
        """Writes waiting operations, then a last snapshot. A failure of it is logged: the log has everything."""
        if self._batch is not None:
            batch = self._batch
            self._flush()
            await asyncio.wait({batch})
        if not self._unsaved or self._store is None or self._store.failure is not None:
            return
        self._unsaved = False
        try:
            await self._store.save_snapshot(self._state())
        except StoreFull as error:
            log.warning("no snapshot at the end of this broker, the next start replays more of the log: %s", error)
        except Exception:
            log.exception("no snapshot at the end of this broker: the next start replays more of the log")


def _seen(future: asyncio.Future[None]) -> None:
    # Deliveries are recorded without a waiting caller; the store's state shows a failure.
    if not future.cancelled():
        future.exception()
