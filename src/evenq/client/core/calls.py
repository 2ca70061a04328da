"""What the loops may ask of servers, in words of the model: the seam between `loops` and `rpc`.

`rpc.calls.Calls` is the real one. Every call raises classes of `evenq.errors`: `ConnectionFailed`,
`RequestTimeout`, `Unsupported` (the server has no such method) and whatever the answer's status stands for.
`address` is `host:port`; waiting times are ms and come on top of the call's own deadline.
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

__all__ = [
    "FINISHED",
    "Assignment",
    "ConsumerCalls",
    "GroupTerms",
    "Join",
    "Leave",
    "LockAnswer",
    "MemberInfo",
    "ProducerCalls",
    "Pulled",
    "QueueRange",
    "ReadingCalls",
    "SessionEvent",
    "SimpleCalls",
    "StoredBatch",
    "Welcome",
]


FINISHED = -1
"""Instead of a number of deliveries: the message is done."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch was stored."""

    queue: MessageQueue
    """Queue id -1: the server chose and did not say."""
    offsets: Sequence[int]
    """One per message, in order."""
    queue_ids: Sequence[int] = ()
    """One per message, if not all are in `queue`: an earlier try had stored some."""
    recall_handles: Sequence[str] = ()
    """One per message, empty for one that is not delayed."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """An answered pull; no messages is an answer too."""

    messages: Sequence[ReceivedMessage]
    next_offset: int
    far_behind: bool = False
    """The leader had rather see a follower read."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a broker tells of one queue; -1 = nothing."""

    minimum: int
    maximum: int
    committed: int
    at_timestamp: int
    young: bool = False
    """The group never committed here, and the queue's first message is still in the broker's memory (RB-46)."""
    uid: str = ""
    """What the offsets count: another one when the topic was made anew. Empty: the broker does not say."""


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The answer to one lock request."""

    queue: MessageQueue
    granted: bool
    holder: str
    committed: int
    given_until: int = 0
    """What is below and not committed was given to a member that vanished."""
    counts: tuple[tuple[int, int], ...] = ()
    """(offset, deliveries so far or FINISHED) of what is not committed."""
    uid: str = ""
    """As in `QueueRange`."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a server decided for this member. `queues` may name queue id -1: all queues of the broker, shared by
    receiving.
    """

    known: bool
    """False: the server knows nothing; keep what you have."""
    queues: tuple[MessageQueue, ...]
    generation: Generation = NO_GENERATION


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """One member of the group, as a broker tells."""

    client_id: str
    protocol: str
    """`evenq` owns queues, `v2` receives and acknowledges."""
    topics: frozenset[str]
    """Empty: unknown, counts as all."""


@dataclass(frozen=True, slots=True)
class Join:
    """First word of a session, and again when subscriptions changed."""

    group: str
    model: MessageModel
    subscriptions: Mapping[str, FilterExpression]
    version: int
    """Ms since the epoch of the last change (RG-6)."""
    zone: str = ""
    instance: str = ""
    capacity: float = 1.0
    incarnation: int = 0
    """Random per start of the client: tells a reconnect from a twin with the same id."""
    hands_over: bool = True
    """On `BrokerLeaving` we finish, commit and unlock; a broker that closes waits a little for it."""
    unordered: bool = False
    """Our user wants listener calls of one queue side by side, also of FIFO topics."""
    refuses_resets: bool = False
    """We go on where we are when an operator moves the group, so brokers refuse to."""
    strategy: str = ""
    """Divides our queues while the group has no strategy."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Last word of a session."""


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """How the group is configured, as far as a member learns it."""

    max_attempts: int
    start_from: str
    strategy: str = ""
    """How the server shares the group's queues; empty: it does not."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The broker took us in."""

    beat_interval_ms: int
    members: Sequence[MemberInfo]
    settings: GroupTerms
    session_timeout_ms: int = 0
    """Silence after which the broker drops us; 0: it did not say."""
    revoke_ms: int = 0
    """Time after which a queue that another member waits for is taken from its holder; 0: it did not say."""


SessionEvent = (
    Welcome
    | MembersChanged[MemberInfo]
    | SettingsChanged[GroupTerms]
    | AssignmentChanged[tuple[MessageQueue, ...]]
    | QueueWanted
    | OffsetsReset
    | BrokerLeaving
)
"""What a broker says in a session."""


class RouteCalls(Protocol):
    """What every client needs."""

    def turn_away(self) -> None:
        """Ask another access point first from now on, if there are several: this one may be cut off from the others."""
        ...

    async def query_route(self, topic: str) -> Route:
        """Query an access point; if none answers, brokers of the routes received before. Raises TopicNotFound."""
        ...


class ProducerCalls(RouteCalls, Protocol):
    """What a producer needs."""

    async def publish(
        self, address: str, queue: MessageQueue, encoded: Sequence[bytes], *, timeout_ms: int, apart: bool = False
    ) -> StoredBatch:
        """Store a batch of encoded messages of one topic in one queue: all or none. `apart`: they have delivery times
        or lite topics; the server chooses their queues.
        """
        ...


class ReadingCalls(Protocol):
    """What reading queues needs, in a group or in none (group "")."""

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
        """Read one queue; as its `owner`, only while we hold its lock; with `any_copy` also at a follower; with a `uid`
        only if its offsets still count the same. Raises IllegalOffset (carries the range), QueueReplaced,
        PreconditionFailed (fenced).
        """
        ...

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        """Range, progress and, if asked, the first offset stored at or after a time."""
        ...


class ConsumerCalls(RouteCalls, ReadingCalls, Protocol):
    """What a push consumer needs."""

    client_id: str

    def rename(self, client_id: str) -> None:
        """Be another member from now on."""
        ...

    def session(self, address: str, requests: AsyncIterator[Join | Leave | None]) -> AsyncIterator[SessionEvent]:
        """A member's open line; None among the requests is a beat."""
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
        """Take queues; one answer each, in order. `anew`: we know nothing of what we may have had of them before."""
        ...

    async def unlock(self, address: str, group: str, queues: Sequence[MessageQueue]) -> None:
        """Let go; not holding them is no error."""
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
        """Store progress; what would go back is ignored. `uids`: of queues that must still be the same. Raises
        PreconditionFailed if some of them are not, or not ours; the others are stored.
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
    ) -> None:
        """Store progress, also backward."""
        ...

    async def begin(
        self, address: str, group: str, queue: MessageQueue, start: StartPolicy, *, generation: Generation, uid: str
    ) -> None:
        """Let the broker decide where the group begins on the queue's topic, if it has not. Raises IllegalOffset if the
        broker is too old for that.
        """
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
        """Note deliveries, or FINISHED, by offset. `given_until`: we let go of the queue, and listeners had it so far
        without finishing all. Raises PreconditionFailed (fenced).
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
        """Give a message back (RD-1); level -1: to the dead-letter topic."""
        ...

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        """Ask the access point what is ours."""
        ...


class SimpleCalls(RouteCalls, Protocol):
    """What a simple consumer needs."""

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
    ) -> list[ReceivedMessage]:
        """Take messages for a while; empty if there are none within `wait_ms`."""
        ...

    async def ack(self, address: str, group: str, *messages: ReceivedMessage) -> None:
        """Finish 1 to 4,096 messages of one topic in one call. Raises the first one's error, like
        InvalidReceiptHandle; the others are finished.
        """
        ...

    async def change_invisible(
        self, address: str, group: str, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Hide it for `invisible_ms` from now; returns the handle to go on with. `suspend`: it counts as no attempt."""
        ...

    async def heartbeat(self, address: str, group: str) -> None:
        """Say "still here"."""
        ...

    async def terminate(self, address: str, group: str) -> None:
        """Say goodbye."""
        ...
