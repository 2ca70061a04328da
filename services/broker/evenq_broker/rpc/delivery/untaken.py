"""Answers that a push consumer never read: their messages are redelivered immediately.

Otherwise they would be held as long as the consumer lives. A consumer that stalls for longer than its poll (a suspended
machine, a long pause of its process) never reads the answer that arrived meanwhile. When it continues, it resets the
call, and the server reports that (`evenq.serving.http2.sent_answers`).
`rpc.delivery.receive` creates one object for each complete answer with messages that a client's life holds. Invariants:
deliveries that were acknowledged, changed, repeated under the same attempt or released since are not touched; no bytes
of messages are kept.
"""

from __future__ import annotations

import logging

from evenq_broker.loops.delivery.receive_wish import Batch
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.state.kernel import Kernel

log = logging.getLogger(__name__)


class UntakenBatch:
    """Gives back the batch of an answer; called if the client did not read it."""

    __slots__ = ("_client_id", "_deadline_ms", "_held", "_ledger", "_runtime", "_taker")

    def __init__(self, kernel: Kernel, taker: MessageTaker, *, batch: Batch, client_id: str) -> None:
        self._runtime, self._ledger, self._taker = kernel.runtime, kernel.ledger, taker
        self._client_id = client_id
        self._held = tuple(batch.held)
        self._deadline_ms = 0
        """Deadline of all deliveries of the batch. A different one shows that the delivery was changed since."""
        for queue, offset, number in self._held:
            entry = queue.pending.get(offset)
            if entry is not None and entry.number == number and entry.client_id == client_id:
                self._deadline_ms = entry.deadline_ms
                break

    def __call__(self) -> None:
        """Gives back the deliveries that have not changed."""
        if self._runtime.closing:
            return
        known, lost = self._ledger.progress.queue, Batch()
        for queue, offset, number in self._held:
            entry = queue.pending.get(offset)
            if (
                entry is not None
                and entry.number == number
                and entry.deadline_ms == self._deadline_ms
                and entry.client_id == self._client_id
                # The offsets of a queue that was deleted and created again name other messages.
                and known(queue.group_id, queue.topic_id, queue.queue_id) is queue
            ):
                lost.held.append((queue, offset, number))
        if lost.held:
            count = len(lost.held)
            log.info("client %s did not read an answer: %d messages are redelivered", self._client_id, count)
            self._taker.give_back(lost)
