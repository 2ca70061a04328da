"""Mailbox of a session: events for its member, one place per kind, never a backlog.

Filled by `loops.groups.sessions` and `loops.groups.locking` when a group, an assignment or a lock changes; emptied by
the member's open stream (`rpc.groups.groups`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from evenq.model import NO_GENERATION, Generation, GroupConfig, MessageQueue
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)
from evenq_broker.core.groups.members import Member
from evenq_broker.loops.wire.assignment import Share


class Lister(Protocol):
    """Source of the members of a group."""

    def members(self, group: str) -> Sequence[Member]:
        """Returns them ascending by client id."""
        ...


Mail = (
    MembersChanged[Member]
    | SettingsChanged[GroupConfig]
    | AssignmentChanged[Share]
    | QueueWanted
    | OffsetsReset
    | BrokerLeaving
)


class Session:
    """Open stream of one member, with its mailbox."""

    def __init__(
        self, group: str, client_id: str, *, incarnation: int = 0, now_ms: int = 0, hands_over: bool = False
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.incarnation = incarnation
        """Of the client that opened it; 0: not reported."""
        self.hands_over = hands_over
        """True: it finishes and releases its queues when notified that the broker stops. Older clients do not."""
        self.heard_ms = now_ms
        """Monotonic ms of its last sign of life."""
        self.ended = False
        """True when the stream should end: left, dropped, or replaced by a newer stream of the same member."""
        self.waiting_since_ms: int | None = None
        """Monotonic ms since when the oldest event waits to be taken."""
        self._members_changed = self._members_late = False
        self._settings: GroupConfig | None = None
        self._assignments: dict[str, tuple[Generation, Share | None]] = {}
        self._routes: dict[str, None] = {}
        """Topics whose queues changed."""
        self._wanted: dict[MessageQueue, None] = {}
        self._reset: dict[MessageQueue, None] = {}
        self._leaving_ms: int | None = None
        self._waits = False
        self._wake = asyncio.Event()

    def members_changed(self, now_ms: int, *, soon: bool = True) -> None:
        """Notes another member list. Not `soon`: sent at `late`, so that a long list does not delay an urgent share."""
        if soon:
            self._members_changed = True
        else:
            self._members_late = True
        self._note(now_ms, soon=soon)

    def late(self, now_ms: int) -> None:
        """Releases events that were not urgent."""
        if self._waits:
            self._members_changed |= self._members_late
            self._ring(now_ms)

    def settings_changed(self, group: GroupConfig, now_ms: int) -> None:
        """Notes other settings, and sends a pending list of members: they may change who divides the queues."""
        self._settings = group
        self._members_changed |= self._members_late
        self._ring(now_ms)

    def assignment_changed(
        self,
        topic: str,
        generation: Generation,
        now_ms: int,
        share: Share | None = None,
        *,
        soon: bool = True,
    ) -> None:
        """Notes another decision about a topic, or, without a share, that the member has to query it."""
        if generation == NO_GENERATION:
            self._routes[topic] = None  # beside a waiting decision: whether that one knows the new route is not known
            self._note(now_ms, soon=soon)
            return
        newest, known_share = self._assignments.get(topic, (generation, share))
        if share is not None and generation < newest:
            # An older decision came late: it must not replace the newer one.
            share = known_share
        elif share is not None and generation == newest and known_share is None:
            share = None
        self._assignments[topic] = (max(generation, newest), share)
        self._note(now_ms, soon=soon)

    def queue_wanted(self, queue: MessageQueue, now_ms: int) -> None:
        """Notes that another member waits for a queue of this one."""
        self._wanted[queue] = None
        self._ring(now_ms)

    def offsets_reset(self, queues: Iterable[MessageQueue], now_ms: int) -> None:
        """Notes that the group was moved on these queues."""
        self._reset.update(dict.fromkeys(queues))
        self._ring(now_ms)

    def broker_leaves(self, drain_ms: int, now_ms: int) -> None:
        """Notes that the broker closes in `drain_ms` at the latest."""
        self._leaving_ms = drain_ms
        self._ring(now_ms)

    def end(self) -> None:
        """Makes `take` return an empty list, for ever."""
        self.ended = True
        self._wake.set()

    async def take(self, members: Lister) -> list[Mail]:
        """Waits for events and empties the mailbox; an empty list means that the stream should end."""
        while not self.ended:
            await self._wake.wait()
            self._wake.clear()
            mail: list[Mail] = []
            if self._members_changed:
                mail.append(MembersChanged(tuple(members.members(self.group))))
            if self._settings is not None:  # before assignments, which may depend on them
                mail.append(SettingsChanged(self._settings))
            mail += [AssignmentChanged(topic, *changed) for topic, changed in self._assignments.items()]
            mail += [AssignmentChanged(topic, NO_GENERATION) for topic in self._routes]
            mail += [QueueWanted(queue) for queue in self._wanted]
            if self._reset:
                mail.append(OffsetsReset(tuple(self._reset)))
            if self._leaving_ms is not None:
                mail.append(BrokerLeaving(self._leaving_ms))
            self._leaving_ms = self._settings = None
            if self._members_changed:
                self._members_changed = self._members_late = False
            self._assignments.clear()
            self._routes.clear()
            self._wanted.clear()
            self._reset.clear()
            self.waiting_since_ms, self._waits = None, self._members_late
            if mail and not self.ended:
                return mail
        return []

    def _note(self, now_ms: int, *, soon: bool) -> None:
        if soon:
            self._ring(now_ms)
        else:
            self._waits = True

    def _ring(self, now_ms: int) -> None:
        if self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms
        self._wake.set()
