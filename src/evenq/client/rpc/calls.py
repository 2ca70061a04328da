"""Calls of producers and consumers: each encodes its request, sends it over `Transport`, checks the status, decodes.

Calls raise classes of `evenq.errors`: `ConnectionFailed`, `RequestTimeout`, `Unsupported` (the server lacks the method)
and the error of the answer's status. `address` is `host:port`; waiting times are ms and are added to the call's own
deadline.

`evenq.v1` is called first. A server that answers Unsupported or NotImplementedYet is remembered, and gets the method of
`apache.rocketmq.v2`, or no call, from then on. A message is encoded once: each attempt sends the same bytes, and with
them the same message id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenq.client.core.calls import Assignment, LockAnswer, Pulled, QueueRange, StoredBatch
from evenq.client.rpc.messages import check_published, decode, queue_of, repeated
from evenq.client.rpc.translation import (
    filter_of,
    lock_answer,
    model_queue,
    wire_count,
    wire_generation,
    wire_queue,
    wire_start,
)
from evenq.client.rpc.transport import V2, Transport
from evenq.errors import (
    IllegalOffset,
    InternalError,
    MessageNotFound,
    NotImplementedYet,
    QueueReplaced,
    Unsupported,
)
from evenq.model import FilterExpression, Generation, MessageModel, MessageQueue, QueueOffset, StartPolicy
from evenq.runtime.net import Net
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, data_pb2, groups_pb2

DATA = "/evenq.v1.Data/"
GROUPS = "/evenq.v1.Groups/"
ASSIGNMENT = "/evenq.v1.Assignment/"

ILLEGAL_OFFSET, MESSAGE_NOT_FOUND = IllegalOffset.code, MessageNotFound.code


class Calls(Transport):
    """Calls of one client. Subclasses add calls of single kinds of clients."""

    def __init__(
        self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int = 3_000, reads: bool = False
    ) -> None:
        """`timeout_ms`: deadline of one call. `reads`: the client is a consumer."""
        super().__init__(net, endpoint=endpoint, client_id=client_id, timeout_ms=timeout_ms, reads=reads)
        self._no_publish: set[str] = set()
        """Addresses of servers without Publish: they get SendMessage of v2."""
        self._no_assignment: set[str] = set()
        """Access points without `evenq.v1.Assignment`: they get QueryAssignment of v2."""
        self._no_counts: set[str] = set()
        """Addresses of brokers that keep no delivery counts: they get none."""

    def publishes(self, address: str) -> bool:
        """Returns False once the server has turned out to lack `evenq.v1.Data/Publish`."""
        return address not in self._no_publish

    async def publish(
        self, address: str, queue: MessageQueue, encoded: Sequence[bytes], *, timeout_ms: int, apart: bool = False
    ) -> StoredBatch:
        """Stores messages in one queue: all or none. `apart`: the server chooses queues (delivery time, lite topic)."""
        if not apart and address not in self._no_publish:
            # The messages stay bytes: a retry sends the same ones without encoding them again.
            head = data_pb2.PublishRequest(queue=wire_queue(queue)).SerializeToString()
            try:
                data = await self.unary(address, DATA + "Publish", head + repeated(2, encoded), timeout_ms=timeout_ms)
                response = data_pb2.PublishResponse.FromString(data)
                check_published(response)
                first = response.first_offset
                if response.offsets:  # an earlier attempt had stored some messages: each has a place of its own
                    return StoredBatch(model_queue(response.queue), list(response.offsets), list(response.queue_ids))
                return StoredBatch(model_queue(response.queue), range(first, first + len(encoded)))
            except (Unsupported, NotImplementedYet):  # nothing was stored: send with v2
                self._no_publish.add(address)
        return await self._send(address, queue, encoded, timeout_ms)

    async def _send(self, address: str, queue: MessageQueue, encoded: Sequence[bytes], timeout_ms: int) -> StoredBatch:
        """Sends with v2. The server chooses the queue and does not return its id, so the result has queue id -1."""
        data = await self.unary(address, V2 + "SendMessage", repeated(1, encoded), timeout_ms=timeout_ms)
        response = service_pb2.SendMessageResponse.FromString(data)
        check(response.status)
        # The overall status may be OK although that of an entry is not (wire contract, fact 7).
        for entry in response.entries:
            check(entry.status)
        if len(response.entries) != len(encoded):
            raise InternalError(
                f"{address} answered a send of {len(encoded)} messages with {len(response.entries)} entries"
            )
        return StoredBatch(
            MessageQueue(queue.topic, queue.broker_name, -1),
            [entry.offset for entry in response.entries],
            recall_handles=[entry.recall_handle for entry in response.entries],
        )

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message; returns its id. Raises BadRequest if it is due, or for a foreign handle."""
        request = service_pb2.RecallMessageRequest(recall_handle=recall_handle)
        request.topic.name = topic
        data = await self.at_access_point(V2 + "RecallMessage", request.SerializeToString())
        response = service_pb2.RecallMessageResponse.FromString(data)
        check(response.status)
        return response.message_id

    async def pull(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        batch_max: int,
        bytes_max: int,
        wait_ms: int,
        expression: FilterExpression,
        generation: Generation,
        committed: int,
        owner: bool = False,
        any_copy: bool = False,
        uid: str = "",
    ) -> Pulled:
        """Reads one queue. `owner`: only while this member holds its lock. `any_copy`: also at a follower. `uid`: only
        if the topic still has it. Raises IllegalOffset (with the range), QueueReplaced, PreconditionFailed (fenced).
        """
        request = data_pb2.PullRequest(
            group=group,
            client_id=self.client_id,
            queue=wire_queue(queue),
            offset=offset,
            batch_max=batch_max,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            filter=filter_of(expression),
            generation=wire_generation(generation),
            committed=committed,
            owner=owner,
            any_copy=any_copy,
            uid=uid,
        )
        data = await self.unary(address, DATA + "Pull", request.SerializeToString(), wait_ms=wait_ms)
        response = data_pb2.PullResponse.FromString(data)
        if response.status.code == ILLEGAL_OFFSET:
            raise IllegalOffset(response.status.message, min_offset=response.min_offset, max_offset=response.max_offset)
        if response.status.code == MESSAGE_NOT_FOUND:
            return Pulled((), response.next_offset)
        if response.uid:
            raise QueueReplaced(response.status.message, uid=response.uid)
        check(response.status)
        return Pulled(
            [decode(message, broker_name=queue.broker_name) for message in response.messages],
            response.next_offset,
            far_behind=response.far_behind,
        )

    async def commit(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None:
        """Stores progress; an offset that would go back is ignored. `uids`: of the topics to which the offsets belong.
        Raises PreconditionFailed if some queues have another uid or owner; the others are stored.
        """
        await self._commit(address, group, offsets, generation, uids or {}, allow_backward=False)

    async def reset(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None:
        await self._commit(address, group, offsets, generation, uids or {}, allow_backward=True)

    async def _commit(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        generation: Generation,
        uids: Mapping[MessageQueue, str],
        *,
        allow_backward: bool,
    ) -> None:
        request = data_pb2.CommitOffsetsRequest(
            group=group,
            client_id=self.client_id,
            generation=wire_generation(generation),
            allow_backward=allow_backward,
        )
        for queue, offset in offsets.items():
            request.offsets.add(queue=wire_queue(queue), offset=offset, uid=uids.get(queue, ""))
        data = await self.unary(address, DATA + "CommitOffsets", request.SerializeToString())
        check(data_pb2.CommitOffsetsResponse.FromString(data).status)

    async def begin(
        self, address: str, group: str, queue: MessageQueue, start: StartPolicy, *, generation: Generation, uid: str
    ) -> None:
        """Makes the broker decide the group's start on the topic, if it has none. IllegalOffset: it is too old."""
        request = data_pb2.CommitOffsetsRequest(
            group=group, client_id=self.client_id, generation=wire_generation(generation), start=wire_start(start)
        )
        request.offsets.add(queue=wire_queue(queue), offset=-1, uid=uid)
        data = await self.unary(address, DATA + "CommitOffsets", request.SerializeToString())
        check(data_pb2.CommitOffsetsResponse.FromString(data).status)

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        """Returns range and progress and, for a `timestamp_ms`, the first offset stored at or after it."""
        request = data_pb2.QueryOffsetsRequest(group=group, queues=[wire_queue(queue)], timestamp_ms=timestamp_ms)
        response = data_pb2.QueryOffsetsResponse.FromString(
            await self.unary(address, DATA + "QueryOffsets", request.SerializeToString())
        )
        check(response.status)
        if not response.offsets:
            raise InternalError(f"{address} returned no offsets of {queue}")
        offsets = response.offsets[0]
        at_timestamp = offsets.timestamp_offset if timestamp_ms else -1
        return QueueRange(
            offsets.min_offset, offsets.max_offset, offsets.committed, at_timestamp, offsets.young, offsets.uid
        )

    async def send_back(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        delay_level: int,
        attempts: int,
        uid: str = "",
    ) -> None:
        """Gives a message back for a retry (RD-1); level -1: to the dead-letter topic."""
        request = data_pb2.SendBackRequest(
            group=group,
            queue=wire_queue(queue),
            queue_offset=offset,
            delay_level=delay_level,
            attempts=attempts,
            uid=uid,
        )
        data = await self.unary(address, DATA + "SendBack", request.SerializeToString())
        check(data_pb2.SendBackResponse.FromString(data).status)

    async def count_deliveries(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        counts: Mapping[int, int],
        *,
        given_until: int,
        generation: Generation,
        uid: str = "",
    ) -> None:
        """Stores deliveries, or FINISHED, by offset. `given_until`: the queue is being released, and listeners got its
        messages below this offset without finishing all. Raises PreconditionFailed (fenced).
        """
        if address in self._no_counts:
            return
        request = data_pb2.CountDeliveriesRequest(
            group=group,
            client_id=self.client_id,
            queue=wire_queue(queue),
            generation=wire_generation(generation),
            counts=[wire_count(offset, number) for offset, number in counts.items()],
            given_until=given_until,
            uid=uid,
        )
        try:
            data = await self.unary(address, DATA + "CountDeliveries", request.SerializeToString())
            check(data_pb2.CountDeliveriesResponse.FromString(data).status)
        except (Unsupported, NotImplementedYet):  # an older broker keeps no delivery counts
            self._no_counts.add(address)

    async def lock(
        self,
        address: str,
        group: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation,
        anew: bool = False,
    ) -> list[LockAnswer]:
        """Locks queues; returns one answer for each, in order. `anew`: as if the member had never held them."""
        request = groups_pb2.LockQueuesRequest(
            group=group,
            client_id=self.client_id,
            queues=[wire_queue(queue) for queue in queues],
            wait_ms=wait_ms,
            generation=wire_generation(generation),
            anew=anew,
        )
        data = await self.unary(address, GROUPS + "LockQueues", request.SerializeToString(), wait_ms=wait_ms)
        response = groups_pb2.LockQueuesResponse.FromString(data)
        check(response.status)
        if len(response.queues) != len(queues):
            raise InternalError(f"{address} answered {len(queues)} lock requests with {len(response.queues)} answers")
        return [lock_answer(queue) for queue in response.queues]

    async def unlock(self, address: str, group: str, queues: Sequence[MessageQueue]) -> None:
        """Releases locks; a lock that is not held is ignored."""
        request = groups_pb2.UnlockQueuesRequest(
            group=group, client_id=self.client_id, queues=[wire_queue(queue) for queue in queues]
        )
        data = await self.unary(address, GROUPS + "UnlockQueues", request.SerializeToString())
        check(groups_pb2.UnlockQueuesResponse.FromString(data).status)

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        """Queries the access point for this member's queues."""
        address = self.access_point
        if address not in self._no_assignment:
            body = assignment_pb2.AssignmentRequest(
                group=group,
                topic=topic,
                client_id=self.client_id,
                strategy=strategy,
                model=groups_pb2.BROADCASTING if model is MessageModel.BROADCASTING else groups_pb2.CLUSTERING,
            )
            try:
                response = assignment_pb2.AssignmentResponse.FromString(
                    await self.at_access_point(ASSIGNMENT + "Query", body.SerializeToString())
                )
                check(response.status)
                generation = Generation(response.generation.epoch, response.generation.counter)
                # XO-4: entries without a queue are ignored. XO-5: in mode POP only whole brokers (id -1) are assigned
                own = [
                    entry.queue
                    for entry in response.queues
                    if entry.HasField("queue") and (entry.mode != assignment_pb2.POP or entry.queue.queue_id < 0)
                ]
                named = tuple(model_queue(queue) for queue in own)
                return Assignment(response.known, named, generation)
            except (Unsupported, NotImplementedYet):
                self._no_assignment.add(address)
        request = service_pb2.QueryAssignmentRequest(endpoints=self.endpoints())
        request.group.name, request.topic.name = group, topic
        decided = service_pb2.QueryAssignmentResponse.FromString(
            await self.at_access_point(V2 + "QueryAssignment", request.SerializeToString())
        )
        check(decided.status)
        queues = [queue_of(entry.message_queue) for entry in decided.assignments if entry.HasField("message_queue")]
        return Assignment(True, tuple(queues))
