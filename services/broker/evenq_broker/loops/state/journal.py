"""The journal: operations of one loop turn become one state record of the log; a snapshot is the whole state.

`record` changes nothing by itself: the caller has changed the state and now makes that change durable. All callers of
one turn share one future; it does not take part in their cancellation, so one cancelled call cannot lose the others'
answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from evenq.runtime.failpoints import passing
from evenq.store import MessageStore
from evenq_broker.core.diagnosis.trace import Trace
from evenq_broker.core.state.records import VERSION, Op, encode_op
from evenq_broker.runtime import Runtime

__all__ = ["Journal"]

log = logging.getLogger(__name__)


class _Batch(asyncio.Future[None]):
    """Shared by all callers of one turn, so none of them may cancel it; a cancelled caller is told when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        return False


class Journal:
    """Writes what must survive. `record` may be called from `begin` on."""

    def __init__(self, runtime: Runtime, trace: Trace | None, state: Callable[[], bytes]) -> None:
        """`trace` is shown every record; `state` gives the whole state for the last snapshot."""
        self._runtime, self._trace, self._state = runtime, trace, state
        self._store: MessageStore | None = None
        self._ops: list[bytes] = []
        self._batch: _Batch | None = None
        self._unsaved = False
        self.records = 0
        """State records written since the start."""

    def begin(self, store: MessageStore) -> None:
        """The store is open: write to it from now on."""
        self._store = store

    def record(self, *ops: Op) -> asyncio.Future[None]:
        """Make these changes durable; done when the flush mode says they are safe (D4)."""
        return self.record_encoded(map(encode_op, ops))

    def record_encoded(self, ops: Iterable[bytes]) -> asyncio.Future[None]:
        """The same for operations that are encoded (`core.state.records.encode_op`)."""
        self._ops.extend(ops)
        if self._batch is None:
            loop = asyncio.get_running_loop()
            self._batch = _Batch(loop=loop)
            self._batch.add_done_callback(_seen)
            loop.call_soon(self._flush)
        return self._batch

    def flush(self) -> None:
        """Write what waits at once: whatever is appended next stands behind it in the log."""
        if self._batch is not None:
            self._flush()

    def _flush(self) -> None:
        batch, self._batch = self._batch, None
        payload = b"".join((bytes((VERSION,)), *self._ops))
        self._ops.clear()
        if batch is None:
            return
        assert self._store is not None, "nothing is recorded before the store is open"
        if self._trace is not None:
            self._trace.add(self._runtime.now_ms(), payload)
        passing("journal.flushing")
        try:
            stored = self._store.append_state(payload)
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            batch.set_exception(error)
            return
        passing("journal.handed_over")
        self.records += 1
        self._unsaved = True
        stored.add_done_callback(lambda future: _copy(future, batch))

    async def close(self) -> None:
        """Write what waits, then a last snapshot. A failure of it is logged: the log has it all."""
        if self._batch is not None:
            batch = self._batch
            self._flush()
            await asyncio.wait({batch})
        if not self._unsaved or self._store is None or self._store.failure is not None:
            return
        self._unsaved = False
        try:
            await self._store.save_snapshot(self._state())
        except Exception:
            log.exception("snapshot failed")


def _copy(source: asyncio.Future[None], target: asyncio.Future[None]) -> None:
    if target.done():
        return
    error = source.exception() if not source.cancelled() else asyncio.CancelledError()
    passing("journal.safe")
    if error is None:
        target.set_result(None)
    elif isinstance(error, Exception):
        target.set_exception(error)
    else:
        target.set_exception(RuntimeError("the store ended before the record was safe"))


def _seen(future: asyncio.Future[None]) -> None:
    # Deliveries are recorded without anybody waiting; their failure shows in the store's state, not as a stray warning.
    if not future.cancelled():
        future.exception()
