"""The source's calls to brokers: routes, bounds of queues, progress, blocks of messages.

Called by the readers, in the driver's runner and in Spark's workers. `connection` sends requests as bytes; answers are
returned as plain values. An answer that is not OK raises the class of `evenq.errors` of its code.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import random
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from evenq import errors
from evenq.client.core.routes.access_points import access_points
from evenq.columns.extra_columns import must_be_unique
from evenq.errors import SettingsError
from evenq.model.names import is_system_topic
from evenq.model.queue import MessageQueue
from evenq.runtime.backoff import Backoff
from pyspark_evenq.brokers import connection
from pyspark_evenq.brokers.topic_routes import CALL_MS, first_answer, query_route
from pyspark_evenq.options.source import ReadOptions, SchemaStyle
from pyspark_evenq.options.values import NEAR
from pyspark_evenq.plan.offsets import Positions
from pyspark_evenq.plan.planner import Bounds, OffsetRange
from pyspark_evenq.plan.positions import QueueState

if TYPE_CHECKING:
    from evenq.wire.stubs.evenq.v1 import common_pb2

log = logging.getLogger(__name__)
T = TypeVar("T")

Route = Mapping[MessageQueue, str]
"""The address (`host:port`) of the broker that serves each readable queue."""
Suits = Callable[[MessageQueue, QueueState], bool]
"""Decides whether a follower's state of a queue is enough for a plan."""
MARKS_MAX = 256
"""Marks in one call: the brokers' limit."""
SAMPLE_COUNT = 64
SAMPLE_BYTES = 64 << 10
RECORDS_VERSION = 1


class BrokersAway(errors.ConnectionFailed):
    """Queues of the topics are on no broker that answers, and failOnUnavailable is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Brokers of the readable queues of some topics."""

    addresses: dict[MessageQueue, str] = field(default_factory=dict)
    away: dict[MessageQueue, str] = field(default_factory=dict)
    """Queues that no live broker serves -> reason as a text. Also empty if the answering broker is too old to report
    them; then `whole` is False."""
    missing: dict[str, errors.TopicNotFound] = field(default_factory=dict)
    followers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Broker name -> addresses of its followers, which answer readers that accept any copy."""
    whole: bool = True

    def must_exist(self) -> Located:
        """Returns itself; raises TopicNotFound for the first topic that does not exist."""
        for error in self.missing.values():
            raise error
        return self

    def followers_of(self, queue: MessageQueue) -> tuple[str, ...]:
        """Returns followers, starting with another one for each queue, so that they share the reads."""
        followers = self.followers.get(queue.broker_name, ())
        first = queue.queue_id % len(followers) if followers else 0
        return followers[first:] + followers[:first]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """States of the queues of some topics, as far as brokers answered in time."""

    located: Located
    states: dict[MessageQueue, QueueState]
    unavailable: dict[MessageQueue, str]
    """Queues without a state -> reason as a text."""

    def must_be_complete(self, timeout_ms: int) -> None:
        """Raises BrokersAway if a queue has no state."""
        if self.unavailable:
            from pyspark_evenq.plan.losses import named

            brokers = sorted({queue.broker_name for queue in self.unavailable})
            reasons = "; ".join(dict.fromkeys(self.unavailable[queue] for queue in sorted(self.unavailable)))
            raise BrokersAway(
                f"no broker answers for {named(self.unavailable)} within {timeout_ms} ms (readTimeoutMs): {reasons}; "
                f"start {' and '.join(brokers)} again, or remove it permanently with `evenq broker forget "
                f"{brokers[0]}`, or set failOnUnavailable=false to read the rest"
            )


class RecordParts(NamedTuple):
    """Parts of each record, besides its header, that the requested columns need."""

    head: bool
    """Topic, user properties and body."""
    system: bool
    verifies: bool = False
    """The reader compares checksums itself, so the broker does not."""


def route(endpoints: Sequence[str], topics: Iterable[str]) -> dict[MessageQueue, str]:
    """Returns addresses of the readable queues that a broker serves now, as `locate`. Raises TopicNotFound."""
    return locate(endpoints, topics, whole=False).must_exist().addresses


def locate(endpoints: Sequence[str], topics: Iterable[str], *, whole: bool = True) -> Located:
    """Locates readable queues, and with `whole` those without a broker. The first endpoint that answers decides."""
    addresses: dict[MessageQueue, str] = {}
    away: dict[MessageQueue, str] = {}
    missing: dict[str, errors.TopicNotFound] = {}
    followers: dict[str, tuple[str, ...]] = {}
    all_whole = True
    for topic in topics:
        try:
            route = first_answer(endpoints, partial(query_route, topic, whole=whole))
        except errors.TopicNotFound as error:
            missing[topic] = errors.TopicNotFound(error.message + _suggestion(endpoints, topic))
            continue
        addresses |= {one.queue: one.address for one in route.queues if one.readable}
        away |= route.away
        followers |= route.followers
        all_whole = all_whole and route.whole
    return Located(addresses=addresses, away=away, missing=missing, followers=followers, whole=all_whole)


def located(options: ReadOptions, known: Iterable[str] = ()) -> Located:
    """Locates the readable queues that the options name. `known`: topics found before, so that with a pattern a deleted
    one is `missing` and not just absent. Raises SettingsError for an assigned queue that does not exist.
    """
    topics: Sequence[str] = options.topics
    if options.topic_pattern:
        topics = sorted({*matching(options), *(set(known) - {options.retry_topic})})
    where = locate(options.endpoints, topics)
    if options.retry_topic:  # created by the first message that is redelivered, so it may be missing
        retried = locate(options.endpoints, [options.retry_topic])
        where = replace(
            where,
            addresses=where.addresses | retried.addresses,
            away=where.away | retried.away,
            followers=where.followers | retried.followers,
        )
    if options.schema_style is SchemaStyle.KAFKA:
        must_be_unique([*where.addresses, *where.away])
    if not options.assigned:
        return where
    assigned = set(options.assigned)
    unknown = sorted(assigned - where.addresses.keys() - where.away.keys())
    for queue in unknown:
        # Older brokers do not report which queues are away: a missing one may be at a broker that is away.
        if where.whole and queue.topic not in where.missing:
            raise SettingsError(f"option assign names {queue}, which is not a readable queue of topic {queue.topic}")
    return replace(
        where,
        addresses={queue: address for queue, address in where.addresses.items() if queue in assigned},
        away={queue: why for queue, why in where.away.items() if queue in assigned},
    )


def matching(options: ReadOptions) -> list[str]:
    """Returns the topics whose whole names match the pattern, sorted; the list may be empty."""
    pattern = re.compile(options.topic_pattern)
    names = first_answer(options.endpoints, _topics_of)
    return sorted(name for name in names if pattern.fullmatch(name) and not is_system_topic(name))


def _topics_of(endpoint: str) -> list[str]:
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import admin_pb2

    address = access_points(endpoint).addresses[0]
    content = connection.unary(address, "/evenq.v1.Admin/ListTopics", b"", timeout_ms=CALL_MS)
    response = admin_pb2.ListTopicsResponse.FromString(content)
    check(response.status)
    return [summary.topic for summary in response.topics]


def _suggestion(endpoints: Sequence[str], misspelt: str) -> str:
    """Returns a hint with the nearest name, if the user may list topics."""
    with contextlib.suppress(errors.Error):
        names = {name.lower(): name for name in first_answer(endpoints, _topics_of)}
        for near in difflib.get_close_matches(misspelt.lower(), names, n=1, cutoff=NEAR):
            return f"; did you mean {names[near]!r}?"
    return ""


def ordered_topics(options: ReadOptions) -> frozenset[str]:
    """Returns the topics that accept message groups: one task reads each of their queues. Calls brokers only if the
    options could split a queue. Raises as `route` does.
    """
    if not options.min_partitions and not options.max_records_per_partition:
        return frozenset()
    ask = partial(first_answer, options.endpoints)
    topics = matching(options) if options.topic_pattern else options.topics
    return frozenset(topic for topic in topics if ask(partial(_takes_groups, topic)))


def _takes_groups(topic: str, endpoint: str) -> bool:
    return any(queue.takes_groups for queue in query_route(topic, endpoint).queues)


def query(
    address: str,
    queues: Sequence[MessageQueue],
    *,
    group: str = "",
    timestamp_ms: int = 0,
    wait_ms: int = 0,
    known: Positions | None = None,
    any_copy: bool = False,
) -> dict[MessageQueue, QueueState]:
    """Returns the state of some queues of one broker. With `wait_ms`, waits until one of them grows past its offset in
    `known`. `any_copy`: a follower may answer with its own bounds, without a group and a wait.
    """
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import data_pb2

    request = data_pb2.QueryOffsetsRequest(
        group=group,
        queues=[_queue(queue) for queue in queues],
        timestamp_ms=timestamp_ms,
        wait_ms=wait_ms,
        known_max=[known.get(queue, -1) for queue in queues] if known is not None else [],
        any_copy=any_copy,
    )
    response = data_pb2.QueryOffsetsResponse.FromString(
        connection.unary(
            address, "/evenq.v1.Data/QueryOffsets", request.SerializeToString(), timeout_ms=CALL_MS + wait_ms
        )
    )
    check(response.status)
    return {
        MessageQueue(entry.queue.topic, entry.queue.broker_name, entry.queue.queue_id): QueueState(
            bounds=Bounds(low=entry.min_offset, high=entry.max_offset, uid=entry.uid),
            committed=entry.committed,
            times={timestamp_ms: entry.timestamp_offset} if timestamp_ms else {},
        )
        for entry in response.offsets
    }


def marks(address: str, positions: Sequence[tuple[MessageQueue, int]]) -> dict[tuple[MessageQueue, int], str]:
    """Returns marks of the messages before these offsets (`offsets.OffsetMark`); empty: none, or not supported."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import data_pb2

    texts: dict[tuple[MessageQueue, int], str] = {}
    for begin in range(0, len(positions), MARKS_MAX):
        some = positions[begin : begin + MARKS_MAX]
        request = data_pb2.QueryOffsetsRequest(
            queues=[_queue(queue) for queue, _ in some], mark_at=[offset for _, offset in some]
        )
        content = connection.unary(
            address, "/evenq.v1.Data/QueryOffsets", request.SerializeToString(), timeout_ms=CALL_MS
        )
        response = data_pb2.QueryOffsetsResponse.FromString(content)
        check(response.status)
        texts |= {position: entry.mark for position, entry in zip(some, response.offsets, strict=True)}
    return texts


def survey(options: ReadOptions, *, group: str, wait_for_away: bool = True, suits: Suits | None = None) -> Survey:
    """Returns the state of every queue of the topics. Retries until all are there, at most `read_timeout_ms`. Without
    `wait_for_away`, it does not wait for brokers that the route reports as gone. Raises TopicNotFound, errors that are
    not retryable, and the last failure if no broker returns a route in that time.

    With readFrom=any a follower answers for a broker without a leader, if `suits` accepts its states: a follower has no
    progress, and may lack the newest messages.
    """
    give_up = time.monotonic() + options.read_timeout_ms / 1000
    backoff = Backoff(random.Random(), first_ms=50, max_ms=1_000)  # noqa: S311  jitter
    while True:
        left_ms = max(1, round((give_up - time.monotonic()) * 1000))
        where = persist("the route", lambda: located(options).must_exist(), timeout_ms=left_ms)
        states: dict[MessageQueue, QueueState] = {}
        silent: dict[MessageQueue, str] = {}
        for address, queues in sorted(by_address(where.addresses).items()):
            try:
                states |= with_times(address, query(address, queues, group=group), options)
            except errors.Error as failure:
                # A newer route may help as well: the queue may be at another broker by now.
                if not (failure.retryable or failure.refresh_route):
                    raise
                silent |= {queue: f"{queue.broker_name} does not answer: {failure.message}" for queue in queues}
        unavailable = where.away | silent
        if options.any_copy and suits is not None and unavailable:
            of_followers, unavailable = _states_of_followers(options, where, unavailable, suits, group=group)
            states |= of_followers
            silent = {queue: why for queue, why in silent.items() if queue in unavailable}
        pause = backoff.next_ms() / 1000
        if not (silent or (unavailable and wait_for_away)) or time.monotonic() + pause > give_up:
            return Survey(located=where, states=states, unavailable=unavailable)
        log.warning("a call to a broker failed, trying again: %s", "; ".join(dict.fromkeys(unavailable.values())))
        time.sleep(pause)


def _states_of_followers(
    options: ReadOptions, where: Located, unavailable: Mapping[MessageQueue, str], suits: Suits, *, group: str
) -> tuple[dict[MessageQueue, QueueState], dict[MessageQueue, str]]:
    """Returns suitable states from followers for queues whose leader does not answer, and the other queues -> reason.
    Calls all followers of a broker; for each queue the one with the highest end counts.
    """
    if group:
        why = f"the progress of group {group} is known to the leader only"
        return {}, {queue: f"{reason}; {why}" for queue, reason in unavailable.items()}
    states: dict[MessageQueue, QueueState] = {}
    by_broker: dict[str, list[MessageQueue]] = {}
    for queue in sorted(unavailable):
        by_broker.setdefault(queue.broker_name, []).append(queue)
    for name, queues in by_broker.items():
        for address in where.followers.get(name, ()):
            try:
                known = query(address, queues, any_copy=True)
                known = with_times(address, known, options, any_copy=True)
            except errors.Error as failure:
                log.warning("no offsets of %s from its follower %s: %s", name, address, failure)
                continue
            states |= {
                queue: state
                for queue, state in known.items()
                if queue not in states or state.bounds.high > states[queue].bounds.high
            }
    suitable = {queue: state for queue, state in states.items() if suits(queue, state)}
    if suitable:
        from pyspark_evenq.plan.losses import named

        log.warning("%s: planned by what followers know, because the leader does not answer", named(suitable))
    return suitable, {
        queue: f"{why}; its follower knows offsets {states[queue].bounds.low} to {states[queue].bounds.high}"
        if queue in states
        else why
        for queue, why in unavailable.items()
        if queue not in suitable
    }


def with_times(
    address: str, states: Mapping[MessageQueue, QueueState], options: ReadOptions, *, any_copy: bool = False
) -> dict[MessageQueue, QueueState]:
    """Returns the states with the offsets of the options' times: one call for each time. `any_copy`: as in `query`."""
    times: dict[int, list[MessageQueue]] = {}
    for spec in (options.starting, options.ending):
        for queue in states:
            if spec is not None and (time_ms := spec.time_of(queue)):
                times.setdefault(time_ms, []).append(queue)
    merged = dict(states)
    for time_ms, queues in sorted(times.items()):
        for queue, state in query(address, sorted(set(queues)), timestamp_ms=time_ms, any_copy=any_copy).items():
            merged[queue] = replace(merged[queue], times={**merged[queue].times, **state.times})
    return merged


def by_address(route: Route) -> dict[str, list[MessageQueue]]:
    grouped: dict[str, list[MessageQueue]] = {}
    for queue, address in sorted(route.items()):
        grouped.setdefault(address, []).append(queue)
    return grouped


def commit(address: str, group: str, positions: Positions, *, client_id: str, timeout_ms: int = CALL_MS) -> None:
    """Stores a group's progress at one broker, which never moves it back."""
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import data_pb2

    request = data_pb2.CommitOffsetsRequest(
        group=group,
        client_id=client_id,
        offsets=[
            data_pb2.CommitOffset(queue=_queue(queue), offset=offset) for queue, offset in sorted(positions.items())
        ],
    )
    response = data_pb2.CommitOffsetsResponse.FromString(
        connection.unary(address, "/evenq.v1.Data/CommitOffsets", request.SerializeToString(), timeout_ms=timeout_ms)
    )
    check(response.status)


def scan(
    address: str,
    part: OffsetRange,
    *,
    uid: str,
    tags: str,
    sql: str = "",
    group: str,
    block_bytes: int,
    timeout_ms: int,
    parts: RecordParts | None = None,
    any_copy: bool = False,
) -> Generator[memoryview, None, None]:
    """Yields the encoded ScanBlocks of a range, in order. May end early; the reader checks. A broker whose queue has
    another `uid` refuses with PreconditionFailed; older ones do not check it. With `parts` the broker may send stored
    records in place of messages. `any_copy`: a follower may answer.
    """
    from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

    request = data_pb2.ScanRequest(
        queue=_queue(part.queue),
        start=part.start,
        end=part.end,
        block_bytes=block_bytes,
        filter=common_pb2.Filter(type=common_pb2.Filter.SQL if sql else common_pb2.Filter.TAG, expression=sql or tags),
        group=group,
        uid=uid,
        any_copy=any_copy,
    )
    if parts is not None:
        request.records.version = RECORDS_VERSION
        request.records.head, request.records.system, request.records.verifies = parts
    return connection.stream(address, "/evenq.v1.Data/Scan", request.SerializeToString(), timeout_ms=timeout_ms)


def row_bytes(address: str, queue: MessageQueue, start: int) -> float | None:
    """Returns the mean body size of the next messages, from their first block; None: not known."""
    from evenq.wire.stubs.evenq.v1.data_pb2 import ScanBlock

    if not address or start < 0:
        return None
    blocks = scan(
        address,
        OffsetRange(queue=queue, start=start, end=start + SAMPLE_COUNT),
        uid="",
        tags="",
        group="",  # a sample must not count as a delivery
        block_bytes=SAMPLE_BYTES,
        timeout_ms=CALL_MS,
    )
    with contextlib.suppress(errors.Error):
        messages = ScanBlock.FromString(bytes(next(iter(blocks), b""))).messages
        if messages:
            return sum(len(message.body) for message in messages) / len(messages)
    return None


def persist(what: str, attempt: Callable[[], T], *, timeout_ms: int) -> T:
    """Retries retryable failures; raises the last one after `timeout_ms`."""
    backoff = Backoff(random.Random(), first_ms=50, max_ms=1_000)  # noqa: S311  jitter
    give_up = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            return attempt()
        except errors.Error as failure:
            pause = backoff.next_ms() / 1000
            if not failure.retryable or time.monotonic() + pause > give_up:
                raise
            log.warning("%s failed, trying again in %d ms: %s", what, pause * 1000, failure)
        time.sleep(pause)


def _queue(queue: MessageQueue) -> common_pb2.Queue:
    from evenq.wire.stubs.evenq.v1 import common_pb2

    return common_pb2.Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
