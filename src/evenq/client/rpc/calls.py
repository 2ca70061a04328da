"""The calls of producers and consumers, over `Net`: bytes out, status checked, model back.

One object per client; it carries the client's id in the metadata of every call (wire contract 2.1) and remembers
which servers lack the evenq.v1 services, so that the v2 way is used there from the second call on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence

from evenq.client.core.calls import Assignment, LockAnswer, Pulled, QueueRange, StoredBatch
from evenq.client.core.routes.access_points import access_points
from evenq.client.core.routes.route import Route
from evenq.client.rpc.first_answer import first_answer, telling
from evenq.client.rpc.messages import check_published, decode, queue_of, repeated
from evenq.client.rpc.routing import Routing
from evenq.client.rpc.translation import (
    filter_of,
    lock_answer,
    model_queue,
    wire_count,
    wire_generation,
    wire_queue,
    wire_start,
)
from evenq.errors import (
    ConnectionFailed,
    Error,
    IllegalOffset,
    InternalError,
    MessageNotFound,
    NotImplementedYet,
    QueueReplaced,
    RequestTimeout,
    TlsFailed,
    Unsupported,
)
from evenq.model import FilterExpression, Generation, MessageModel, MessageQueue, QueueOffset, StartPolicy
from evenq.runtime.net import Net
from evenq.runtime.version import __version__
from evenq.wire.addresses import BROKER_HEADER, host_and_port, meant_broker
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, data_pb2, groups_pb2, routes_pb2

__all__ = ["AccessPointSilent", "Calls", "client_metadata", "silence"]

log = logging.getLogger(__name__)

V2 = "/apache.rocketmq.v2.MessagingService/"
DATA = "/evenq.v1.Data/"
GROUPS = "/evenq.v1.Groups/"
ASSIGNMENT = "/evenq.v1.Assignment/"

SCHEMES_WANTED = routes_pb2.RouteQuestion(schemes=True).SerializeToString()
ROLE, READER = "x-evenq-role", "reader"
BROKERS_MAX = 3
"""At most this number of brokers is queried for one route while no access point answers."""
ILLEGAL_OFFSET, MESSAGE_NOT_FOUND = IllegalOffset.code, MessageNotFound.code


def client_metadata(client_id: str, *, reads: bool = False) -> dict[str, str]:
    """Headers of every call (wire contract 2.1). `reads`: of a consumer, so that asking for a route makes no topic."""
    role = {ROLE: READER} if reads else {}
    return {
        **role,
        "x-mq-client-id": client_id,
        "x-mq-language": "PYTHON",
        "x-mq-client-version": __version__,
        "x-mq-protocol": "v2",
        "x-mq-namespace": "",
    }


class AccessPointSilent(ConnectionFailed):
    """No broker answers at the access point itself; ConnectionFailed alone is said of a broker behind it."""


def silence(error: ConnectionFailed) -> ConnectionFailed:
    """What is said of an access point that could not be called; trouble with TLS says itself what to change."""
    return error if isinstance(error, TlsFailed) else AccessPointSilent(str(error))


class Calls:
    """Implements `core.calls.ProducerCalls` and, with `sessions` and `receiving` beside it, what consumers need."""

    def __init__(
        self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int = 3_000, reads: bool = False
    ) -> None:
        """`reads`: it is a consumer's."""
        self.net = net
        self._reads = reads
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.metadata = client_metadata(client_id, reads=reads)
        points = access_points(endpoint)
        self._endpoints = list(points.targets)
        self._turn = 0
        self._no_publish: set[str] = set()
        self._no_assignment: set[str] = set()
        self._no_counts: set[str] = set()
        self._routing = Routing(one_address=points.one_address)
        self._lost = False
        """True from a query for a route that no access point answered to the next one that an access point answers."""
        self._fallback = ""
        """The broker that replaces the access points meanwhile; empty: no settled broker is known."""

    def publishes(self, address: str) -> bool:
        """False once the server there turned out to have no evenq.v1."""
        return address not in self._no_publish

    def rename(self, client_id: str) -> None:
        """Be another client from the next call on."""
        self.client_id = client_id
        self.metadata = client_metadata(client_id, reads=self._reads)

    async def unary(self, address: str, method: str, request: bytes, *, wait_ms: int = 0, timeout_ms: int = 0) -> bytes:
        """One call; `wait_ms` comes on top of the deadline."""
        deadline_ms = (timeout_ms or self.timeout_ms) + wait_ms
        target, metadata = self.directed(address)
        try:
            return await self.net.unary(target, method, request, timeout_ms=deadline_ms, metadata=metadata)
        except ConnectionFailed:
            if address.startswith("#"):  # the next try goes to the next access point
                self._pass_over(target)
            raise

    def stream(
        self, address: str, method: str, requests: AsyncIterator[bytes] | bytes, *, timeout_ms: int | None
    ) -> AsyncIterator[bytes]:
        """A stream; None = no time limit."""
        target, metadata = self.directed(address)
        return self.net.stream(target, method, requests, timeout_ms=timeout_ms, metadata=metadata)

    def directed(self, address: str) -> tuple[str, Mapping[str, str]]:
        """Where to call, and with which headers."""
        target, broker_name = meant_broker(address)
        if not broker_name:
            return address, self.metadata
        return target or self._endpoints[self._turn], {**self.metadata, BROKER_HEADER: broker_name}

    async def at_access_point(self, method: str, request: bytes) -> bytes:
        """One call to the access point; with several, the next one is tried when one does not answer. Raises
        AccessPointSilent, TlsFailed, RequestTimeout.

        If none answers, the call goes to the broker that gives the routes meanwhile.
        """
        try:
            return await self._at_access_points(method, request)
        except (ConnectionFailed, RequestTimeout):
            if not self._fallback:
                raise
            return await self.unary(self._fallback, method, request)

    async def _at_access_points(self, method: str, request: bytes) -> bytes:
        failure: ConnectionFailed | RequestTimeout | None = None
        targets = self._in_turn()
        for target in targets:
            try:
                return await self.unary(target, method, request)
            except (ConnectionFailed, RequestTimeout) as error:
                failure = telling(failure, error)
                if target != targets[-1]:
                    self._pass_over(target)
        assert failure is not None, "there is at least one access point"
        raise silence(failure) if isinstance(failure, ConnectionFailed) else failure

    async def stream_at_access_point(self, method: str, request: bytes, *, timeout_ms: int) -> AsyncIterator[bytes]:
        """Frames from the access point; the next one is tried as long as none has sent a frame."""
        targets = self._in_turn()
        failure: ConnectionFailed | None = None
        for target in targets:
            begun = False
            try:
                async for frame in self.net.stream(
                    target, method, request, timeout_ms=timeout_ms, metadata=self.metadata
                ):
                    begun = True
                    yield frame
            except ConnectionFailed as error:
                failure = telling(failure, error)
                # What came is with the caller already: from another access point it would come again.
                if begun or target == targets[-1]:
                    raise failure from error
                self._pass_over(target)
            else:
                return

    def _in_turn(self) -> list[str]:
        """All access points, beginning with the one that answered last. Each call goes through a list of its own: calls
        that run at once must not move each other back to the one that is silent.
        """
        return [*self._endpoints[self._turn :], *self._endpoints[: self._turn]]

    def _pass_over(self, target: str) -> None:
        if self._endpoints[self._turn] == target:
            self._turn = (self._turn + 1) % len(self._endpoints)

    def turn_away(self) -> None:
        self._pass_over(self._endpoints[self._turn])
        if self._fallback:
            self._routing.pass_over(self._fallback)

    @property
    def access_point(self) -> str:
        """The one that is called now, `host:port`."""
        return self._endpoints[self._turn]

    def endpoints(self) -> v2.Endpoints:
        """The access point as v2 writes it."""
        host, port = host_and_port(self._endpoints[self._turn])
        endpoints = v2.Endpoints(scheme=v2.IPv6 if ":" in host else v2.DOMAIN_NAME)
        if host.replace(".", "").isdigit():
            endpoints.scheme = v2.IPv4
        endpoints.addresses.add(host=host, port=port)
        return endpoints

    async def query_route(self, topic: str) -> Route:
        request = service_pb2.QueryRouteRequest(endpoints=self.endpoints())
        request.topic.name = topic
        # Fields of ours behind those of v2: servers of other makes pass over fields that they do not know.
        body = request.SerializeToString() + SCHEMES_WANTED
        try:
            if len(self._endpoints) == 1:
                response = await self._at_access_points(V2 + "QueryRoute", body)
            else:
                response = await first_answer(
                    self._in_turn(),
                    lambda target: self.unary(target, V2 + "QueryRoute", body),
                    passed_over=self._pass_over,
                )
        except (ConnectionFailed, RequestTimeout) as error:
            failure = silence(error) if isinstance(error, ConnectionFailed) else error
            return await self._route_of_brokers(topic, body, failure)
        if self._lost:
            log.info("an access point of %s answers again", ";".join(self._endpoints))
            self._lost, self._fallback = False, ""
        return self._routing.read(topic, response)

    async def _route_of_brokers(self, topic: str, body: bytes, failure: ConnectionFailed | RequestTimeout) -> Route:
        """The route as a known broker answers it: a client may outlive all of its access points. Raises `failure`, the
        error of the access points, if no broker answers.

        A broker that fails, or does not know every live broker, is queried after the others the next time.
        """
        brokers, passed = self._routing.brokers(besides=self._endpoints)[:BROKERS_MAX], list[str]()
        if not brokers:
            raise failure

        async def query(broker: str) -> bytes:
            try:
                return await self.unary(broker, V2 + "QueryRoute", body)
            except Error as error:  # another broker may answer also where this one refuses
                raise ConnectionFailed(str(error)) from error

        try:
            response = await first_answer(brokers, query, passed_over=passed.append)
        except ConnectionFailed as error:
            passed = brokers
            raise failure from error
        finally:
            for broker in passed:
                self._pass_over_broker(broker)
        answerer = brokers[len(passed)]
        if not self._lost:
            log.warning(
                "no access point of %s answers; routes come from broker %s. Start the client with addresses of live "
                "brokers the next time: %s",
                ";".join(self._endpoints), answerer, failure,
            )  # fmt: skip
        self._lost = True
        try:
            route = self._routing.read_of_broker(topic, response)
        except Error:  # another broker may know the topic
            self._routing.pass_over(answerer)
            raise
        if route.partial:
            self._pass_over_broker(answerer)
        else:
            self._fallback = answerer
        return route

    def _pass_over_broker(self, broker: str) -> None:
        self._routing.pass_over(broker)
        if self._fallback == broker:
            self._fallback = ""

    async def publish(
        self, address: str, queue: MessageQueue, encoded: Sequence[bytes], *, timeout_ms: int, apart: bool = False
    ) -> StoredBatch:
        if not apart and address not in self._no_publish:
            # The messages stay bytes: a retry sends the same ones, and nothing is encoded twice.
            head = data_pb2.PublishRequest(queue=wire_queue(queue)).SerializeToString()
            try:
                data = await self.unary(address, DATA + "Publish", head + repeated(2, encoded), timeout_ms=timeout_ms)
                response = data_pb2.PublishResponse.FromString(data)
                check_published(response)
                first = response.first_offset
                if response.offsets:
                    return StoredBatch(model_queue(response.queue), list(response.offsets), list(response.queue_ids))
                return StoredBatch(model_queue(response.queue), range(first, first + len(encoded)))
            except (Unsupported, NotImplementedYet):
                self._no_publish.add(address)
        return await self._send(address, queue, encoded, timeout_ms)

    async def _send(self, address: str, queue: MessageQueue, encoded: Sequence[bytes], timeout_ms: int) -> StoredBatch:
        """The v2 way. The server chooses the queue; offsets of a batch need not be dense, so only the first one is
        returned.
        """
        data = await self.unary(address, V2 + "SendMessage", repeated(1, encoded), timeout_ms=timeout_ms)
        response = service_pb2.SendMessageResponse.FromString(data)
        check(response.status)
        # The status of the whole may be OK although one entry is not (wire contract, fact 7).
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
        """Cancel a delayed message; its id. Raises BadRequest if it is due, or the handle is not of the topic."""
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
        request = data_pb2.CommitOffsetsRequest(
            group=group, client_id=self.client_id, generation=wire_generation(generation), start=wire_start(start)
        )
        request.offsets.add(queue=wire_queue(queue), offset=-1, uid=uid)
        data = await self.unary(address, DATA + "CommitOffsets", request.SerializeToString())
        check(data_pb2.CommitOffsetsResponse.FromString(data).status)

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        request = data_pb2.QueryOffsetsRequest(group=group, queues=[wire_queue(queue)], timestamp_ms=timestamp_ms)
        response = data_pb2.QueryOffsetsResponse.FromString(
            await self.unary(address, DATA + "QueryOffsets", request.SerializeToString())
        )
        check(response.status)
        if not response.offsets:
            raise InternalError(f"{address} said nothing about {queue}")
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
        request = data_pb2.SendBackRequest(
            group=group, queue=wire_queue(queue), queue_offset=offset, delay_level=delay_level, attempts=attempts,
            uid=uid,
        )  # fmt: skip
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
        except (Unsupported, NotImplementedYet):  # an older broker keeps no counts
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
        request = groups_pb2.UnlockQueuesRequest(
            group=group, client_id=self.client_id, queues=[wire_queue(queue) for queue in queues]
        )
        data = await self.unary(address, GROUPS + "UnlockQueues", request.SerializeToString())
        check(groups_pb2.UnlockQueuesResponse.FromString(data).status)

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        address = self._endpoints[self._turn]
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
                # XO-4: entries without a queue are ignored. XO-5: a queue in mode POP has no owner, a broker is all's
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
