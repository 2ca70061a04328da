"""Queries to all other brokers: any broker answers for the whole cluster, and merges the answers.

Each query has a deadline. It has the header `x-evenq-local`, so the other broker answers from its own data alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from evenq.errors import ConnectionFailed, Error, NotFound
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.rpc.answers import answer_of

LOCAL_HEADER = "x-evenq-local"
THEY_DELETE_IT = "they delete it when they are back"
M = TypeVar("M", bound=Message)


async def asked_of_others(
    rpc: str, request: bytes, response: type[M], *, cluster: ClusterLink
) -> tuple[list[M], list[str]]:
    """Returns the answers of brokers that know the object, and the names of silent or missing brokers, ascending."""
    answers = await cluster.peers.ask_peers(f"/evenq.v1.Admin/{rpc}", request, metadata={LOCAL_HEADER: "1"})
    silent = set(cluster.known.out_of_reach())
    responses: list[M] = []
    for name, result in answers:
        try:
            responses.append(answer_of(response, result))
        except NotFound:
            continue
        except Error:
            silent.add(name)
    return responses, sorted(silent)


def must_be_complete(
    failed: Sequence[tuple[str, Error]], what: str, *, later: str = "do it again when they answer"
) -> None:
    """Raises ConnectionFailed if brokers failed: it names them, and `later` says how it is completed."""
    if failed:
        missing = "; ".join(f"{name}: {error.message}" for name, error in failed)
        raise ConnectionFailed(f"{what} here, but not on every broker ({missing}); {later}")
