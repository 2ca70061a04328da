"""Half messages, and the brokers' checks of them. Used by `loops.transacting` and `rpc.transactions`."""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import ReceivedMessage


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
