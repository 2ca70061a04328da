"""A real broker in a thread of the test's process, without files: the protocol and delivery of production.

One setting differs: it stores a message id as often as it arrives (`duplicates_window_ms` 0), because `duplicate` and
`redeliver` store one again.

It listens on a free port of 127.0.0.1, so that all clients connect as they do in production: those of both interfaces,
in threads, in child processes, or of another SDK. Its log is in memory and ends with it. There is no nameserver and no
rebalancer: members of a group compute their shares.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings, StoreSettings

from evenq.client.loops.clients.background import Background
from evenq.client.producer import Producer
from evenq.client.pull_consumer import PullConsumer
from evenq.errors import TopicNotFound, Unsupported
from evenq.in_memory.faults import SendFaults
from evenq.in_memory.faulty_sends import FaultySends
from evenq.model import Message, ReceivedMessage
from evenq.runtime.clock import SystemClock
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.wire.net import GrpcNet

_HOST = "127.0.0.1"
_CACHE_BYTES = 2 << 20  # the log is in memory, so that a cache saves nothing
_START_MS, _STOP_MS = 60_000, 60_000


class MemoryCluster:
    """One broker. Use it in a `with` block; it is started once. Its methods are for every thread, but not for event
    loops: they wait.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """`settings`: those of the broker that differ from the defaults, by their names in Python, for example
        `{"body_bytes_max": 1_000}` (docs/reference/settings.md). Raises pydantic's ValidationError for invalid ones.
        """
        defaults: dict[str, Any] = {
            "broker_name": "broker-a",
            "host": _HOST,
            "port": 0,
            "metrics_port": -1,
            "drain_ms": 0,
            "route_settle_ms": 0,
            # Within this time a broker stores a message id once; `duplicate` and `redeliver` store it again.
            "duplicates_window_ms": 0,
            "store": StoreSettings(path=None, cache_bytes=_CACHE_BYTES),
        }
        self._settings = BrokerSettings.model_validate({**defaults, **(settings or {})})
        self.faults = SendFaults()
        """Faults for the next messages that producers send."""
        self._background: Background | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The access point for clients, `host:port`. Raises Unsupported before the start."""
        if not self._port:
            raise Unsupported("this MemoryCluster is not started; use it in a `with` block, or call start()")
        return f"{_HOST}:{self._port}"

    def start(self) -> Self:
        """Starts the broker, and waits until it serves. Raises Unsupported if it was started before."""
        if self._background is not None:
            raise Unsupported("this MemoryCluster was started before; make a new one")
        self._background = Background()
        try:
            self._port = self._background.run(self._start(), timeout_ms=_START_MS)
        except BaseException:
            self._background.close()
            raise
        return self

    def stop(self) -> None:
        """Stops the broker; its messages are lost. A second call does nothing. Close the clients before."""
        if self._background is None or not self._port:
            return
        self._port = 0
        try:
            self._background.run(self._stop(), timeout_ms=_STOP_MS)
        finally:
            self._background.close()

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Returns all stored messages of a topic, by queue and offset, whatever groups have consumed; empty if there is
        no such topic. Delayed messages are stored when they are due.
        """
        found: list[ReceivedMessage] = []
        with PullConsumer(group="evenq-memory-reader", endpoint=self.endpoint, tls=False) as consumer:
            try:
                queues = consumer.queues_of(topic)
            except TopicNotFound:
                return []
            consumer.assign(queues)
            for queue in queues:
                consumer.seek_to_end(queue)
                end = consumer.position(queue)
                consumer.seek_to_begin(queue)
                consumer.pause([other for other in queues if other != queue])
                consumer.resume([queue])
                while consumer.position(queue) < end:
                    found += consumer.poll(1_000, wait_ms=100)
        return sorted(found, key=lambda message: (message.queue.queue_id, message.queue_offset))

    def redeliver(self, message: ReceivedMessage) -> None:
        """Stores a message again, with its message id, at a new offset: all groups get it once more, also those that
        have acknowledged it.
        """
        again = Message(
            topic=message.topic,
            body=message.body,
            tag=message.tag,
            keys=message.keys,
            properties=message.properties,
            message_group=message.message_group,
            priority=message.priority,
            lite_topic=message.lite_topic,
            message_id=message.message_id,
        )
        with Producer(endpoint=self.endpoint, tls=False) as producer:
            producer.send(again)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _start(self) -> int:
        clock = SystemClock()
        self._sends = FaultySends(self.faults, clock)

        async def open_grpc_server(rpcs: Any, **arguments: Any) -> Any:
            return await PORT_OPENERS.open_grpc_server(self._sends.around(rpcs), **arguments)

        self._net = GrpcNet()
        self._app = BrokerApp(
            self._settings,
            clock=clock,
            rng=random.SystemRandom(),  # source of the keys of receipt handles
            net=self._net,
            edges=PortOpeners(open_grpc_server=open_grpc_server),
        )
        await self._app.start()
        return self._app.port

    async def _stop(self) -> None:
        await self._sends.close()
        await self._app.close()
        await self._net.close()
