"""`evenq.v1.DeadLetters`: lists messages that a group failed to process, and replays them.

Any broker answers for the whole cluster. A replay runs on one broker after the other, so its rate is that of the whole
cluster. Closing the call ends it; messages that were sent until then stay marked as replayed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from evenq.errors import BadRequest, ConnectionFailed, Error, Forbidden, GroupNotFound, PreconditionFailed
from evenq.model import FilterType, MessageQueue
from evenq.model.names import DLQ_PREFIX
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as pb
from evenq_broker.core.dead_letters.letter import (
    ATTEMPTS,
    ORIGIN_BROKER,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    REASON,
)
from evenq_broker.core.delivery.progress import QueueProgress
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.dead_letters.replay import (
    Count,
    Replay,
    group_known,
    groups_with_letters,
    replay_progress,
    waiting_letters,
)
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.copies import properties_of
from evenq_broker.loops.wire.stored_messages import message_filter
from evenq_broker.loops.wire.translation import filter_of, queue_message
from evenq_broker.rpc.answers import OK, parsed

SERVICE = "/evenq.v1.DeadLetters/"
LETTERS_DEFAULT = 100
LETTERS_MAX = 10_000
_CHUNK = 32  # letters read together; each may have the largest body
BYTES_MAX = 4 << 20
"""Of the letters that a broker returns, at least one. Without it a list with bodies would have gigabytes."""
_DAY_MS = 86_400_000


class DeadLetterHandler:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, cluster_catalog: ClusterCatalog, lite: Lites) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._cluster_catalog, self._lite = cluster, cluster_catalog, lite
        self._running: set[str] = set()

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "List", self.listed),
            rpc(SERVICE + "Replay", self.replay),
        ]

    async def listed(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(pb.ListDeadLettersRequest, data)
        if request.bodies:
            _must_be_readable(request.group, context, "bodies of dead letters are", "omit them")
        if not 0 <= request.max <= LETTERS_MAX:
            raise BadRequest(f"max is {request.max} dead letters, the range is 1 to {LETTERS_MAX}; 0 = 100")
        response = pb.ListDeadLettersResponse(status=OK, known=group_known(self._catalog, request.group))
        own = self._runtime.settings.broker_name
        for group in [request.group] if request.group else groups_with_letters(self._catalog):
            stored, waiting = waiting_letters(self._kernel, group)
            if stored:
                response.counts.add(group=group, broker_name=own, stored=stored, waiting=waiting)
        if request.group:
            response.letters.extend(await self._own(request))
        if not request.local:
            local_request = pb.ListDeadLettersRequest()
            local_request.CopyFrom(request)
            local_request.local = True
            for name, result in await self._cluster.ask_all(SERVICE + "List", local_request.SerializeToString()):
                if isinstance(result, Error):
                    response.silent.append(name)
                else:
                    other = pb.ListDeadLettersResponse.FromString(result)
                    response.counts.extend(other.counts)
                    response.letters.extend(other.letters)
                    response.known = response.known or other.known
            if request.group and not response.known and not response.silent:
                raise _unknown(request.group)
        response.counts.sort(key=lambda count: (count.group, count.broker_name))
        response.letters.sort(key=lambda one: (-one.stored_ms, one.place.broker_name, -one.offset))
        return response.SerializeToString()

    async def _own(self, request: pb.ListDeadLettersRequest) -> list[pb.DeadLetter]:
        topic = self._catalog.topics.get(DLQ_PREFIX + request.group)
        if topic is None:
            return []
        low, high = self._ledger.store.queue_range(topic.topic_id, 0)
        progress = replay_progress(self._kernel, request.group)
        letters: list[pb.DeadLetter] = []
        most = request.max or LETTERS_DEFAULT
        room = BYTES_MAX
        while high > low and len(letters) < most and room > 0:
            offsets = list(range(max(low, high - _CHUNK), high))
            high = offsets[0]
            for message in reversed(await self._ledger.store.read_at(topic.topic_id, 0, offsets)):
                one = self._letter(message, topic.name, progress, bodies=request.bodies)
                unwanted = (request.waiting and one.replayed) or request.message_id not in {"", one.message_id}
                if unwanted or len(letters) >= most:
                    continue
                room -= one.ByteSize()
                if room < 0 and letters:
                    break
                letters.append(one)
        return letters

    def _letter(
        self, message: StoredMessage, topic: str, progress: QueueProgress | None, *, bodies: bool
    ) -> pb.DeadLetter:
        head, system = properties_of(message)
        properties = head.user_properties
        offset = message.queue_offset
        origin = MessageQueue(
            system.dead_letter_queue.topic, properties.get(ORIGIN_BROKER, ""), _number(properties.get(ORIGIN_QUEUE), -1)
        )
        done = progress is not None and offset < progress.next and offset not in progress.pending
        return pb.DeadLetter(
            place=queue_message(MessageQueue(topic, self._runtime.settings.broker_name, 0)),
            offset=offset,
            stored_ms=message.store_ms,
            message_id=system.message_id,
            tag=system.tag,
            keys=system.keys,
            origin=queue_message(origin),
            origin_offset=_number(properties.get(ORIGIN_OFFSET), -1),
            attempts=_number(properties.get(ATTEMPTS), 0),
            reason=properties.get(REASON, ""),
            replayed=done,
            body_bytes=len(head.body),
            body=head.body if bodies else b"",
            properties=dict(properties),
        )

    async def replay(self, data: bytes, context: RpcContext) -> AsyncGenerator[bytes, None]:
        request = parsed(pb.ReplayDeadLettersRequest, data)
        if request.to_topic:
            _must_be_readable(request.group, context, "a copy in another topic is", "replay to the original topics")
        if not request.group:
            raise BadRequest("the request names no group; give the group of the dead letters")
        if not 0 <= request.per_second <= 1e6 or request.max < 0:
            raise BadRequest(
                f"a rate of {request.per_second} a second or a maximum of {request.max} is not valid; give a rate of 0 "
                f"to 1000000 and a maximum of 0 or more"
            )
        self._must_not_run(request.group)
        if not request.local:
            await self._must_be_known(request.group)
        if request.dry_run:
            async for frame in self._planned(request):
                yield frame
            return
        if request.to_topic:
            await self._cluster_catalog.ensure_topic(request.to_topic)
        self._must_not_run(request.group)  # another replay may have started meanwhile
        self._running.add(request.group)
        try:
            replay = self._replay(request)
            sent = 0
            async for count in replay.run():
                sent = count.replayed
                yield self._progress(count).SerializeToString()
            yield self._progress(replay.count, done=True).SerializeToString()
            if not request.local:
                async for frame in self._elsewhere(request, sent):
                    yield frame
        finally:
            self._running.discard(request.group)

    def _must_not_run(self, group: str) -> None:
        if group in self._running:
            raise PreconditionFailed(f"the dead letters of {group} are already being replayed; wait for its end")

    async def _must_be_known(self, group: str) -> None:
        """Raises GroupNotFound if all brokers answer and none knows the group."""
        if group_known(self._catalog, group):
            return
        look = pb.ListDeadLettersRequest(group=group, max=1, local=True).SerializeToString()
        for _, result in await self._cluster.ask_all(SERVICE + "List", look):
            if isinstance(result, Error) or pb.ListDeadLettersResponse.FromString(result).known:
                return
        raise _unknown(group)

    async def _planned(self, request: pb.ReplayDeadLettersRequest) -> AsyncIterator[bytes]:
        replay = self._replay(request)
        would = await replay.plan()
        progress = self._progress(replay.count, done=True)
        progress.would.update(would)
        yield progress.SerializeToString()
        if not request.local:
            async for frame in self._elsewhere(request, sum(would.values())):
                yield frame

    def _replay(self, request: pb.ReplayDeadLettersRequest) -> Replay:
        expression = filter_of(request.filter)
        return Replay(
            self._kernel,
            request.group,
            message_filter=message_filter(expression.expression, is_sql=expression.type is FilterType.SQL),
            to_topic=request.to_topic,
            per_second=request.per_second,
            max_count=request.max,
            cluster_catalog=self._cluster_catalog,
            lite=self._lite,
        )

    async def _elsewhere(self, request: pb.ReplayDeadLettersRequest, sent: int) -> AsyncIterator[bytes]:
        for peer in self._cluster.peers.all():
            if request.max and sent >= request.max:
                return
            local_request = pb.ReplayDeadLettersRequest()
            local_request.CopyFrom(request)
            local_request.local = True
            local_request.max = request.max - sent if request.max else 0
            try:
                frames = self._runtime.net.stream(
                    self._cluster.peers.address_of(peer),
                    SERVICE + "Replay",
                    local_request.SerializeToString(),
                    timeout_ms=_DAY_MS,
                )
                last = 0
                async for frame in frames:
                    told_back = pb.ReplayProgress.FromString(frame)
                    last = told_back.replayed + sum(told_back.would.values())
                    yield frame
                sent += last
            except Error as error:
                yield _unreached(peer.name, error)
        there = {peer.name for peer in self._cluster.peers.all()}
        for one in self._cluster.known.missing():
            if one.name not in there:
                yield _unreached(one.name, ConnectionFailed("it is missing"))

    def _progress(self, count: Count, *, done: bool = False) -> pb.ReplayProgress:
        return pb.ReplayProgress(
            status=OK,
            broker_name=self._runtime.settings.broker_name,
            total=count.total,
            replayed=count.replayed,
            left_out=count.left_out,
            failed=count.failed,
            error=count.error,
            done=done,
        )


def _unreached(broker_name: str, error: Error) -> bytes:
    return pb.ReplayProgress(
        status=status_of(error), broker_name=broker_name, error=error.message, done=True
    ).SerializeToString()


def _must_be_readable(group: str, context: RpcContext, what: str, otherwise: str) -> None:
    if group and not context.may_topic(Action.CONSUME, DLQ_PREFIX + group):
        raise Forbidden(f"{what} only for users with the right to consume with group {group}; {otherwise}")


def _unknown(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"no consumer group {group!r} on any broker, and no dead letters of it; `evenq dlq list` shows groups with "
        "dead letters"
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise
