"""`evenq.v1.DeadLetters`: what a group could not handle, and sending it once more.

Any broker answers for the whole cluster. A replay runs on one broker after the other, so its rate is that of the
cluster; closing the call ends it, and what was sent until then stays marked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, Forbidden, GroupNotFound, PreconditionFailed
from evenq.model import FilterType, MessageQueue
from evenq.model.names import DLQ_PREFIX
from evenq.serving.rpc import Action, Kind, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as pb
from evenq_broker.core.delivery import QueueProgress
from evenq_broker.core.filters import message_filter
from evenq_broker.core.letters import (
    ATTEMPTS,
    ORIGIN_BROKER,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    REASON,
    properties_of,
)
from evenq_broker.loops.replaying import (
    Count,
    Replay,
    group_known,
    groups_with_letters,
    replay_progress,
    waiting_letters,
)
from evenq_broker.loops.translation import filter_of, queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
SERVICE = "/evenq.v1.DeadLetters/"
LETTERS_DEFAULT = 100
LETTERS_MAX = 10_000
_CHUNK = 256
_DAY_MS = 86_400_000


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    letters = _Letters(broker)
    return [
        rpc(SERVICE + "List", letters.listed, pb.ListDeadLettersResponse),
        rpc(SERVICE + "Replay", letters.replay, pb.ReplayProgress, Kind.SERVER_STREAM),
    ]


class _Letters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: set[str] = set()

    # ------------------------------------------------------------------------------------------------ list

    async def listed(self, request: bytes, context: RpcContext) -> bytes:
        asked = parsed(pb.ListDeadLettersRequest, request)
        if asked.bodies:
            _must_be_readable(asked.group, context, "bodies of dead letters are", "leave them out")
        if not 0 <= asked.max <= LETTERS_MAX:
            raise BadRequest(f"{asked.max} letters are asked for, the range is 1 to {LETTERS_MAX}; 0 = 100")
        response = pb.ListDeadLettersResponse(status=OK, known=group_known(self._broker, asked.group))
        own = self._broker.settings.broker_name
        for group in [asked.group] if asked.group else groups_with_letters(self._broker):
            stored, waiting = waiting_letters(self._broker, group)
            if stored:
                response.counts.add(group=group, broker_name=own, stored=stored, waiting=waiting)
        if asked.group:
            response.letters.extend(await self._own(asked))
        if not asked.local:
            told = pb.ListDeadLettersRequest()
            told.CopyFrom(asked)
            told.local = True
            for name, answer in await self._broker.cluster.ask_peers(SERVICE + "List", told.SerializeToString()):
                if isinstance(answer, Error):
                    response.silent.append(name)
                else:
                    other = pb.ListDeadLettersResponse.FromString(answer)
                    response.counts.extend(other.counts)
                    response.letters.extend(other.letters)
                    response.known = response.known or other.known
            if asked.group and not response.known and not response.silent:
                raise _unknown(asked.group)
        response.counts.sort(key=lambda count: (count.group, count.broker_name))
        response.letters.sort(key=lambda one: (-one.stored_ms, one.place.broker_name, -one.offset))
        return response.SerializeToString()

    async def _own(self, asked: pb.ListDeadLettersRequest) -> list[pb.DeadLetter]:
        topic = self._broker.topics.get(DLQ_PREFIX + asked.group)
        if topic is None:
            return []
        low, high = self._broker.store.queue_range(topic.topic_id, 0)
        progress = replay_progress(self._broker, asked.group)
        found: list[pb.DeadLetter] = []
        most = asked.max or LETTERS_DEFAULT
        while high > low and len(found) < most:
            offsets = list(range(max(low, high - _CHUNK), high))
            high = offsets[0]
            for message in reversed(await self._broker.store.read_at(topic.topic_id, 0, offsets)):
                one = self._letter(message, topic.name, progress, bodies=asked.bodies)
                unwanted = (asked.waiting and one.replayed) or asked.message_id not in {"", one.message_id}
                if not unwanted and len(found) < most:
                    found.append(one)
        return found

    def _letter(
        self, message: StoredMessage, topic: str, progress: QueueProgress | None, *, bodies: bool
    ) -> pb.DeadLetter:
        head, system = properties_of(message)
        told = head.user_properties
        offset = message.queue_offset
        origin = MessageQueue(
            system.dead_letter_queue.topic, told.get(ORIGIN_BROKER, ""), _number(told.get(ORIGIN_QUEUE), -1)
        )
        done = progress is not None and offset < progress.next and offset not in progress.pending
        return pb.DeadLetter(
            place=queue_message(MessageQueue(topic, self._broker.settings.broker_name, 0)),
            offset=offset,
            stored_ms=message.store_ms,
            message_id=system.message_id,
            tag=system.tag,
            keys=system.keys,
            origin=queue_message(origin),
            origin_offset=_number(told.get(ORIGIN_OFFSET), -1),
            attempts=_number(told.get(ATTEMPTS), 0),
            reason=told.get(REASON, ""),
            replayed=done,
            body_bytes=len(head.body),
            body=head.body if bodies else b"",
            properties=dict(told),
        )

    # ------------------------------------------------------------------------------------------------ replay

    async def replay(self, request: bytes, context: RpcContext) -> AsyncGenerator[bytes, None]:
        asked = parsed(pb.ReplayDeadLettersRequest, request)
        if asked.to_topic:
            _must_be_readable(asked.group, context, "a copy in another topic is", "replay to where they came from")
        if not asked.group:
            raise BadRequest("the request names no group; say whose dead letters are meant")
        if not 0 <= asked.per_second <= 1e6 or asked.max < 0:
            raise BadRequest(f"a rate of {asked.per_second} a second or a maximum of {asked.max} makes no sense")
        self._must_not_run(asked.group)
        if not asked.local:
            await self._must_be_known(asked.group)
        if asked.dry_run:
            async for frame in self._planned(asked):
                yield frame
            return
        if asked.to_topic:
            await self._broker.ensure_topic(asked.to_topic)
        self._must_not_run(asked.group)  # another one may have begun meanwhile
        self._running.add(asked.group)
        try:
            replay = self._replay(asked)
            sent = 0
            async for count in replay.run():
                sent = count.replayed
                yield self._progress(count).SerializeToString()
            yield self._progress(replay.count, done=True).SerializeToString()
            if not asked.local:
                async for frame in self._elsewhere(asked, sent):
                    yield frame
        finally:
            self._running.discard(asked.group)

    def _must_not_run(self, group: str) -> None:
        if group in self._running:
            raise PreconditionFailed(f"the dead letters of {group} are being replayed; wait for its end")

    async def _must_be_known(self, group: str) -> None:
        """Raises GroupNotFound if no broker knows it; one that does not answer may."""
        if group_known(self._broker, group):
            return
        look = pb.ListDeadLettersRequest(group=group, max=1, local=True).SerializeToString()
        for _, answer in await self._broker.cluster.ask_peers(SERVICE + "List", look):
            if isinstance(answer, Error) or pb.ListDeadLettersResponse.FromString(answer).known:
                return
        raise _unknown(group)

    async def _planned(self, asked: pb.ReplayDeadLettersRequest) -> AsyncIterator[bytes]:
        replay = self._replay(asked)
        would = await replay.plan()
        progress = self._progress(replay.count, done=True)
        progress.would.update(would)
        yield progress.SerializeToString()
        if not asked.local:
            async for frame in self._elsewhere(asked, sum(would.values())):
                yield frame

    def _replay(self, asked: pb.ReplayDeadLettersRequest) -> Replay:
        wanted = filter_of(asked.filter)
        return Replay(
            self._broker,
            asked.group,
            wanted=message_filter(wanted.expression, is_sql=wanted.type is FilterType.SQL),
            to_topic=asked.to_topic,
            per_second=asked.per_second,
            max_count=asked.max,
        )

    async def _elsewhere(self, asked: pb.ReplayDeadLettersRequest, sent: int) -> AsyncIterator[bytes]:
        for peer in self._broker.cluster.peers():
            if asked.max and sent >= asked.max:
                return
            told = pb.ReplayDeadLettersRequest()
            told.CopyFrom(asked)
            told.local = True
            told.max = asked.max - sent if asked.max else 0
            try:
                frames = self._broker.net.stream(
                    self._broker.cluster.address_of(peer),
                    SERVICE + "Replay",
                    told.SerializeToString(),
                    timeout_ms=_DAY_MS,
                )
                last = 0
                async for frame in frames:
                    told_back = pb.ReplayProgress.FromString(frame)
                    last = told_back.replayed + sum(told_back.would.values())
                    yield frame
                sent += last
            except Error as error:
                yield pb.ReplayProgress(
                    status=status_of(error), broker_name=peer.name, error=error.message, done=True
                ).SerializeToString()

    def _progress(self, count: Count, *, done: bool = False) -> pb.ReplayProgress:
        return pb.ReplayProgress(
            status=OK,
            broker_name=self._broker.settings.broker_name,
            total=count.total,
            replayed=count.replayed,
            left_out=count.left_out,
            failed=count.failed,
            error=count.error,
            done=done,
        )


def _must_be_readable(group: str, context: RpcContext, what: str, otherwise: str) -> None:
    if group and not context.may_topic(Action.CONSUME, DLQ_PREFIX + group):
        raise Forbidden(f"{what} for those who may consume with group {group}; {otherwise}")


def _unknown(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"no consumer group {group!r} on any broker, and no dead letters of one; `evenq dlq list` shows which groups "
        "have any"
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise
