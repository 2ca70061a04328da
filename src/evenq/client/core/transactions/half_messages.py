"""What a producer of transactions knows of one, and what it asks of servers. Used by `loops.transacting`; `rpc` does
it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from evenq.client.core.routes.route import Route
from evenq.model import MessageQueue, ReceivedMessage, TransactionResolution

__all__ = ["Check", "HalfMessage", "TransactionCalls"]


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """A message that was stored and that no consumer sees yet."""

    topic: str
    message_id: str
    transaction_id: str
    address: str
    """The broker to tell the decision; any other passes it on."""


@dataclass(frozen=True, slots=True)
class Check:
    """A broker asks what became of a half message."""

    half: HalfMessage
    message: ReceivedMessage


class TransactionCalls(Protocol):
    """What a producer of transactions needs. Errors are those of `core.calls`."""

    async def query_route(self, topic: str) -> Route:
        """Ask the access point. Raises TopicNotFound."""
        ...

    async def send_half(self, address: str, queue: MessageQueue, message_id: str, encoded: bytes) -> HalfMessage:
        """Store an encoded message as a half message."""
        ...

    async def end_transaction(self, half: HalfMessage, resolution: TransactionResolution, *, checked: bool) -> None:
        """Tell the decision to the broker; `checked`: because it asked. Raises InvalidTransactionId."""
        ...

    async def end_transaction_anywhere(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        """The same at the access point, which passes it on."""
        ...

    def checks(self, address: str, tellings: AsyncIterator[Iterable[str]]) -> AsyncGenerator[Check, None]:
        """A line to a broker: each telling names the topics that we publish to; checks come back."""
        ...
