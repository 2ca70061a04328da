"""One message sent from the caller's thread to its broker: the usual path of the sync `send`.

Used for messages that may go to any queue, while the topic's route is known and fresh. It makes one attempt. If that
fails, the message goes to the producer's loop (`loops.sending`), which handles retries, closed queues and new routes;
there the attempt counts as the first one, and the message id stays.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from evenq.client.core.routes.route import Route
from evenq.client.loops.sending.outgoing import SendResult
from evenq.client.rpc.calls import DATA, Calls
from evenq.client.rpc.messages import check_published, repeated
from evenq.client.rpc.translation import wire_queue
from evenq.errors import Error, NotImplementedYet, Unsupported
from evenq.model import MessageQueue, QueueOffset
from evenq.runtime.clock import Clock
from evenq.runtime.net import BlockingCalls
from evenq.runtime.tasks import spawn
from evenq.wire.stubs.evenq.v1 import data_pb2

HEADS_MAX = 10_000
LOOK_MS = 500
"""Period of looking at idle connections, so that a stopping server need not wait for them longer."""
OK = 20000


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt without a result."""

    queue: MessageQueue
    error: Error


class Direct:
    """Sender in the thread of the caller. Thread-safe."""

    def __init__(
        self,
        net: BlockingCalls,
        calls: Calls,
        *,
        route: Callable[[str], Route | None],
        timeout_ms: int,
        first_turn: int,
    ) -> None:
        """`route`: the fresh route of a topic or None, in any thread. `first_turn`: random, to spread the producers."""
        self._net = net
        self._calls = calls
        self._route = route
        self._timeout_ms = timeout_ms
        self._turns = itertools.count(first_turn)
        self._metadata = tuple(calls.metadata.items())
        self._heads: dict[MessageQueue, bytes] = {}
        self._care: asyncio.Task[None] | None = None

    def look_after_connections(self, clock: Clock) -> None:
        """Starts to serve idle connections, until `close`. Called in the loop; senders serve the ones that they use."""
        self._care = spawn(self._look_after(clock), name="idle connections")

    async def _look_after(self, clock: Clock) -> None:
        while True:
            await clock.sleep_ms(LOOK_MS)
            self._net.look_after()

    def publish(self, topic: str, message_id: str, content: bytes) -> SendResult | Failed | None:
        """Makes the attempt. None: nothing was stored, and the message must take the path over the loop."""
        route = self._route(topic)
        if route is None or not route.writable:
            return None
        # `itertools.count` advances in one step of C, so threads take turns without a lock.
        queue = route.writable[next(self._turns) % len(route.writable)]
        address = route.addresses.get(queue.broker_name, "")
        if not address or not self._calls.publishes(address):
            return None
        target, metadata = address, self._metadata
        if "#" in address:  # it leads to any broker: a header names this one
            target, named = self._calls.directed(address)
            metadata = tuple(named.items())
        try:
            body = self._head(queue) + repeated(2, (content,))
            data = self._net.unary(target, DATA + "Publish", body, timeout_ms=self._timeout_ms, metadata=metadata)
            response = data_pb2.PublishResponse.FromString(data)
            if response.status.code != OK:
                check_published(response)
        except (Unsupported, NotImplementedYet):
            return None  # the loop's calls get the same answer, and remember it
        except Error as error:
            return Failed(queue, error)
        offset = response.first_offset
        if response.offsets:  # a repeat: the place of the first copy
            queue, offset = MessageQueue(queue.topic, queue.broker_name, response.queue_ids[0]), response.offsets[0]
        elif response.queue.queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, response.queue.queue_id)
        return SendResult(message_id, queue, QueueOffset(offset))

    def close(self) -> None:
        if self._care is not None:
            self._care.cancel()
        self._net.close()

    def _head(self, queue: MessageQueue) -> bytes:
        head = self._heads.get(queue)
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[queue] = data_pb2.PublishRequest(queue=wire_queue(queue)).SerializeToString()
        return head
