"""A leader's answers to followers that query where their logs diverge: each with the last common record.

Called by `ReplicaDriver`. For each peer at most one read of the log is running, and the newest request gets the answer:
a follower accepts only the reply to its last request. Belongs to one loop.
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

logger = logging.getLogger(__name__)


class BeginTask(Protocol):
    """Starts a task of the driver."""

    def __call__(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> None: ...


class EpochReplies:
    """Replies to all followers of one leader."""

    def __init__(self, replica: Replica, *, begin: BeginTask) -> None:
        self._replica, self._begin = replica, begin
        self._newest: dict[int, SendEpochs] = {}
        """Peer -> the answer to send after its read."""

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
        # In a later epoch this log may have been cut during the read: the follower would take a wrong record.
        if replica.leads and replica.max_epoch == envelope.epoch:
            body = envelope.body
            assert isinstance(body, EpochsReply)
            known = last if newest.match == action.match else None
            peers.send(newest.to, replace(envelope, body=replace(body, last=known)))
