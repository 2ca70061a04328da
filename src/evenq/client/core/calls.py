"""Calls of the loops to servers: the interface between `loops` and `rpc`, in terms of the model.

`rpc.calls.Calls` implements it. Calls raise classes of `evenq.errors`: `ConnectionFailed`, `RequestTimeout`,
`Unsupported` (the server lacks the method) and the error of the answer's status. `address` is `host:port`; waiting
times are ms and are added to the call's own deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.client.core.routes.route import Route
from evenq.model import (
    NO_GENERATION,
    FilterExpression,
    Generation,
    MessageModel,
    MessageQueue,
    QueueOffset,
    ReceivedMessage,
    StartPolicy,
)
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)

FINISHED = -1
"""Stands for a number of deliveries: the message is done."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The answer to a stored batch."""

    queue: MessageQueue
    """Queue id -1: the server chose the queue and did not report it."""
    offsets: Sequence[int]
    queue_ids: Sequence[int] = ()
    """One per message, if not all are in `queue` because an earlier try stored some."""
    recall_handles: Sequence[str] = ()
    """One per message; empty if it is not delayed."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The answer to a pull, with or without messages."""

    messages: Sequence[ReceivedMessage]
    next_offset: int
    far_behind: bool = False
    """True: the leader prefers that the client reads from a follower."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A broker's report about one queue; -1 = none."""

    minimum: int
    maximum: int
    committed: int
    at_timestamp: int
    young: bool = False
    """The group never committed here, and the queue's first message is still in the broker's memory (RB-46)."""
    uid: str = ""
    """Uid of the topic, which changes when the topic is deleted and created again. Empty: not reported."""


@dataclass(frozen=True, slots=True)
class LockAnswer:
    queue: MessageQueue
    granted: bool
    holder: str
    committed: int
    given_until: int = 0
    """Uncommitted messages below this offset were given to a member that vanished."""
    counts: tuple[tuple[int, int], ...] = ()
    """(offset, deliveries so far or FINISHED) of uncommitted messages."""
    uid: str = ""
    """As in `QueueRange`."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A server's decision for this member. Queue id -1: all queues of the broker, for members that receive."""

    known: bool
    """False: the server has no decision; the member keeps its queues."""
    queues: tuple[MessageQueue, ...]
    generation: Generation = NO_GENERATION


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of the group, as a broker reports it."""

    client_id: str
    protocol: str
    """`evenq` owns queues, `v2` receives and acknowledges."""
    topics: frozenset[str]
    """Empty: unknown, treated as all."""


@dataclass(frozen=True, slots=True)
class Join:
    """First message of a session, sent again when subscriptions change."""

    group: str
    model: MessageModel
    subscriptions: Mapping[str, FilterExpression]
    version: int
    """Time of the last change, ms since the epoch (RG-6)."""
    zone: str = ""
    instance: str = ""
    capacity: float = 1.0
    incarnation: int = 0
    """Random for each start of the client: distinguishes a reconnect from another client with the same id."""
    hands_over: bool = True
    """True: the member hands its queues over on `BrokerLeaving`; a closing broker waits for that for a while."""
    unordered: bool = False
    """True: listener calls of one queue run in parallel, also for FIFO topics."""
    refuses_resets: bool = False
    """True: the member ignores offset resets, so brokers reject those of its group."""
    strategy: str = ""
    """The strategy of this member, in force while the group has none."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Last message of a session."""


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """The settings of the group that are sent to members."""

    max_attempts: int
    start_from: str
    strategy: str = ""
    """Strategy with which the server assigns queues; empty: members assign them."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The broker accepted the member."""

    beat_interval_ms: int
    members: Sequence[MemberInfo]
    settings: GroupTerms
    session_timeout_ms: int = 0
    """Silence after which the broker removes the member; 0: not reported."""
    revoke_ms: int = 0
    """Time after which a queue is taken from its holder if another member waits for it; 0: not reported."""


SessionEvent = (
    Welcome
    | MembersChanged[MemberInfo]
    | SettingsChanged[GroupTerms]
    | AssignmentChanged[tuple[MessageQueue, ...]]
    | QueueWanted
    | OffsetsReset
    | BrokerLeaving
)


class RouteCalls(Protocol):
    """Calls of every client."""

    def turn_away(self) -> None:
        """Calls another access point first from now on, if there are several: this one may be isolated."""
        ...

    async def query_route(self, topic: str) -> Route:
        """Queries an access point; if none answers, the brokers of earlier routes. Raises TopicNotFound."""
        ...


class ProducerCalls(RouteCalls, Protocol):
    """Calls of a producer."""

    async def publish(
        self, address: str, queue: MessageQueue, encoded: Sequence[bytes], *, timeout_ms: int, apart: bool = False
    ) -> StoredBatch:
        """Stores messages in one queue: all or none. `apart`: the server chooses queues (delivery time, lite topic)."""
        ...


class ReadingCalls(Protocol):
    """Calls for reading queues, in a group or without one (group "")."""

    async def pull(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        batch_max: int,
        bytes_max: int,
        wait_ms: int,
        expression: FilterExpression,
        generation: Generation,
        committed: int,
        owner: bool = False,
        any_copy: bool = False,
        uid: str = "",
    ) -> Pulled:
        """Reads one queue. `owner`: only while this member holds its lock. `any_copy`: also at a follower. `uid`: only
        if the topic still has it. Raises IllegalOffset (with the range), QueueReplaced, PreconditionFailed (fenced).
        """
        ...

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        """Returns range and progress and, for a `timestamp_ms`, the first offset stored at or after it."""
        ...


class ConsumerCalls(RouteCalls, ReadingCalls, Protocol):
    """Calls of a push consumer."""

    client_id: str

    def rename(self, client_id: str) -> None: ...

    def session(self, address: str, requests: AsyncIterator[Join | Leave | None]) -> AsyncIterator[SessionEvent]:
        """Opens a member's session; None among the requests is a heartbeat."""
        ...

    async def lock(
        self,
        address: str,
        group: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation,
        anew: bool = False,
    ) -> list[LockAnswer]:
        """Locks queues; returns one answer for each, in order. `anew`: as if the member had never held them."""
        ...

    async def unlock(self, address: str, group: str, queues: Sequence[MessageQueue]) -> None:
        """Releases locks; a lock that is not held is ignored."""
        ...

    async def commit(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None:
        """Stores progress; an offset that would go back is ignored. `uids`: of the topics to which the offsets belong.
        Raises PreconditionFailed if some queues have another uid or owner; the others are stored.
        """
        ...

    async def reset(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None: ...

    async def begin(
        self, address: str, group: str, queue: MessageQueue, start: StartPolicy, *, generation: Generation, uid: str
    ) -> None:
        """Makes the broker decide the group's start on the topic, if it has none. IllegalOffset: it is too old."""
        ...

    async def count_deliveries(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        counts: Mapping[int, int],
        *,
        given_until: int,
        generation: Generation,
        uid: str = "",
    ) -> None:
        """Stores deliveries, or FINISHED, by offset. `given_until`: the queue is being released, and listeners got its
        messages below this offset without finishing all. Raises PreconditionFailed (fenced).
        """
        ...

    async def send_back(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        delay_level: int,
        attempts: int,
        uid: str = "",
    ) -> None:
        """Gives a message back for a retry (RD-1); level -1: to the dead-letter topic."""
        ...

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        """Queries the access point for this member's queues."""
        ...


class SimpleCalls(RouteCalls, Protocol):
    """Calls of a simple consumer."""

    async def receive(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        *,
        expression: FilterExpression,
        batch_max: int,
        invisible_ms: int,
        wait_ms: int,
    ) -> list[ReceivedMessage]: ...

    async def ack(self, address: str, group: str, *messages: ReceivedMessage) -> None:
        """Acknowledges 1 to 4,096 messages of one topic. Raises the first error; the other messages are finished."""
        ...

    async def change_invisible(
        self, address: str, group: str, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Hides a message for `invisible_ms` from now; returns its new handle. `suspend`: not counted as an attempt."""
        ...

    async def heartbeat(self, address: str, group: str) -> None: ...

    async def terminate(self, address: str, group: str) -> None: ...
