"""Half messages and the calls for them. Used by `loops.transacting`; implemented in `rpc`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from evenq.client.core.routes.route import Route
from evenq.model import MessageQueue, ReceivedMessage, TransactionResolution


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A stored message that is not visible to consumers yet."""

    topic: str
    message_id: str
    transaction_id: str
    address: str
    """The broker to which the decision is sent; any other broker forwards it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A broker's query for the decision about a half message."""

    half: HalfMessage
    message: ReceivedMessage


class TransactionCalls(Protocol):
    """Calls of a producer of transactions. Errors are those of `core.calls`."""

    async def query_route(self, topic: str) -> Route:
        """Queries the access point. Raises TopicNotFound."""
        ...

    async def send_half(self, address: str, queue: MessageQueue, message_id: str, encoded: bytes) -> HalfMessage:
        """Stores an encoded message as a half message."""
        ...

    async def end_transaction(self, half: HalfMessage, resolution: TransactionResolution, *, checked: bool) -> None:
        """Sends the decision to the broker; `checked`: as the answer to a check. Raises InvalidTransactionId."""
        ...

    async def end_transaction_anywhere(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        """Sends the decision to the access point, which forwards it."""
        ...

    def checks(self, address: str, tellings: AsyncIterator[Iterable[str]]) -> AsyncGenerator[Check, None]:
        """Opens a stream to a broker: each request names the topics of this producer; the answers are checks."""
        ...
