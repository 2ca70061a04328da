"""Simple models of official SDKs' clients: the public protocol's calls in the order in which those SDKs make them.

`PushMember` asks for its route, introduces itself on telemetry streams, sends heartbeats, asks which queues are its
own, receives from each with one long poll after the other, and acknowledges. Its language says whom it tells of its
life and of its end: Java every broker of its route, Rust the one that it knows as its access point. Periods are a part
of the real ones, as those of the world are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from evenq_proofs.sim import ProcessClock, ProcessNet

from evenq.errors import Error
from evenq.model import MessageQueue
from evenq.runtime.tasks import spawn
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
CALL_MS = 3_000
ROUTE_MS, ASSIGNMENT_MS, HEARTBEAT_MS = 5_000, 1_000, 10_000
POLL_MS = 5_000
PAUSE_MS = 200
BATCH = 8
ACKS_MAX = 30

Listen = Callable[[list[tuple[int, str, int, int]]], Awaitable[bool]]
"""(body, queue, offset, attempt) of each message; False: it failed."""


class V2Calls:
    """The calls of one client."""

    def __init__(self, net: ProcessNet, client_id: str, language: str) -> None:
        self._net = net
        self._metadata = {
            "x-mq-client-id": client_id, "x-mq-language": language, "x-mq-client-version": "5.0.7",
            "x-mq-protocol": "v2", "x-mq-namespace": "",
        }  # fmt: skip

    async def ask(self, address: str, method: str, request: Any, response: Any, *, timeout_ms: int = CALL_MS) -> Any:
        """One call; raises Error for a status that is none of success."""
        data = await self._net.unary(
            address, SERVICE + method, request.SerializeToString(), timeout_ms=timeout_ms, metadata=self._metadata
        )
        answer = response.FromString(data)
        check(answer.status)
        return answer

    async def receive(self, address: str, request: service_pb2.ReceiveMessageRequest) -> list[v2.Message]:
        """One long poll."""
        messages: list[v2.Message] = []
        frames = self._net.stream(
            address, SERVICE + "ReceiveMessage", request.SerializeToString(), timeout_ms=None, metadata=self._metadata
        )
        async for data in frames:
            frame = service_pb2.ReceiveMessageResponse.FromString(data)
            match frame.WhichOneof("content"):
                case "message":
                    messages.append(frame.message)
                case "status" if frame.status.code != v2.MESSAGE_NOT_FOUND:
                    check(frame.status)
                case _:
                    pass
        return messages

    async def telemetry(self, address: str, settings: v2.Settings, until: asyncio.Event | None) -> None:
        """A stream that begins with the client's settings; `until` None: it ends with their answer."""

        async def requests() -> AsyncIterator[bytes]:
            yield service_pb2.TelemetryCommand(settings=settings).SerializeToString()
            if until is not None:
                await until.wait()

        frames = self._net.stream(address, SERVICE + "Telemetry", requests(), timeout_ms=None, metadata=self._metadata)
        async for _ in frames:
            if until is None:
                break
        await frames.aclose()

    async def route(self, access_points: list[str], topic: str) -> list[v2.MessageQueue]:
        """The topic's queues; raises Error if no access point answers."""
        request = service_pb2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=endpoints(access_points))
        failure: Error | None = None
        for address in access_points:
            try:
                answer = await self.ask(address, "QueryRoute", request, service_pb2.QueryRouteResponse)
                return list(answer.message_queues)
            except Error as error:
                failure = error
        assert failure is not None
        raise failure


class PushMember:
    """One push consumer of one topic."""

    def __init__(
        self,
        calls: V2Calls,
        *,
        clock: ProcessClock,
        access_points: list[str],
        group: str,
        topic: str,
        language: str,
        ordered: bool,
        retry_ms: int,
        listen: Listen,
    ) -> None:
        self._calls, self._clock, self._access_points = calls, clock, access_points
        self._group, self._topic = v2.Resource(name=group), v2.Resource(name=topic)
        self._everywhere = language != "RUST"
        self._ordered, self._retry_ms, self._listen = ordered, retry_ms, listen
        self._known: dict[str, None] = dict.fromkeys(access_points[:1])
        self._introduced: dict[str, asyncio.Task[None]] = {}
        self._reading: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._mine: dict[tuple[str, int], v2.MessageQueue] = {}
        self._closed = asyncio.Event()
        self._attempt = 0

    def start(self) -> None:
        """Begin."""
        loops = (self._routes(), self._heartbeats(), self._assignments())
        self._tasks = [spawn(loop, name="v2 member") for loop in loops]

    def owned(self) -> list[MessageQueue]:
        """Nothing: its queues are shared, message by message."""
        return []

    async def close(self) -> None:
        """No receives any more; what listeners have is finished; then the goodbye."""
        for task in self._tasks:
            task.cancel()
        self._mine.clear()
        if self._reading:
            await asyncio.wait(list(self._reading.values()))
        request = service_pb2.NotifyClientTerminationRequest(group=self._group)
        for address in self._told():
            with suppress(Error):
                await self._calls.ask(
                    address, "NotifyClientTermination", request, service_pb2.NotifyClientTerminationResponse
                )
        self._closed.set()

    def _told(self) -> list[str]:
        return list(self._known) if self._everywhere else self._access_points[:1]

    # ------------------------------------------------------------------------------------------------ its life

    async def _routes(self) -> None:
        while True:
            with suppress(Error):
                queues = await self._calls.route(self._access_points, self._topic.name)
                self._known.update(dict.fromkeys(address_of(queue) for queue in queues))
            for address in self._told():
                if address not in self._introduced:
                    self._introduced[address] = spawn(self._introduce(address), name="v2 telemetry")
            await self._clock.sleep_ms(ROUTE_MS)

    async def _introduce(self, address: str) -> None:
        settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
        settings.subscription.group.CopyFrom(self._group)
        settings.subscription.fifo = self._ordered
        entry = settings.subscription.subscriptions.add(topic=self._topic)
        entry.expression.expression = "*"
        while not self._closed.is_set():
            with suppress(Error):
                await self._calls.telemetry(address, settings, self._closed if self._everywhere else None)
            await self._clock.sleep_ms(1_000 if self._everywhere else ROUTE_MS)

    async def _heartbeats(self) -> None:
        request = service_pb2.HeartbeatRequest(group=self._group, client_type=v2.PUSH_CONSUMER)
        while True:
            await self._clock.sleep_ms(1_000)
            for address in self._told():
                with suppress(Error):
                    await self._calls.ask(address, "Heartbeat", request, service_pb2.HeartbeatResponse)
            await self._clock.sleep_ms(HEARTBEAT_MS - 1_000)

    async def _assignments(self) -> None:
        request = service_pb2.QueryAssignmentRequest(
            topic=self._topic, group=self._group, endpoints=endpoints(self._access_points)
        )
        turn = 0
        while True:
            address = self._access_points[turn % len(self._access_points)]
            try:
                answer = await self._calls.ask(address, "QueryAssignment", request, service_pb2.QueryAssignmentResponse)
                queues = [one.message_queue for one in answer.assignments]
                self._mine = {(address_of(queue), queue.id): queue for queue in queues}
                for place in self._mine:
                    if place not in self._reading:
                        self._reading[place] = spawn(self._read(place), name="v2 receive")
            except Error:
                turn += 1
            await self._clock.sleep_ms(ASSIGNMENT_MS)

    # ------------------------------------------------------------------------------------------------ its work

    async def _read(self, place: tuple[str, int]) -> None:
        """One long poll after the other while the queue is its own; the last one is taken to its end."""
        address = place[0]
        while (queue := self._mine.get(place)) is not None:
            self._attempt += 1
            request = service_pb2.ReceiveMessageRequest(
                group=self._group, message_queue=queue, batch_size=BATCH, auto_renew=True,
                attempt_id=f"{self._attempt}",
            )  # fmt: skip
            request.filter_expression.expression = "*"
            request.long_polling_timeout.FromMilliseconds(POLL_MS)
            try:
                messages = await self._calls.receive(address, request)
            except Error:
                await self._clock.sleep_ms(PAUSE_MS)
            else:
                await self._work(address, queue.broker.name, messages)
        del self._reading[place]

    async def _work(self, address: str, broker: str, messages: list[v2.Message]) -> None:
        pieces = [[one] for one in messages] if self._ordered else [messages]
        for piece in pieces:
            given = [
                (
                    int(one.body),
                    str(MessageQueue(one.topic.name, broker, one.system_properties.queue_id)),
                    one.system_properties.queue_offset,
                    one.system_properties.delivery_attempt,
                )
                for one in piece
            ]
            done = await self._listen(given)
            for message in piece:
                await self._settle(address, message, done=done)

    async def _settle(self, address: str, message: v2.Message, *, done: bool) -> None:
        system = message.system_properties
        for _ in range(ACKS_MAX):
            try:
                if done:
                    entry = service_pb2.AckMessageEntry(
                        message_id=system.message_id, receipt_handle=system.receipt_handle
                    )
                    ack = service_pb2.AckMessageRequest(group=self._group, topic=message.topic, entries=[entry])
                    await self._calls.ask(address, "AckMessage", ack, service_pb2.AckMessageResponse)
                else:
                    change = service_pb2.ChangeInvisibleDurationRequest(
                        group=self._group, topic=message.topic, receipt_handle=system.receipt_handle,
                        message_id=system.message_id,
                    )  # fmt: skip
                    change.invisible_duration.FromMilliseconds(self._retry_ms)
                    await self._calls.ask(
                        address, "ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse
                    )
            except Error as error:
                if not error.retryable:
                    return
                await self._clock.sleep_ms(PAUSE_MS)
            else:
                return


def address_of(queue: v2.MessageQueue) -> str:
    """Where its broker answers."""
    address = queue.broker.endpoints.addresses[0]
    return f"{address.host}:{address.port}"


def endpoints(addresses: list[str]) -> v2.Endpoints:
    """As the protocol writes access points."""
    result = v2.Endpoints(scheme=v2.DOMAIN_NAME)
    for one in addresses:
        host, _, port = one.rpartition(":")
        result.addresses.add(host=host, port=int(port))
    return result
