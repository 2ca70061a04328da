"""A leader's answers to followers that ask where their logs part: each with the last record of what both have.

Called by `ReplicaDriver`. Of each peer one read of the log is under way at a time, and the newest question gets the
answer: a follower takes a reply only for the last one that it asked. Belongs to one loop.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol

from evenq.errors import Error
from evenq_broker.core.replication.actions import SendEpochs
from evenq_broker.core.replication.messages import EpochsReply
from evenq_broker.core.replication.replica import Replica
from evenq_broker.loops.replication.replica_parts import LogActions, PeerSender

__all__ = ["EpochReplies"]

logger = logging.getLogger(__name__)


class BeginTask(Protocol):
    """Runs a task of the driver."""

    def __call__(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> None: ...


class EpochReplies:
    """See the module."""

    def __init__(self, replica: Replica, *, begin: BeginTask) -> None:
        self._replica, self._begin = replica, begin
        self._newest: dict[int, SendEpochs] = {}
        """Peer -> what it is to be sent, once its read is done."""

    def send(self, action: SendEpochs, *, log: LogActions, peers: PeerSender) -> None:
        """See SendEpochs."""
        is_read = action.to in self._newest
        self._newest[action.to] = action
        if not is_read:
            self._begin(self._read(action, log, peers), name=f"last record for broker {action.to}")

    async def _read(self, action: SendEpochs, log: LogActions, peers: PeerSender) -> None:
        last = None
        try:
            last = await log.last_record(action.match)
        except Error as error:
            logger.debug("the record before log offset %d cannot be read: %s", action.match, error)
        finally:
            newest = self._newest.pop(action.to)
        envelope, replica = newest.envelope, self._replica
        # In a later epoch this log may have been cut while it was read, and the follower, which does not know of it
        # yet, would take another log's record for this one's.
        if replica.leads and replica.max_epoch == envelope.epoch:
            body = envelope.body
            assert isinstance(body, EpochsReply)
            known = last if newest.match == action.match else None
            peers.send(newest.to, replace(envelope, body=replace(body, last=known)))
