"""The sink's calls to brokers: routes for writers, a query's coordinator, staging and decisions.

Called by the writers, in Spark's workers and on the driver. Begin, Stage, Decide and Abandon are idempotent, so all but
Abandon are retried.
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
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.cluster import persist
from pyspark_evenq.brokers.topic_routes import CALL_MS, first_answer, query_route
from pyspark_evenq.options.sink import OnDecidedBatch

STAGE_MS = 20_000
DECIDE_MS = 40_000
"""The coordinator waits up to 20 s for brokers that publish."""
_SERVICE = "/evenq.v1.Staging/"
_coordinators: dict[tuple[int, str, str, OnDecidedBatch], str] = {}
"""`BegunBatch.key` -> coordinator, so that not each task must look it up."""
COORDINATORS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Brokers:
    """A topic's writable queues and their brokers."""

    queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, str]
    """Broker name -> address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunBatch:
    """A batch that a task begins to write."""

    query_id: str
    batch_id: int
    topic: str
    fixed_topic: bool
    """True: the query writes only to this topic. False: its rows contain topics."""
    on_decided: OnDecidedBatch = OnDecidedBatch.FAIL

    @property
    def key(self) -> tuple[int, str, str, OnDecidedBatch]:
        return os.getpid(), self.query_id, self.topic if self.fixed_topic else "", self.on_decided


@dataclass(frozen=True, slots=True)
class Winner:
    """One attempt whose rows become messages."""

    token: bytes
    brokers: tuple[str, ...]


def route_of(endpoints: Sequence[str], topic: str, *, timeout_ms: int) -> Brokers:
    """Returns the writable queues of a topic. Raises TopicNotFound, and Forbidden if none is writable."""
    return persist(f"the route of {topic}", lambda: _writable(endpoints, topic), timeout_ms=timeout_ms)


def _writable(endpoints: Sequence[str], topic: str) -> Brokers:
    queues_of_route = first_answer(endpoints, partial(query_route, topic, writes=True)).queues
    queues = {one.queue: one.address for one in sorted(queues_of_route) if one.writable}
    if not queues:
        raise errors.Forbidden(f"topic {topic} has no writable queue; see `evenq topic show {topic}`")
    return Brokers(tuple(queues), {queue.broker_name: address for queue, address in queues.items()})


def coordinator_of(addresses: Mapping[str, str], beginning: BegunBatch, *, timeout_ms: int) -> tuple[str, bool]:
    """Returns the broker that decides the query's batches, and whether it decided this one before. Raises
    PreconditionFailed for the batch of an older or copied checkpoint, Forbidden for another user's query.

    The first batch of a query chooses it by a hash and sends its name to all brokers of the cluster. So each remaining
    broker knows it, however the topic moves. A query does not begin while one of them does not answer. `addresses`: the
    brokers of the topic; they return the names of the others, unless they are of an older version.
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
        _coordinators.pop(key, None)  # it may have been removed from the cluster
        raise
    if response.decided and beginning.on_decided is OnDecidedBatch.WRITE:
        raise errors.PreconditionFailed(
            f"broker {known}, which decides for query {query_id}, is of a version that cannot write batch "
            f"{beginning.batch_id} again (onDecidedBatch=write): upgrade the brokers first"
        )
    return known, response.decided


def address_of(addresses: Mapping[str, str], broker_name: str) -> str:
    """Returns the address for calls to a broker: through another one if it no longer serves the topic."""
    address = addresses.get(broker_name)
    return (
        address if address is not None else address_for(broker_name, next(iter(addresses.values())).partition("#")[0])
    )


def _chosen(addresses: Mapping[str, str], beginning: BegunBatch) -> str:
    everyone = dict(addresses)
    """Also brokers without the topic: of a topic that has moved, or of another topic of the same query."""
    waiting = list(everyone)
    answers: dict[str, str] = {}
    draining: set[str] = set()
    silent: errors.Error | None = None
    while waiting:
        name = waiting.pop(0)
        try:
            response = _begin(everyone[name], beginning, "")
        except (errors.ConnectionFailed, errors.RequestTimeout) as error:
            silent = error
            continue
        answers[name] = response.coordinator
        if response.draining:
            draining.add(name)
        through = everyone[name].partition("#")[0]
        for other in response.brokers:
            if other not in everyone:
                everyone[other] = address_for(other, through)
                waiting.append(other)
    known = sorted(set(filter(None, answers.values())))
    if not known and silent is not None:
        raise silent  # this broker may know the coordinator
    # The tasks of a query whose rows name topics begin with different ones, and must choose from the same brokers.
    candidates = addresses.keys() if beginning.fixed_topic else everyone.keys() - draining or everyone.keys()
    chosen = known[0] if known else _hashed(candidates, beginning.query_id)
    # The chosen broker is notified first: no other may return a coordinator that does not know its role.
    for name in sorted(everyone, key=lambda name: name != chosen):
        if answers.get(name):
            continue
        try:
            coordinator = _begin(everyone[name], beginning, chosen).coordinator
        except (errors.ConnectionFailed, errors.RequestTimeout):
            if not known:
                raise
            continue
        # Another task chose at the same time. The smaller name wins for both, so they agree without communication.
        if coordinator != chosen and coordinator < chosen:
            return _chosen(addresses, beginning)
    return chosen


def _hashed(names: Iterable[str], query_id: str) -> str:
    from hashlib import blake2b

    return max(names, key=lambda name: (blake2b(f"{name}\0{query_id}".encode(), digest_size=8).digest(), name))


def _begin(address: str, beginning: BegunBatch, coordinator: str) -> Any:
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.BeginRequest(
        query_id=beginning.query_id,
        batch_id=beginning.batch_id,
        topics=[beginning.topic],
        coordinator=coordinator,
        fixed_topics=beginning.fixed_topic,
        on_decided=_wire(beginning.on_decided),
    )
    content = connection.unary(
        address, _SERVICE + "Begin", request.SerializeToString(), timeout_ms=CALL_MS, writes=True
    )
    response = staging_pb2.BeginResponse.FromString(content)
    check(response.status)
    return response


def _wire(on_decided: OnDecidedBatch) -> Any:
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    return staging_pb2.OnDecidedBatch.Value(f"ON_DECIDED_{on_decided.name}")


def stage(address: str, request: bytes, *, timeout_ms: int) -> None:
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    def once() -> None:
        content = connection.unary(address, _SERVICE + "Stage", request, timeout_ms=STAGE_MS, writes=True)
        check(staging_pb2.StageResponse.FromString(content).status)

    persist(f"staging rows at {address}", once, timeout_ms=timeout_ms)


def decide(
    address: str,
    query_id: str,
    batch_id: int,
    topics: Sequence[str],
    winners: Sequence[Winner],
    *,
    rows: int,
    checksum: int,
    on_decided: OnDecidedBatch,
    timeout_ms: int,
) -> tuple[bool, list[str]]:
    """Decides a batch and publishes it. Returns whether it was decided before, and brokers that publish later."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.DecideRequest(
        query_id=query_id,
        batch_id=batch_id,
        topics=topics,
        winners=[staging_pb2.Winner(token=winner.token, brokers=winner.brokers) for winner in winners],
        content=staging_pb2.BatchContent(rows=rows, checksum=checksum),
        on_decided=_wire(on_decided),
    ).SerializeToString()

    def once() -> Any:
        content = connection.unary(address, _SERVICE + "Decide", request, timeout_ms=DECIDE_MS, writes=True)
        response = staging_pb2.DecideResponse.FromString(content)
        check(response.status)
        return response

    response = persist(f"deciding batch {batch_id} of query {query_id}", once, timeout_ms=timeout_ms)
    return response.already, list(response.behind)


def abandon(address: str, query_id: str, batch_id: int, topics: Sequence[str], tokens: Sequence[bytes]) -> None:
    """Drops the rows of these tokens. Not retried: brokers drop rows without a decision after `staging.timeout_ms`."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import staging_pb2

    request = staging_pb2.AbandonRequest(query_id=query_id, batch_id=batch_id, topics=topics, tokens=tokens)
    content = connection.unary(
        address, _SERVICE + "Abandon", request.SerializeToString(), timeout_ms=CALL_MS, writes=True
    )
    check(staging_pb2.AbandonResponse.FromString(content).status)
