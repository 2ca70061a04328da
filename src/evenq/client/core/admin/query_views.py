"""What the admin calls tell about stored messages, their way, clients and dead letters, as plain values.

Counts are of the moment; times are ms since the epoch, 0 = never or not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.model import FilterExpression, MessageQueue, MessageType

__all__ = [
    "ClientView",
    "ClientsView",
    "DeadLetterCountView",
    "DeadLetterView",
    "DeadLettersView",
    "FoundMessagesView",
    "GroupTraceView",
    "MessageTraceView",
    "MessageView",
    "ReplayView",
    "SubscriptionView",
    "TraceEventView",
    "TracesView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """One stored message. Looking at it changes nothing: no group, no progress, no delivery."""

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
    body: bytes
    """Perhaps only its beginning: `body_bytes` is the length of all of it."""
    body_bytes: int
    origin_topic: str = ""
    """Of a message of a retry or dead-letter topic: where it came from."""
    origin_message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessagesView:
    """Messages that fit a search."""

    messages: tuple[MessageView, ...]
    """Ascending store time, or descending when the newest were wanted first."""
    more: bool
    """True: a limit cut the result."""
    positions: Mapping[MessageQueue, int]
    """Of every queue that was looked at, the next offset: a search `after` them goes on."""
    silent: tuple[str, ...]
    """Brokers that did not answer: what they hold is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEventView:
    """One thing that happened to a message."""

    at_ms: int
    what: str
    """STORED, DELIVERED, INVISIBLE, ACKNOWLEDGED, DEAD_LETTERED, COMMITTED or RESET."""
    group: str
    client_id: str
    """Empty: not known."""
    attempt: int
    until_ms: int
    """DELIVERED, INVISIBLE: end of the invisible time; 0: at once, or while the client lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraceView:
    """What a message is to one group now."""

    group: str
    state: str
    """WAITING, IN_FLIGHT, RETRY, BLOCKED, FINISHED or DEAD_LETTERED."""
    attempt: int
    """Deliveries that count so far; 0: none, or not known any more."""
    client_id: str
    """IN_FLIGHT: whose life holds it, if a life does."""
    until_ms: int
    """IN_FLIGHT: end of the delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTraceView:
    """What became of one stored copy."""

    message: MessageView
    """Without its body."""
    groups: tuple[GroupTraceView, ...]
    events: tuple[TraceEventView, ...]
    """Ascending time; only what the broker still remembers."""
    remembered_since_ms: int
    """Events before are forgotten; 0: tracing is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesView:
    """What became of a message: one trace for each stored copy."""

    traces: tuple[MessageTraceView, ...]
    silent: tuple[str, ...]
    """Brokers that did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionView:
    """One topic that a client reads."""

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
    """That know it."""
    command_brokers: tuple[str, ...]
    """That can send it commands, such as `client_stack`."""
    owned: tuple[MessageQueue, ...]
    """Queues whose lock it holds."""
    inflight: int
    """Deliveries that its life holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsView:
    """Who talks to the cluster."""

    clients: tuple[ClientView, ...]
    """A client of several groups is here once for each."""
    silent: tuple[str, ...]
    """Brokers that did not answer: who talks only to them is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterView:
    """A message that a group could not handle."""

    queue: MessageQueue
    """In the dead-letter topic."""
    offset: int
    stored_ms: int
    """When it died."""
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
    """Empty unless bodies were wanted."""
    properties: Mapping[str, str]
    """As sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCountView:
    """How many dead letters of a group one broker holds."""

    group: str
    broker_name: str
    stored: int
    waiting: int
    """Of them not replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersView:
    """Dead letters, and how many there are."""

    counts: tuple[DeadLetterCountView, ...]
    letters: tuple[DeadLetterView, ...]
    """The newest first; none unless a group was named."""
    silent: tuple[str, ...]
    """Brokers that did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """How far the replay of dead letters is at one broker."""

    broker_name: str
    total: int
    """Waiting when it began."""
    replayed: int
    left_out: int
    """By the filter."""
    failed: int
    error: str
    """Of the first one that failed; empty: none did."""
    done: bool
    would: Mapping[str, int] = field(default_factory=dict)
    """Of a dry run: topic to the letters that would be sent there; an empty topic: nowhere to send them."""
