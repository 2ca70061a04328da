"""What the sink asks of the brokers: routes for writers, a query's coordinator, staging and deciding.

Called by the writers, in Spark's workers and on the driver. Requests go over `connection` as bytes; protobuf stays in
here and in `sink_blocks`. Every call that may be repeated is: Begin, Stage, Decide and Abandon all are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evenq import errors
from evenq.model.queue import MessageQueue
from evenq.wire.addresses import address_for
from pyspark_evenq import connection
from pyspark_evenq.cluster import persist
from pyspark_evenq.sink_options import OnDecidedBatch
from pyspark_evenq.topic_routes import CALL_MS, first_answer, query_route

__all__ = ["Beginning", "Brokers", "Winner", "abandon", "coordinator_of", "decide", "route_of", "stage"]

STAGE_MS = 20_000
DECIDE_MS = 40_000
"""The coordinator waits up to 20 s for brokers that publish."""
_SERVICE = "/evenq.v1.Staging/"
_coordinators: dict[tuple[int, str, str, OnDecidedBatch], str] = {}
"""By process and query, and as what the query's brokers were told of it: what needs not be asked for each task."""
COORDINATORS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Brokers:
    """Where a topic's writable queues are."""

    queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, str]
    """By name of the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A batch that a task begins to write."""

    query_id: str
    batch_id: int
    topic: str
    fixed_topic: bool
    """Whether the query writes to this topic alone; else its rows name topics."""
    on_decided: OnDecidedBatch = OnDecidedBatch.FAIL

    @property
    def key(self) -> tuple[int, str, str, OnDecidedBatch]:
        """Of `_coordinators`."""
        return os.getpid(), self.query_id, self.topic if self.fixed_topic else "", self.on_decided


@dataclass(frozen=True, slots=True)
class Winner:
    """One attempt whose rows shall become messages."""

    token: bytes
    brokers: tuple[str, ...]


def route_of(endpoints: Sequence[str], topic: str, *, timeout_ms: int) -> Brokers:
    """The writable queues of a topic. Raises TopicNotFound, and Forbidden if none is writable."""
    return persist(f"the route of {topic}", lambda: _writable(endpoints, topic), timeout_ms=timeout_ms)


def _writable(endpoints: Sequence[str], topic: str) -> Brokers:
    queues_of_route = first_answer(endpoints, partial(query_route, topic, writes=True)).queues
    queues = {one.queue: one.address for one in sorted(queues_of_route) if one.writable}
    if not queues:
        raise errors.Forbidden(f"topic {topic} has no writable queue; see `evenq topic show {topic}`")
    return Brokers(tuple(queues), {queue.broker_name: address for queue, address in queues.items()})


# -- who decides ------------------------------------------------------------------------------------------------------


def coordinator_of(addresses: Mapping[str, str], beginning: Beginning, *, timeout_ms: int) -> tuple[str, bool]:
    """The broker that decides the query's batches, and whether it decided this one before. Raises PreconditionFailed
    for the batch of an older or copied checkpoint, Forbidden for another user's query.

    The first batch of a query chooses it, by a hash, and tells all brokers of its topics, so that each of them that is
    there later knows it, however their list changes. A query does not begin while one of them does not answer.
    """
    query_id, key = beginning.query_id, beginning.key
    known = _coordinators.get(key)
    if known is None:
        known = persist(
            f"the coordinator of query {query_id}", lambda: _chosen(addresses, beginning), timeout_ms=timeout_ms
        )
        while len(_coordinators) >= COORDINATORS_MAX:
            del _coordinators[next(iter(_coordinators))]
        _coordinators[key] = known
    at = address_of(addresses, known)
    try:
        response = persist(
            f"broker {known}, which decides for query {query_id},",
            lambda: _begin(at, beginning, known),
            timeout_ms=timeout_ms,
        )
    except errors.Error:
        _coordinators.pop(key, None)  # it may be forgotten by now
        raise
    if response.decided and beginning.on_decided is OnDecidedBatch.WRITE:
        raise errors.PreconditionFailed(
            f"broker {known}, which decides for query {query_id}, is of a version that cannot write batch "
            f"{beginning.batch_id} again (onDecidedBatch=write): upgrade the brokers first"
        )
    return known, response.decided


def address_of(addresses: Mapping[str, str], broker_name: str) -> str:
    """Where a broker is called: one that is none of the topic's any more through another one."""
    address = addresses.get(broker_name)
    return (
        address if address is not None else address_for(broker_name, next(iter(addresses.values())).partition("#")[0])
    )


def _chosen(addresses: Mapping[str, str], beginning: Beginning) -> str:
    answers: dict[str, str] = {}
    silent: errors.Error | None = None
    for name, address in addresses.items():
        try:
            answers[name] = _begin(address, beginning, "").coordinator
        except (errors.ConnectionFailed, errors.RequestTimeout) as error:
            silent = error
    known = sorted(set(filter(None, answers.values())))
    if not known and silent is not None:
        raise silent  # it may be the one that knows
    chosen = known[0] if known else _hashed(addresses, beginning.query_id)
    # The chosen one hears of it first: no other broker may name a coordinator that does not know it is one.
    for name in sorted(addresses, key=lambda name: name != chosen):
        if answers.get(name):
            continue
        try:
            coordinator = _begin(addresses[name], beginning, chosen).coordinator
        except (errors.ConnectionFailed, errors.RequestTimeout):
            if not known:
                raise
            continue
        # The smaller name wins for both tasks, so that they agree without a word to each other.
        if coordinator != chosen and coordinator < chosen:
            return _chosen(addresses, beginning)  # another task chose at the same moment
    return chosen


def _hashed(names: Iterable[str], query_id: str) -> str:
    from hashlib import blake2b

    return max(names, key=lambda name: (blake2b(f"{name}\0{query_id}".encode(), digest_size=8).digest(), name))


def _begin(address: str, beginning: Beginning, coordinator: str) -> Any:
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.BeginRequest(
        query_id=beginning.query_id, batch_id=beginning.batch_id, topics=[beginning.topic], coordinator=coordinator,
        fixed_topics=beginning.fixed_topic, on_decided=_wire(beginning.on_decided),
    )  # fmt: skip
    content = connection.unary(
        address, _SERVICE + "Begin", request.SerializeToString(), timeout_ms=CALL_MS, writes=True
    )
    response = staging_pb2.BeginResponse.FromString(content)
    check(response.status)
    return response


def _wire(on_decided: OnDecidedBatch) -> Any:
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    return staging_pb2.OnDecidedBatch.Value(f"ON_DECIDED_{on_decided.name}")


# -- rows and decisions -----------------------------------------------------------------------------------------------


def stage(address: str, request: bytes, *, timeout_ms: int) -> None:
    """Keep a block of rows at a broker; `request` is an encoded StageRequest."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    def once() -> None:
        content = connection.unary(address, _SERVICE + "Stage", request, timeout_ms=STAGE_MS, writes=True)
        check(staging_pb2.StageResponse.FromString(content).status)

    persist(f"staging rows at {address}", once, timeout_ms=timeout_ms)


def decide(
    address: str, query_id: str, batch_id: int, topics: Sequence[str], winners: Sequence[Winner], *, rows: int,
    checksum: int, on_decided: OnDecidedBatch, timeout_ms: int,
) -> tuple[bool, list[str]]:  # fmt: skip
    """Decide a batch and have it published. Returns whether it was decided before, and the brokers that are behind."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.DecideRequest(
        query_id=query_id, batch_id=batch_id, topics=topics,
        winners=[staging_pb2.Winner(token=winner.token, brokers=winner.brokers) for winner in winners],
        content=staging_pb2.BatchContent(rows=rows, checksum=checksum), on_decided=_wire(on_decided),
    ).SerializeToString()  # fmt: skip

    def once() -> Any:
        content = connection.unary(address, _SERVICE + "Decide", request, timeout_ms=DECIDE_MS, writes=True)
        response = staging_pb2.DecideResponse.FromString(content)
        check(response.status)
        return response

    response = persist(f"deciding batch {batch_id} of query {query_id}", once, timeout_ms=timeout_ms)
    return response.already, list(response.behind)


def abandon(address: str, query_id: str, batch_id: int, topics: Sequence[str], tokens: Sequence[bytes]) -> None:
    """These rows shall never become messages. Tried once: what is left without a decision is dropped after a while."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.AbandonRequest(query_id=query_id, batch_id=batch_id, topics=topics, tokens=tokens)
    content = connection.unary(
        address, _SERVICE + "Abandon", request.SerializeToString(), timeout_ms=CALL_MS, writes=True
    )
    check(staging_pb2.AbandonResponse.FromString(content).status)
