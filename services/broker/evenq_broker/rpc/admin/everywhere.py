"""Any broker answers for the whole cluster: it asks the others, each with a deadline, and adds up.

A request with the header `x-evenq-local` is such a question from another broker and is answered from here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from evenq.errors import (
    ConnectionFailed,
    Error,
    NotFound,
)
from evenq.wire import status
from evenq_broker.loops.cluster.link import ClusterLink

__all__ = ["LOCAL_HEADER", "THEY_DELETE_IT", "asked_of_others", "must_be_complete"]

LOCAL_HEADER = "x-evenq-local"
THEY_DELETE_IT = "they delete it when they are back"
M = TypeVar("M", bound=Message)


async def asked_of_others(
    rpc: str, request: bytes, response: type[M], *, cluster: ClusterLink
) -> tuple[list[M], list[str]]:
    """What the other brokers say, one that does not know the thing nothing; and the names of those that do not answer
    or are missing, ascending: a number without theirs is too small.
    """
    answers = await cluster.peers.ask_peers(f"/evenq.v1.Admin/{rpc}", request, metadata={LOCAL_HEADER: "1"})
    silent = set(cluster.known.out_of_reach())
    responses: list[M] = []
    for name, result in answers:
        try:
            responses.append(_checked(result, response))
        except NotFound:
            continue
        except Error:
            silent.add(name)
    return responses, sorted(silent)


def _checked(result: bytes | Error, response: type[M]) -> M:
    if isinstance(result, Error):
        raise result
    message = response.FromString(result)
    status.check(message.status)  # type: ignore[attr-defined]  # each has one
    return message


def must_be_complete(
    failed: Sequence[tuple[str, Error]], what: str, *, later: str = "do it again when they answer"
) -> None:
    """Raises ConnectionFailed that names the brokers where `what` did not happen, and says how it will."""
    if failed:
        missing = "; ".join(f"{name}: {error.message}" for name, error in failed)
        raise ConnectionFailed(f"{what} here, but not on every broker ({missing}); {later}")
