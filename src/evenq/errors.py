"""Errors of the servers, the SDK and the command line, as one tree of classes.

The class carries the policy: the wire code, whether a retry can help, and whether to refresh the route first. Callers
test the class and never match on text. `evenq.wire.status` maps the classes to codes of `apache.rocketmq.v2.Code`. A
text is one sentence that names the value, its limit and the fix.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Root of all errors that evenq raises on purpose."""

    code: ClassVar[int] = 50001
    """Number of `apache.rocketmq.v2.Code` on the wire."""
    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without a change."""
    refresh_route: ClassVar[bool] = False
    """True if a client should query the topic's route again before it retries."""

    @property
    def message(self) -> str:
        """The text: one sentence for people."""
        return str(self)


class BadRequest(Error):
    """The request breaks a rule that no more specific class names."""

    code = 40000


class IllegalAccessPoint(BadRequest):
    """The access point in the request is empty or malformed."""

    code = 40001


class IllegalTopic(BadRequest):
    """A topic name is empty, too long, reserved, or holds a character outside `[%a-zA-Z0-9_-]`."""

    code = 40002


class IllegalGroup(BadRequest):
    """A consumer group name is empty, too long, reserved, or holds a character outside `[%a-zA-Z0-9_-]`."""

    code = 40003


class IllegalMessageTag(BadRequest):
    """A tag is blank or holds `|` or a control character."""

    code = 40004


class IllegalMessageKey(BadRequest):
    """A key is blank or holds a control character."""

    code = 40005


class IllegalMessageGroup(BadRequest):
    """A message group is blank or longer than 63 bytes."""

    code = 40006


class IllegalPropertyKey(BadRequest):
    """A user property has an empty name or one with control characters."""

    code = 40007


class InvalidTransactionId(BadRequest):
    """The transaction id is empty, forged or of another topic, or the broker gave the transaction up."""

    code = 40008


class IllegalMessageId(BadRequest):
    """A message id is blank or too long."""

    code = 40009


class IllegalFilterExpression(BadRequest):
    """A filter expression does not parse, or the server does not support its type."""

    code = 40010


class IllegalInvisibleTime(BadRequest):
    """An invisible duration lies outside the accepted range."""

    code = 40011


class IllegalDeliveryTime(BadRequest):
    """A delivery time lies too far ahead."""

    code = 40012


class IllegalLiteTopic(BadRequest):
    """The name of a lite topic is blank, too long, or has a character that is not allowed."""

    code = 40020


class InvalidReceiptHandle(BadRequest):
    """A receipt handle is forged, malformed or expired, or its delivery has ended."""

    code = 40013


class MessageTypeConflict(BadRequest):
    """The message's properties do not fit its declared type or the type of its topic."""

    code = 40014


class UnrecognizedClientType(BadRequest):
    """The client type is unknown."""

    code = 40015


class MessageCorrupted(BadRequest):
    """A message does not fit its digest, or a request holds no message or several topics."""

    code = 40016


class ClientIdRequired(BadRequest):
    """The header `x-mq-client-id` is missing or blank."""

    code = 40017


class IllegalOffset(BadRequest):
    """A queue offset is outside the readable range. Continue at `min_offset`, or wait at `max_offset` (-1: unknown)."""

    code = 40019

    def __init__(self, message: str, *, min_offset: int = -1, max_offset: int = -1) -> None:
        super().__init__(message)
        self.min_offset = min_offset
        self.max_offset = max_offset


class InvalidClientProperties(BadRequest):
    """Client properties break the limits on number, length or alphabet."""

    code = 40021


class Unauthorized(Error):
    """The credentials are missing or wrong."""

    code = 40100


class Forbidden(Error):
    """The caller is known but lacks the grant, or the queue does not accept the operation."""

    code = 40300


class QueueClosed(Forbidden):
    """The queue accepts no messages: its topic was closed or shrunk, or its broker is drained.

    Nothing was stored. Another queue of the topic may accept the message; producers choose one automatically.
    """


class NotFound(Error):
    """The named thing does not exist."""

    code = 40400


class MessageNotFound(NotFound):
    """The requested message is not stored, or no longer. On the wire also the answer of a receive without messages."""

    code = 40401


class TopicNotFound(NotFound):
    """No broker serves the topic. Create it, or allow auto-creation."""

    code = 40402
    refresh_route = True


class GroupNotFound(NotFound):
    """The consumer group does not exist. Create it, or allow auto-creation."""

    code = 40403


class OffsetNotFound(NotFound):
    """The group has no committed offset for the queue yet."""

    code = 40404


class RequestTimeout(Error):
    """The call did not finish within its deadline; it may or may not have taken effect."""

    code = 40800
    retryable = True


class PayloadTooLarge(BadRequest):
    """The request is larger than the server accepts."""

    code = 41300


class BodyTooLarge(PayloadTooLarge):
    """A message body exceeds its limit."""

    code = 41301


class BodyEmpty(BadRequest):
    """A message has no body."""

    code = 41302


class InvalidBody(BadRequest):
    """A codec cannot decode the body of a message, and never will. Raised by the SDK, never sent."""


class PreconditionFailed(Error):
    """The call names a state that is not current: an old generation, or a lock that another member holds."""

    code = 42800
    refresh_route = True


class QueueReplaced(PreconditionFailed):
    """The queue was deleted and created again: its offsets count other messages than the caller's. Start it anew."""

    def __init__(self, message: str, *, uid: str = "") -> None:
        super().__init__(message)
        self.uid = uid
        """Id of the present numbering of the offsets; it changes each time the topic is created."""


class DuplicateClientId(PreconditionFailed):
    """Another live member of the group has this client id. The SDK joins again with an id of its own."""


class TooManyRequests(Error):
    """A bounded queue or table is full. Retry after a pause."""

    code = 42900
    retryable = True


class LiteTopicQuotaExceeded(TooManyRequests):
    """A topic or a broker has reached its limit of lite topics. Idle ones expire."""

    code = 42901
    retryable = False


class LiteSubscriptionQuotaExceeded(TooManyRequests):
    """A client has reached its limit of subscriptions to lite topics."""

    code = 42902
    retryable = False


class PropertiesTooLarge(BadRequest):
    """A message has too many user properties, or they take too many bytes."""

    code = 43101


class InternalError(Error):
    """A fault in the server, or damaged stored data. The id in the text leads to the entry in the server's log."""

    code = 50001
    retryable = True


class HaNotAvailable(Error):
    """Too few copies are in sync, or the leader is changing. Nothing was written."""

    code = 50002
    retryable = True
    refresh_route = True


class NotImplementedYet(Error):
    """The server recognizes the call but does not serve it."""

    code = 50100


class PersistenceTimeout(Error):
    """The disk did not confirm in time, or failed. The message may or may not be stored."""

    code = 50401
    retryable = True


class Unsupported(Error):
    """The peer's version, or the state of the client, does not support the call."""

    code = 50500


# Raised below the wire: by the store, settings or a start. Clients receive InternalError, or the code of the class.


class StoreError(Error):
    """The store cannot serve the call."""


class StoreFull(StoreError):
    """The disk is above its watermark: new messages are refused until space is free; reads and acks are accepted."""

    code = 42900
    retryable = True


class StorePoisoned(StoreError):
    """A write or fsync failed, so the content of the disk is unknown. Nothing more is acknowledged until a restart."""


class StoreCorrupted(StoreError):
    """A file holds bytes that no recovery rule explains. `log_offset`: position in the commit log, -1 if unknown."""

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        super().__init__(message)
        self.log_offset = log_offset


class WithinRecord(StoreError):
    """A log offset lies within a group of records. The log itself is whole, so the offset belongs to another log."""


class RecordsDamaged(StoreError):
    """Bytes of another broker's log are damaged or not continuous. `log_offset`: the first bad record."""

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        super().__init__(message)
        self.log_offset = log_offset


class StoreLocked(StoreError):
    """Another process owns this data folder."""


class SettingsError(Error):
    """A setting is unknown, out of bounds, or contradicts another one."""


class PortInUse(Error):
    """The port to listen on is in use."""


class ConnectionFailed(Error):
    """No server answers at the address. The text names the address and what to try."""

    code = 50400
    retryable = True
    refresh_route = True


class TlsFailed(ConnectionFailed):
    """TLS with the server fails: wrong scheme, authority, name or certificate. Retryable: certificates are replaced."""


class InvalidTransition(Error):
    """A state machine received an event that its state does not allow. The text shows the object's state or history."""
