"""Thousands of clients in one process, each with its own connection, an open Telemetry stream and a parked poll.

The HTTP/2 parts of the SDK build the frames; only answers to calls are parsed. A gRPC channel for each client would
cost more than the broker that is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import replay_requests as made

from evenq.wire.http2 import frames as f
from evenq.wire.http2 import hpack
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
WINDOW = 16 << 20
PREFIX_BYTES = 5

Done = Callable[[bytes], None]
"""Receiver of the body of an answer: messages, each after its prefix of five bytes."""


def answers(body: bytes) -> list[bytes]:
    """The messages of an answer."""
    found, at = [], 0
    while at < len(body):
        end = at + PREFIX_BYTES + int.from_bytes(body[at + 1 : at + PREFIX_BYTES])
        found.append(body[at + PREFIX_BYTES : end])
        at = end
    return found


class Connection(asyncio.Protocol):
    """Calls on one HTTP/2 connection, one stream each."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id.encode()
        self.why = ""
        """Reason why it cannot be used any more; empty: it works."""
        self.closing = False
        self._stream_id = -1
        self._done: dict[int, Done] = {}
        self._bodies: dict[int, list[bytes]] = {}
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]  # of a stream
        greeting = f.settings({f.ENABLE_PUSH: 0, f.INITIAL_WINDOW_SIZE: WINDOW})
        self.transport.write(f.PREFACE + greeting + f.window_update(0, WINDOW))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closing:
            self.why = self.why or f"the connection ended: {error or 'the broker closed it'}"

    def begin(self, method: str, request: bytes, done: Done | None = None, *, ends: bool = True) -> None:
        """Opens a call; `ends` False: the stream stays open for further requests."""
        self._stream_id = stream_id = self._stream_id + 2
        if done is not None:
            self._done[stream_id] = done
        block = hpack.encode(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", (SERVICE + method).encode()),
                (b":authority", b"bench"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
                (b"x-mq-client-id", self.client_id),
                (b"x-mq-language", b"JAVA"),
            ]
        )
        body = len(request).to_bytes(PREFIX_BYTES) + request
        head = f.header_block(stream_id.to_bytes(4), f.EncodedHeaders(block), end=False)
        self.transport.write(head + f.frame(f.DATA, f.END_STREAM if ends else 0, stream_id, body))

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= f.HEADER_BYTES:
            high, low, kind, flags, stream_id = f.HEADER.unpack_from(data, at)
            end = at + f.HEADER_BYTES + (high << 8 | low)
            if end > len(data):
                break
            self._on_frame(kind, flags, stream_id, data[at + f.HEADER_BYTES : end])
            at = end
        self._rest = data[at:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == f.DATA and stream_id in self._done:
            self._bodies.setdefault(stream_id, []).append(payload)
        elif kind == f.SETTINGS and not flags & f.ACK:
            self.transport.write(f.frame(f.SETTINGS, f.ACK, 0))
        elif kind == f.PING and not flags & f.ACK:
            self.transport.write(f.ping(payload, ack=True))
        elif kind == f.GOAWAY:
            self.why = f"the broker sent GOAWAY: {payload[8:].decode(errors='replace')}"
        if kind == f.RST_STREAM or (kind in {f.DATA, f.HEADERS} and flags & f.END_STREAM):
            done, body = self._done.pop(stream_id, None), b"".join(self._bodies.pop(stream_id, ()))
            if done is not None:
                done(body)

    def close(self) -> None:
        """Closes the socket without GOAWAY."""
        self.closing = True
        self.transport.close()


class Waiter(Connection):
    """A simple consumer that only waits, and polls again after a message."""

    def __init__(self, number: int, crowd: Crowd) -> None:
        super().__init__(f"waiter-{number}")
        self.topic = f"t-{number % crowd.groups}"
        self._crowd = crowd
        self._poll = made.receive(self.topic, f"g-{self.topic}", "*", is_sql=False, poll_ms=crowd.poll_ms)
        beat = service_pb2.HeartbeatRequest(client_type=definition_pb2.SIMPLE_CONSUMER)
        beat.group.name = f"g-{self.topic}"
        self._beat = beat.SerializeToString()

    def arrive(self) -> None:
        """Telemetry, Heartbeat, and the first poll."""
        command = service_pb2.TelemetryCommand()
        command.settings.client_type = definition_pb2.SIMPLE_CONSUMER
        command.settings.subscription.group.name = f"g-{self.topic}"
        self.begin("Telemetry", command.SerializeToString(), self._stream_ended, ends=False)
        self.beat()
        self.poll()

    def beat(self) -> None:
        """Sends a heartbeat, as SDKs do every ten seconds."""
        self.begin("Heartbeat", self._beat)

    def poll(self) -> None:
        """Starts another poll."""
        self.begin("ReceiveMessage", self._poll, self._answered)

    def _stream_ended(self, _body: bytes) -> None:
        self.why = self.why or "its Telemetry stream ended"

    def _answered(self, body: bytes) -> None:
        now = time.perf_counter()
        entries = []
        for one in answers(body):
            message = service_pb2.ReceiveMessageResponse.FromString(one).message
            if message.HasField("system_properties"):
                self._crowd.arrived(message.system_properties.message_id, now)
                system = message.system_properties
                entries.append((system.message_id, system.receipt_handle))
        if entries:
            request = service_pb2.AckMessageRequest()
            request.group.name, request.topic.name = f"g-{self.topic}", self.topic
            for message_id, handle in entries:
                request.entries.add(message_id=message_id, receipt_handle=handle)
            self.begin("AckMessage", request.SerializeToString())
        else:
            self._crowd.empty += 1
        if not self.closing:
            self.poll()


class Crowd:
    """All clients and their results."""

    def __init__(self, *, groups: int, poll_ms: int) -> None:
        self.groups = groups
        self.poll_ms = poll_ms
        self.clients: list[Waiter] = []
        self.empty = 0
        """Polls that ended without a message."""
        self.sent: dict[str, float] = {}
        """Messages in transit, with the time of their send."""
        self.waits_ms: list[float] = []

    async def come(self, address: str, count: int, *, at_once: int = 64) -> None:
        """Connects `count` clients, `at_once` of them at the same time."""
        host, port = address.rsplit(":", 1)
        loop, numbers = asyncio.get_running_loop(), iter(range(count))

        async def some() -> None:
            for number in numbers:
                _, client = await loop.create_connection(lambda number=number: Waiter(number, self), host, int(port))
                self.clients.append(client)
                client.arrive()

        await asyncio.gather(*(some() for _ in range(at_once)))

    def arrived(self, message_id: str, now: float) -> None:
        began = self.sent.pop(message_id, None)
        if began is not None:
            self.waits_ms.append((now - began) * 1000)

    async def beat(self, seconds: float, every_s: float) -> int:
        """Sends a heartbeat of each client, evenly. Returns their number."""
        began, sent, rate = time.perf_counter(), 0, len(self.clients) / every_s
        while (now := time.perf_counter() - began) < seconds:
            while sent < now * rate:
                self.clients[sent % len(self.clients)].beat()
                sent += 1
            await asyncio.sleep(0.01)
        return sent

    async def send(self, address: str, seconds: float, rate: float) -> int:
        """Sends messages to the topics in turn, evenly, and waits briefly for the last ones. Returns their number."""
        host, port = address.rsplit(":", 1)
        loop = asyncio.get_running_loop()
        _, sender = await loop.create_connection(lambda: Connection("sender"), host, int(port))
        count = int(seconds * rate)
        requests = [made.sends("normal", f"t-{number % self.groups}", 1)[0] for number in range(count)]
        replies: list[bytes] = []
        began = time.perf_counter()
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            message = service_pb2.SendMessageRequest.FromString(request).messages[0]
            self.sent[message.system_properties.message_id] = time.perf_counter()
            sender.begin("SendMessage", request, lambda body: replies.extend(answers(body)))
        for _ in range(100):
            if len(replies) == count and not self.sent:
                break
            await asyncio.sleep(0.05)
        made.must_be_ok("SendMessage", replies)
        if len(replies) < count:
            raise SystemExit(f"{count - len(replies)} of {count} sends were not answered: {sender.why or 'too slow'}")
        sender.close()
        return count

    def lost(self) -> list[str]:
        """Reasons why clients cannot be used any more."""
        return [client.why for client in self.clients if client.why]

    async def leave(self) -> None:
        """Closes all sockets at the same time, without GOAWAY."""
        for client in self.clients:
            client.close()
        await asyncio.sleep(0)
        self.clients.clear()
