"""An answer that a push consumer never took: its messages come again at once, and not when its life ends.

What such a consumer is given is held for as long as it lives. One that stands still for longer than its poll (a
suspended machine, a long pause of its process) never reads the answer that it got meanwhile; when it goes on, it resets
the call, and the server tells so (`evenq.serving.http2.sent_answers`).
Made by `rpc.delivery.receive` for each whole answer with messages that a client's life holds. Always true: what was
acknowledged since, changed, delivered again under the same attempt or released with its client stays as it is; no
message's bytes are kept.
"""

from __future__ import annotations

import logging

from evenq_broker.loops.delivery.receive_wish import Batch
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["UntakenBatch"]

log = logging.getLogger(__name__)


class UntakenBatch:
    """Called when the answer with this batch was not taken."""

    __slots__ = ("_client_id", "_deadline_ms", "_held", "_ledger", "_runtime", "_taker")

    def __init__(self, runtime: Runtime, ledger: Ledger, taker: MessageTaker, *, batch: Batch, client_id: str) -> None:
        self._runtime, self._ledger, self._taker = runtime, ledger, taker
        self._client_id = client_id
        self._held = tuple(batch.held)
        self._deadline_ms = 0
        """Of all of the batch, as they were given. Any other one tells that somebody has spoken for the message."""
        for queue, offset, number in self._held:
            entry = queue.pending.get(offset)
            if entry is not None and entry.number == number and entry.client_id == client_id:
                self._deadline_ms = entry.deadline_ms
                break

    def __call__(self) -> None:
        """Give back what is still held as it was given."""
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
                # Deleted and made anew since, its offsets name other messages.
                and known(queue.group_id, queue.topic_id, queue.queue_id) is queue
            ):
                lost.held.append((queue, offset, number))
        if lost.held:
            count = len(lost.held)
            log.info("client %s did not take an answer: %d messages are delivered again", self._client_id, count)
            self._taker.give_back(lost)
