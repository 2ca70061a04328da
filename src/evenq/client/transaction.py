"""Transactions of producers and of consumers. A `with` block commits after its last line; an exception rolls back.
After a `commit` or `rollback` inside the block, also a failed one, its end sends no decision.

The message of a producer's `Transaction` is stored and invisible until it is committed or rolled back. `Transaction`
belongs to `evenq.Producer`, `AsyncTransaction` to `evenq.aio.Producer`.

    with producer.begin_transaction(message):
        save_order()

A `ConsumerTransaction` collects messages and acknowledgements, and its commit is one call: all of them, or none.

    with consumer.transaction() as transaction:
        transaction.send("invoices", invoice_of(message))
        transaction.ack(message)
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from evenq.client.core.sending.message_arguments import MessageFields, message_of
from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.loops.sending.outgoing import Encoded, SendResult
from evenq.errors import BadRequest, Error, Unsupported
from evenq.model import Message, ReceivedMessage, TransactionResolution

if TYPE_CHECKING:
    from evenq.client.wiring import Encoder

log = logging.getLogger(__name__)

Checker = Callable[[ReceivedMessage], object]
"""Returns the outcome of a half message, a `TransactionResolution`. An exception means UNKNOWN."""
COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK


class _Half:
    def __init__(self, half: HalfMessage) -> None:
        self._half = half
        self.resolution: TransactionResolution | None = None
        """The resolution that the broker accepted; None before, and if its answer was lost."""
        self._tried = False
        """True once a decision was sent. The end of the block then sends none: it could be the opposite of one that the
        broker has, or that the caller wants."""

    @property
    def message_id(self) -> str:
        """Id of the message."""
        return self._half.message_id

    @property
    def transaction_id(self) -> str:
        """The broker's id of the transaction."""
        return self._half.transaction_id


class Transaction(_Half):
    """A half message of the sync producer."""

    def __init__(self, half: HalfMessage, end: Callable[[HalfMessage, TransactionResolution], None]) -> None:
        super().__init__(half)
        self._end = end

    def commit(self) -> None:
        """Makes the message visible. Raises InvalidTransactionId (the broker gave the transaction up meanwhile); after
        ConnectionFailed or RequestTimeout the end of the `with` block sends nothing, and the broker will call the
        checker, unless the decision arrived.
        """
        self._decide(COMMIT)

    def rollback(self) -> None:
        """Discards the message. Raises as `commit`."""
        self._decide(ROLLBACK)

    def _decide(self, resolution: TransactionResolution) -> None:
        _must_be(self.resolution, resolution, self.message_id)
        self._tried = True
        self._end(self._half, resolution)
        self.resolution = resolution

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tried:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except Error as failure:
            _log_lost_rollback(self.message_id, failure)


class AsyncTransaction(_Half):
    """A half message of the asyncio producer; see `Transaction`."""

    def __init__(self, half: HalfMessage, end: Callable[[HalfMessage, TransactionResolution], Awaitable[None]]) -> None:
        super().__init__(half)
        self._end = end

    async def commit(self) -> None:
        """Makes the message visible. Raises as `Transaction.commit`."""
        await self._decide(COMMIT)

    async def rollback(self) -> None:
        """Discards the message. Raises as `Transaction.commit`."""
        await self._decide(ROLLBACK)

    async def _decide(self, resolution: TransactionResolution) -> None:
        _must_be(self.resolution, resolution, self.message_id)
        self._tried = True
        await self._end(self._half, resolution)
        self.resolution = resolution

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tried:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Error as failure:
            _log_lost_rollback(self.message_id, failure)


class _Collected:
    """Messages and acknowledgements of one block, in order. For one thread or task."""

    def __init__(self, encoder: Encoder, leave: Callable[[list[ReceivedMessage]], object]) -> None:
        """`leave`: called with the acknowledged messages if the block fails."""
        self._encoder = encoder
        self._leave = leave
        self._sent: list[Encoded] = []
        self._acked: dict[str, ReceivedMessage] = {}
        self._ended = False
        self.results: list[SendResult] = []
        """Places of the sent messages in order, once committed."""

    def send(
        self, message: Message | str | None = None, body: bytes | None = None, /, **fields: Unpack[MessageFields]
    ) -> str:
        """Adds a message, or the one of a topic, a body and fields, as `Producer.send` takes them; returns its id.

        Messages that are ordered, delayed or for a lite topic are refused at the commit. Raises IllegalTopic,
        BodyEmpty, Unsupported after the end of the block.
        """
        self._must_be_open()
        encoded = self._encoder.encode(message_of(message, body, fields, None))
        self._sent.append(encoded)
        return encoded.message_id

    def ack(self, *messages: ReceivedMessage) -> None:
        """Adds acknowledgements, of messages of one broker."""
        self._must_be_open()
        for message in messages:
            self._acked[message.receipt_handle] = message

    def _must_be_open(self) -> None:
        if self._ended:
            raise Unsupported("the block of this transaction has ended; begin a new one with `transaction()`")

    def _committed(self, failed: bool) -> tuple[list[ReceivedMessage], list[Encoded]] | None:
        """Ends the block; returns what to commit, None: nothing."""
        self._ended = True
        acked = list(self._acked.values())
        if failed:
            self._leave(acked)
            return None
        return (acked, self._sent) if acked or self._sent else None


class ConsumerTransaction(_Collected):
    """A transaction of the sync simple consumer."""

    def __init__(
        self,
        encoder: Encoder,
        leave: Callable[[list[ReceivedMessage]], object],
        commit: Callable[[list[ReceivedMessage], list[Encoded]], list[SendResult]],
    ) -> None:
        super().__init__(encoder, leave)
        self._commit = commit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collected = self._committed(kind is not None)
        if collected is not None:
            self.results = self._commit(*collected)


class AsyncConsumerTransaction(_Collected):
    """A transaction of the asyncio simple consumer; see `ConsumerTransaction`."""

    def __init__(
        self,
        encoder: Encoder,
        leave: Callable[[list[ReceivedMessage]], object],
        commit: Callable[[list[ReceivedMessage], list[Encoded]], Awaitable[list[SendResult]]],
    ) -> None:
        super().__init__(encoder, leave)
        self._commit = commit

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collected = self._committed(kind is not None)
        if collected is not None:
            self.results = await self._commit(*collected)


async def resolution_of(result: object) -> TransactionResolution:
    """Returns a checker's result, awaited if it is of a coroutine function. Raises BadRequest for another value."""
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, TransactionResolution):
        raise BadRequest(
            f"the checker returned {result!r}; return a TransactionResolution: COMMIT, ROLLBACK or UNKNOWN"
        )
    return result


def _must_be(was: TransactionResolution | None, decision: TransactionResolution, message_id: str) -> None:
    if was not in {None, decision}:
        raise BadRequest(f"the transaction of message {message_id} was ended with {was}; it cannot be {decision} now")


def _log_lost_rollback(message_id: str, error: Error) -> None:
    log.warning(
        "the rollback of message %s did not reach its broker, which will call the checker: %s", message_id, error
    )
