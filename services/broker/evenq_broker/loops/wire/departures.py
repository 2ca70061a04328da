"""Which v2 clients live, between brokers (`loops.groups.departures`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import peers_pb2

__all__ = ["ClientsKnown", "clients_known", "clients_request"]


class ClientsKnown(NamedTuple):
    """What a broker knows of clients that another one doubts."""

    alive: Mapping[str, int]
    """Client id to ms since its last call there; 0: it has a stream or a waiting poll there."""
    gone: frozenset[str]
    """They said goodbye to it and made no call since."""


def clients_request(*, ended: Iterable[str] = (), asked: Iterable[str] = ()) -> bytes:
    """Reports ends, and asks which clients live."""
    return peers_pb2.ClientsRequest(ended=ended, asked=asked).SerializeToString()


def clients_known(response: bytes) -> ClientsKnown:
    """The other broker's answer. Raises what its status says."""
    message = peers_pb2.ClientsResponse.FromString(response)
    check(message.status)
    silent_ms = [*message.silent_ms, *[0] * len(message.alive)]  # an older version leaves it out
    return ClientsKnown(dict(zip(message.alive, silent_ms, strict=False)), frozenset(message.gone))
