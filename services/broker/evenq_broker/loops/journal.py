"""The journal: operations of one loop turn become one state record of the log; a snapshot is the whole state.

`record` changes nothing by itself: the caller has changed the state and now makes that change durable. All callers of
one turn share one future; it does not take part in their cancellation, so one cancelled call cannot lose the others'
answers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from evenq.runtime.failpoints import passing
from evenq_broker.core import delivery_counts
from evenq_broker.core.journal import VERSION, DrainPut, GroupPut, KeyPut, Locked, Op, TopicPut, encode, encode_op

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Journal"]

log = logging.getLogger(__name__)


class _Batch(asyncio.Future[None]):
    """Shared by all callers of one turn, so none of them may cancel it; a cancelled caller is told when it is done."""

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        return False


class Journal:
    """Writes what must survive. `record` may be called as soon as the store is open."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ops: list[bytes] = []
        self._batch: _Batch | None = None
        self._unsaved = False
        self.records = 0
        """State records written since the start."""

    def record(self, *ops: Op) -> asyncio.Future[None]:
        """Make these changes durable; done when the flush mode says they are safe (D4)."""
        self._ops.extend(map(encode_op, ops))
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
        if self._broker.trace is not None:
            self._broker.trace.add(self._broker.now_ms(), payload)
        passing("journal.flushing")
        try:
            stored = self._broker.store.append_state(payload)
        except Exception as error:  # noqa: BLE001  whoever waits gets it
            batch.set_exception(error)
            return
        passing("journal.handed_over")
        self.records += 1
        self._unsaved = True
        stored.add_done_callback(lambda future: _copy(future, batch))

    def state(self) -> bytes:
        """The whole state, as a snapshot holds it. The store asks for it when the log has grown."""
        broker = self._broker
        key = KeyPut(broker.handle_key, broker.topics.next_id(), broker.groups.next_id())
        drain = [DrainPut(on=True)] if broker.draining else []
        brokers = broker.cluster.known.brokers.dump()
        topics = [TopicPut(topic) for topic in broker.topics.all()]
        groups = [GroupPut(group) for group in broker.groups.all()]
        locks = [
            Locked(group, queue, client_id, generation.epoch, generation.counter)
            for group, queue, client_id, generation in broker.locks.remembered()
        ]
        halves = broker.transactions.table.dump()
        progress = [*broker.progress.dump(), *delivery_counts.dump(broker.progress)]
        lites, staging = broker.lite.topics.dump(), broker.staging.dump()
        return encode([key, *drain, *brokers, *topics, *groups, *locks, *halves, *staging, *lites, *progress])

    async def close(self) -> None:
        """Write what waits, then a last snapshot. A failure of it is logged: the log has it all."""
        if self._batch is not None:
            batch = self._batch
            self._flush()
            await asyncio.wait({batch})
        if not self._unsaved or self._broker.store.failure is not None:
            return
        self._unsaved = False
        try:
            await self._broker.store.save_snapshot(self.state())
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
