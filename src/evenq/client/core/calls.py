"""Requests and results of the calls to servers (`rpc.calls.Calls`), in terms of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenq.model import (
    NO_GENERATION,
    FilterExpression,
    Generation,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
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
