"""One tree of errors, shared by the servers, the SDK and the command line.

The class carries the policy: the wire code, whether a retry can help, whether the route should be refreshed first. Call
sites ask the class and never match on text. `evenq.wire.status` is the one table between these classes and the codes of
`apache.rocketmq.v2.Code`; a message is one human sentence that names the offending value, its limit and the fix.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Root of everything evenq raises on purpose."""

    code: ClassVar[int] = 50001
    """Number of `apache.rocketmq.v2.Code` that travels on the wire."""
    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without any change."""
    refresh_route: ClassVar[bool] = False
    """True if a client should fetch the topic's route again before it retries."""

    @property
    def message(self) -> str:
        """The sentence meant for people."""
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
    """A message group is blank or 64 bytes and longer."""

    code = 40006


class IllegalPropertyKey(BadRequest):
    """A user property has an empty name or one with control characters."""

    code = 40007


class InvalidTransactionId(BadRequest):
    """The transaction id is empty, forged or of another topic, or the transaction was given up."""

    code = 40008


class IllegalMessageId(BadRequest):
    """A message id is blank or too long."""

    code = 40009


class IllegalFilterExpression(BadRequest):
    """A filter expression does not parse or is of a kind the server does not know."""

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
    """A receipt handle is forged, malformed, expired, or of a delivery that is over."""

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
    """A queue offset lies outside the readable range. Read on at `min_offset`, or wait at `max_offset`."""

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
    """The caller is known but may not do this, or the queue does not take the operation."""

    code = 40300


class QueueClosed(Forbidden):
    """The queue, not the caller, is why nothing is taken: its topic was closed or shrunk, or its broker is drained.

    Nothing was stored. Another queue of the topic may take the message; a producer looks for one by itself.
    """


class NotFound(Error):
    """The named thing does not exist."""

    code = 40400


class MessageNotFound(NotFound):
    """Nothing to deliver within the time asked for."""

    code = 40401
    retryable = True


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
    """The request is larger than the server reads."""

    code = 41300


class BodyTooLarge(PayloadTooLarge):
    """A message body is over its limit."""

    code = 41301


class BodyEmpty(BadRequest):
    """A message has no body."""

    code = 41302


class PreconditionFailed(Error):
    """The state that the call names is not the present one: an old generation, a lock that another member holds."""

    code = 42800
    refresh_route = True


class QueueReplaced(PreconditionFailed):
    """The queue was deleted and created again: its offsets count other messages than the caller's. Take it anew."""

    def __init__(self, message: str, *, uid: str = "") -> None:
        super().__init__(message)
        self.uid = uid
        """What the queue's offsets count now."""


class DuplicateClientId(PreconditionFailed):
    """Another living member of the group has this client id. The SDK joins again under an id of its own."""


class TooManyRequests(Error):
    """A bounded queue or table is full. Retry after a pause."""

    code = 42900
    retryable = True


class LiteTopicQuotaExceeded(TooManyRequests):
    """A topic, or a broker, has as many lite topics as it may. Idle ones expire."""

    code = 42901
    retryable = False


class LiteSubscriptionQuotaExceeded(TooManyRequests):
    """A client is subscribed to as many lite topics as it may be."""

    code = 42902
    retryable = False


class PropertiesTooLarge(BadRequest):
    """A message has too many user properties, or they take too many bytes."""

    code = 43101


class InternalError(Error):
    """A fault in the server, or stored data that is damaged. The id in the text finds it in the server's log."""

    code = 50001
    retryable = True


class HaNotAvailable(Error):
    """Too few replicas are in sync, or another one becomes the leader. Nothing was written."""

    code = 50002
    retryable = True
    refresh_route = True


class NotImplementedYet(Error):
    """The server knows the call and does not serve it."""

    code = 50100


class PersistenceTimeout(Error):
    """The disk did not confirm in time, or failed. The message may or may not be stored."""

    code = 50401
    retryable = True


class Unsupported(Error):
    """The peer speaks a version that this side cannot serve."""

    code = 50500


# Raised below the wire: by the store, by settings, by a start. They reach clients as InternalError or as noted.


class StoreError(Error):
    """The store cannot serve."""


class StoreFull(StoreError):
    """The disk passed its watermark: no new messages until space is free. Reading, acks and offsets go on."""

    code = 42900
    retryable = True


class StorePoisoned(StoreError):
    """A write or fsync failed, so what is on disk is unknown. The process stops acknowledging and must restart."""


class StoreCorrupted(StoreError):
    """A file holds bytes that no recovery rule explains. The text names file and offset.

    `log_offset`: where in the commit log, if that is known; else -1.
    """

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        super().__init__(message)
        self.log_offset = log_offset


class WithinRecord(StoreError):
    """A log offset that should lie between two groups of records lies within one. The log itself is whole there, so who
    named the offset has another log.
    """


class RecordsDamaged(StoreError):
    """Bytes of another broker's log are not as that one wrote them, or do not go on where they should. None was stored.

    `log_offset`: the first record that is not right.
    """

    def __init__(self, message: str, *, log_offset: int = -1) -> None:
        super().__init__(message)
        self.log_offset = log_offset


class StoreLocked(StoreError):
    """Another process owns this data folder."""


class SettingsError(Error):
    """A setting is unknown or out of bounds."""


class PortInUse(Error):
    """The port to listen on is taken."""


class ConnectionFailed(Error):
    """No server answers at the address. The text names it and what to try."""

    code = 50400
    retryable = True
    refresh_route = True


class TlsFailed(ConnectionFailed):
    """A server listens at the address, but TLS with it fails: wrong scheme, authority, name or certificate. Retryable,
    because certificates are replaced; the text names what to change if they are not.
    """


class InvalidTransition(Error):
    """A state machine was asked for a move that cannot be; carries the object's short history."""
