"""The seam for instrumentation: one observer of the process, which all clients report their operations to.

There is none by default; `evenq.otel.instrument` sets one. A client compares `OBSERVED.observer` with None once for
each call of its user, so a client that is not observed pays nothing else. The functions at the end return a stand-in
that does nothing; calls that are not hot use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from evenq.model import Message, MessageModel, MessageQueue, ReceivedMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """The client that an operation belongs to."""

    client_id: str = ""
    endpoint: str = ""
    """Its access points, `host:port` joined with `;`."""
    group: str = ""
    """Its consumer group; empty: it is a producer."""
    model: MessageModel = MessageModel.CLUSTERING
    """For consumers."""


class Observation(Protocol):
    """An operation as a `with` block: an exception that leaves the block is its error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class SendObservation(Observation, Protocol):
    """The send of one message. It ends with `stored` or `failed`, also after the block."""

    @property
    def message(self) -> Message:
        """The message to send, with the context of the send."""
        ...

    def stored(self, message_id: str, queue: MessageQueue | None = None) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def follow(self, future: Any) -> None:
        """Ends with this future of asyncio or of threads, whose result is a `SendResult`."""
        ...


class BatchObservation(Observation, Protocol):
    """A `send_batch`. It ends with its block."""

    def each(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yields the messages to send, with the context of the send."""
        ...


class ReceiveObservation(Observation, Protocol):
    """A receive or poll that the user called."""

    def received(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Returns the same messages."""
        ...


class ProcessObservation(Observation, Protocol):
    """A listener call; its block runs in the context of the call."""

    def returned(self, result: object) -> object:
        """Returns the listener's result."""
        ...


class Observer(Protocol):
    """Called in the user's threads and in the SDK's loop."""

    def send(self, client: ClientIdentity, message: Message, *, transaction: bool = False) -> SendObservation: ...

    def send_batch(self, client: ClientIdentity) -> BatchObservation: ...

    def receive(self, client: ClientIdentity) -> ReceiveObservation: ...

    def process(self, client: ClientIdentity, messages: Sequence[ReceivedMessage]) -> ProcessObservation: ...

    def settle(
        self, client: ClientIdentity, operation: str, messages: Sequence[ReceivedMessage]
    ) -> AbstractContextManager[object]:
        """`operation`: ack, change_invisible, commit, retry, dead_letter or suspend."""
        ...


class _Observed:
    __slots__ = ("observer",)

    def __init__(self) -> None:
        self.observer: Observer | None = None


OBSERVED = _Observed()


class _NotObserved:
    """Replaces an observation where there is no observer."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def received(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return messages


class _SendNotObserved(_NotObserved):
    __slots__ = ("message",)

    def __init__(self, message: Message) -> None:
        self.message = message

    def stored(self, message_id: str, queue: MessageQueue | None = None) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def follow(self, future: Any) -> None: ...


_NOT_OBSERVED = _NotObserved()


def observed_send(client: ClientIdentity, message: Message, *, transaction: bool = False) -> SendObservation:
    """Begins to observe the send of one message."""
    observer = OBSERVED.observer
    return _SendNotObserved(message) if observer is None else observer.send(client, message, transaction=transaction)


def observed_receive(client: ClientIdentity) -> ReceiveObservation:
    """Begins to observe a receive or poll."""
    observer = OBSERVED.observer
    return _NOT_OBSERVED if observer is None else observer.receive(client)


def observed_settle(
    client: ClientIdentity, operation: str, messages: Sequence[ReceivedMessage] = ()
) -> AbstractContextManager[object]:
    """Begins to observe a settlement; `operation` as in `Observer.settle`."""
    observer = OBSERVED.observer
    return _NOT_OBSERVED if observer is None else observer.settle(client, operation, messages)
