"""Views of stored messages, their traces, clients and dead letters, as plain values.

Counts are of the moment; times are ms since the epoch, 0 = never or not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.model import FilterExpression, MessageQueue, MessageType


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """One stored message. Reading it changes no progress and counts as no delivery."""

    queue: MessageQueue
    offset: int
    message_id: str
    message_type: MessageType
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str | None
    priority: int | None
    lite_topic: str | None
    born_ms: int
    born_host: str
    store_ms: int
    delivery_ms: int | None
    """Earliest delivery; None: immediately."""
    body: bytes
    """May be only the first part; `body_bytes` is the length of the whole."""
    body_bytes: int
    origin_topic: str = ""
    """Original topic of a message in a retry or dead-letter topic."""
    origin_message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessagesView:
    messages: tuple[MessageView, ...]
    """By ascending store time, or descending if the newest were requested first."""
    more: bool
    """True: a limit ended the search."""
    positions: Mapping[MessageQueue, int]
    """Next offset of each searched queue; a search `after` them continues."""
    silent: tuple[str, ...]
    """Brokers that did not answer; their messages are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEventView:
    at_ms: int
    what: str
    """STORED, DELIVERED, INVISIBLE, ACKNOWLEDGED, DEAD_LETTERED, COMMITTED or RESET."""
    group: str
    client_id: str
    """Empty: not known."""
    attempt: int
    until_ms: int
    """DELIVERED, INVISIBLE: end of the invisible time; 0: immediately, or as long as the client lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraceView:
    """The state of a message in one group."""

    group: str
    state: str
    """WAITING, IN_FLIGHT, RETRY, BLOCKED, FINISHED or DEAD_LETTERED."""
    attempt: int
    """Counted deliveries so far; 0: none, or not known any more."""
    client_id: str
    """IN_FLIGHT: the client that holds it, if it is held as long as a client lives."""
    until_ms: int
    """IN_FLIGHT: end of the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTraceView:
    """The trace of one stored copy of a message."""

    message: MessageView
    """Without its body."""
    groups: tuple[GroupTraceView, ...]
    events: tuple[TraceEventView, ...]
    """By ascending time; only those that the broker still has."""
    remembered_since_ms: int
    """Earlier events were dropped; 0: tracing is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesView:
    """The traces of a message, one for each stored copy."""

    traces: tuple[MessageTraceView, ...]
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    topic: str
    filter: FilterExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """A client, in one of its groups."""

    client_id: str
    kind: str
    """PRODUCER, PUSH_CONSUMER ... of the v2 protocol, or EVENQ_CONSUMER."""
    group: str
    """Empty for producers."""
    language: str
    version: str
    protocol: str
    """`evenq` or `v2`."""
    subscriptions: tuple[SubscriptionView, ...]
    joined_ms: int
    last_seen_ms: int
    brokers: tuple[str, ...]
    """Brokers to which it is connected."""
    command_brokers: tuple[str, ...]
    """Brokers that can send it commands, such as `client_stack`."""
    owned: tuple[MessageQueue, ...]
    """Queues of which it holds the lock."""
    inflight: int
    """Deliveries that are held as long as it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsView:
    clients: tuple[ClientView, ...]
    """A client of several groups appears once for each."""
    silent: tuple[str, ...]
    """Brokers that did not answer; clients of only these are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterView:
    """A message that a group could not handle."""

    queue: MessageQueue
    """In the dead-letter topic."""
    offset: int
    stored_ms: int
    """When it became a dead letter."""
    message_id: str
    tag: str
    keys: tuple[str, ...]
    origin: MessageQueue
    origin_offset: int
    """-1: not known."""
    attempts: int
    """Deliveries that it had; 0: not known."""
    reason: str
    """`attempts` (used up), `forwarded` (by its consumer), `sent-back` or `too-large` (for its consumer's SDK)."""
    replayed: bool
    body_bytes: int
    body: bytes
    """Empty unless bodies were requested."""
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCountView:
    """Number of a group's dead letters at one broker."""

    group: str
    broker_name: str
    stored: int
    waiting: int
    """Those not replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersView:
    """Dead letters and their numbers."""

    counts: tuple[DeadLetterCountView, ...]
    letters: tuple[DeadLetterView, ...]
    """The newest first; empty unless a group was given."""
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """Progress of the replay of dead letters at one broker."""

    broker_name: str
    total: int
    """Dead letters that waited at its begin."""
    replayed: int
    left_out: int
    """Excluded by the filter."""
    failed: int
    error: str
    """Error of the first failure; empty: there was none."""
    done: bool
    would: Mapping[str, int] = field(default_factory=dict)
    """Of a dry run: number of dead letters by target topic; the empty topic: they have no target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMessageView:
    """A delayed message that is not due yet, or the message of an open transaction."""

    broker_name: str
    topic: str
    kind: str
    """DELAY or TRANSACTION."""
    due_ms: int
    """Its delivery, or the next check of its transaction."""
    stored_ms: int
    message_id: str
    tag: str
    keys: tuple[str, ...]
    body_bytes: int
    recall_handle: str
    """Empty: a transaction, or the caller may not publish to the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledView:
    messages: tuple[ScheduledMessageView, ...]
    """Those that are due next, by ascending due time."""
    more: bool
    """True: there are later ones."""
    silent: tuple[str, ...]
    """Brokers that did not answer; their messages are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """A recurring message: its rule, its content, and what was fired. Times are ms since the epoch."""

    topic: str
    name: str
    broker_name: str
    """The broker that keeps it."""
    schedule: str
    """Cron expression with its time zone; empty: `every_ms` is the rule."""
    every_ms: int
    missed: str
    """one, skip or all."""
    missed_max: int
    body: bytes
    """Empty in a list; `body_bytes` has its size."""
    body_bytes: int
    tag: str
    keys: tuple[str, ...]
    message_group: str
    properties: Mapping[str, str]
    """Empty in a list."""
    paused: bool
    made_ms: int
    next_ms: int
    """0: none, it is paused or has a problem."""
    last_ms: int
    """Time that the last message is for; 0: none."""
    fired: int
    """Messages."""
    passed: int
    """Missed times without a message."""
    problem: str
    """Why it does not fire now; empty: it does."""
    moving_to: str = ""
    """The broker to which it is moved: it does not fire before that is done. Empty: it is not moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesView:
    schedules: tuple[ScheduleView, ...]
    """By topic and name."""
    silent: tuple[str, ...]
    """Brokers that did not answer; their schedules are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantView:
    """Actions that a user may do on names."""

    resource: str
    """`topic:NAME`, `topic:PREFIX*`, `topic:*`, the same with `group`, or `cluster`."""
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerView:
    """The user of this client, as the broker that answered knows it."""

    user: str
    """Empty: the broker has no users, and every call is allowed."""
    admin: bool
    """True: every call is allowed, except those between servers."""
    grants: tuple[GrantView, ...]
    broker_name: str
