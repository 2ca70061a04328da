"""One open transaction: its message is stored and invisible until it is committed or rolled back.

`Transaction` belongs to `evenq.Producer`, `AsyncTransaction` to `evenq.aio.Producer`. A `with` block commits after its
last line, and rolls back when an exception leaves it.

    with producer.begin_transaction(message):
        save_order()
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.errors import BadRequest, Error
from evenq.model import ReceivedMessage, TransactionResolution

log = logging.getLogger(__name__)

Checker = Callable[[ReceivedMessage], object]
"""Returns the outcome of a half message, a `TransactionResolution`. An exception means UNKNOWN."""
COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK


class _Half:
    def __init__(self, half: HalfMessage) -> None:
        self._half = half
        self.resolution: TransactionResolution | None = None
        """The resolution that was sent to the broker; None while the transaction is open."""

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
        ConnectionFailed or RequestTimeout the broker will call the checker.
        """
        self._decide(COMMIT)

    def rollback(self) -> None:
        """Discards the message. Raises as `commit`."""
        self._decide(ROLLBACK)

    def _decide(self, resolution: TransactionResolution) -> None:
        _must_be(self.resolution, resolution, self.message_id)
        self._end(self._half, resolution)
        self.resolution = resolution

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.resolution is not None:
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
        await self._end(self._half, resolution)
        self.resolution = resolution

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.resolution is not None:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except Error as failure:
            _log_lost_rollback(self.message_id, failure)


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
