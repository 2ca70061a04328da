"""A kombu channel on evenq: which queue is where, and what a delivery tag settles.

A durable queue is a topic with a group of the same name. A queue that ends with its process is a position in the topic
of broadcasts (`broadcasts`):

| declared as | bound to | kind |
| --- | --- | --- |
| not durable, auto-delete | any exchange | transient |
| durable, auto-delete | fanout or topic exchange | transient |
| anything else | direct exchange | durable |

Bindings are in the memory of the process, as in other virtual transports. A message goes to the durable queues that are
bound here. It is also broadcast if transient queues of other processes may be bound: at fanout and topic exchanges, and
at a direct exchange, or the default one, without a durable queue for its routing key.
"""

from __future__ import annotations

import logging
from queue import Empty
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange

from evenq.celery.broadcasts import Binding
from evenq.celery.deliveries import QueueDeliveries
from evenq.celery.inbox import KombuDelivery
from evenq.celery.session import TRANSIENT_TAG, TransportSession

log = logging.getLogger(__name__)

GET_WAIT_MS = 200
"""Longest wait of `basic_get`."""
LEVELS_MAX = 256  # x-max-priority is at most 255 in AMQP


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """Unsettled messages of a channel. The brokers hold them too, so nothing is restored when a process ends."""

    def __init__(self, channel: EvenqChannel, prefetch_count: int = 0) -> None:
        # Not the constructor of the base: it registers a finalizer that sends messages when the process exits.
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._delivered: dict[str, Any] = {}

    def can_consume(self) -> bool:
        return not self.prefetch_count or len(self._delivered) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        return max(0, self.prefetch_count - len(self._delivered)) if self.prefetch_count else None

    def append(self, message: Any, delivery_tag: str) -> None:
        self._delivered[delivery_tag] = message

    def get(self, delivery_tag: str) -> Any:
        return self._delivered[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        self._delivered.pop(delivery_tag, None)
        self.channel.settle(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        message = self._delivered.pop(delivery_tag, None)
        if requeue:
            self.channel.give_back(delivery_tag, message)
        else:
            self.channel.settle(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        for tag in list(self._delivered):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002 - kombu's signature
        self.restore_unacked()


class DirectRouting(DirectExchange):  # type: ignore[misc]  # kombu has no types
    """A direct exchange; a message without a durable queue may be for a transient one of another process."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        queues = self.lookup(self.channel.get_table_or_empty(exchange), exchange, routing_key, None)
        durable = [queue for queue in queues if not self.channel.session.is_transient(queue)]
        for queue in durable:
            self.channel._put(queue, message, **kwargs)  # noqa: SLF001 - as kombu's exchanges do
        if not durable:
            self.channel.broadcast(exchange, routing_key, message)


class TopicRouting(TopicExchange):  # type: ignore[misc]  # kombu has no types
    """A topic exchange; other processes may have bound transient queues."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        for queue in self.lookup(self.channel.get_table_or_empty(exchange), exchange, routing_key, None):
            if not self.channel.session.is_transient(queue):
                self.channel._put(queue, message, **kwargs)  # noqa: SLF001 - as kombu's exchanges do
        self.channel.broadcast(exchange, None, message)


class FanoutRouting(FanoutExchange):  # type: ignore[misc]  # kombu has no types
    """A fanout exchange, in all processes."""

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        for queue in self.lookup(self.channel.get_table_or_empty(exchange), exchange, routing_key, None):
            if not self.channel.session.is_transient(queue):
                self.channel._put(queue, message, **kwargs)  # noqa: SLF001 - as kombu's exchanges do
        self.channel.broadcast(exchange, None, message)


class EvenqChannel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel of kombu. Not thread-safe, as all channels of kombu."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    exchange_types = {"direct": DirectRouting, "topic": TopicRouting, "fanout": FanoutRouting}

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.session: TransportSession = connection.session
        self._made: QueueDeliveries | None = None
        self._undecided: set[str] = set()
        """Declared durable and auto-delete: their first binding decides what they are."""
        self._without_ack: set[str] = set()
        self._callback_of: dict[str, Any] = {}
        """Consumer tag to its callback. kombu's connection has one of each queue, for all channels and consumers."""

    # ------------------------------------------------------------------------------------------------------- queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        if not passive and kwargs.get("arguments"):
            _levels(queue or "", kwargs["arguments"])  # an error before anything is created
        return super().queue_declare(queue, passive, **kwargs)

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments with `max_priority` and others of a kombu queue among them, as AMQP names them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return prepared

    def _new_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        passive: bool = False,
        **kwargs: Any,  # noqa: ARG002 - kombu's signature
    ) -> None:
        if passive or self.session.is_transient(queue):
            return
        if auto_delete and not durable:
            self.session.declare_transient(queue)
        elif auto_delete:
            self._undecided.add(queue)
        else:
            self.session.declare(queue, levels=_levels(queue, arguments))

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        # The base does nothing for a binding that it knows, but the queue may be a new one of the same name.
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)
        exchange = exchange or "amq.direct"
        kind = self.typeof(exchange).type
        if queue in self._undecided:
            self._undecided.discard(queue)
            if kind == "direct":
                self.session.declare(queue, levels=0)
            else:
                self.session.declare_transient(queue)
        if self.session.is_transient(queue):
            self.session.bind(queue, Binding(exchange, kind, routing_key or ""))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        """Does nothing: see `queue_bind`."""

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, arguments, **kwargs)
        if self.session.is_transient(queue):
            self.session.unbind(queue, Binding(exchange or "", self.typeof(exchange).type, routing_key or ""))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:  # noqa: ARG002 - kombu's signature
        return self.session.is_transient(queue) or self.session.exists(queue)

    def _size(self, queue: str) -> int:
        if queue in self._undecided or self.session.is_transient(queue):
            return 0
        return self.session.size(queue)

    def _purge(self, queue: str) -> int:
        return 0 if self.session.is_transient(queue) else self.session.purge(queue)

    def queue_delete(
        self,
        queue: str,
        if_unused: bool = False,
        if_empty: bool = False,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Deletes a queue. A durable one is deleted in the cluster, with its messages. Raises BadRequest while other
        channels or processes consume it.
        """
        if self.session.is_transient(queue):
            self.session.delete_transient(queue)
        elif (if_empty and self._size(queue)) or (if_unused and self.session.members(queue)):
            return
        else:
            if self._made is not None:
                self.session.run(self._made.leave(queue))
            self.session.delete(queue)
        for exchange, routing_key, arguments in list(self.state.queue_bindings(queue)):
            super().queue_unbind(queue, exchange, routing_key, arguments)
        self.state.queue_bindings_delete(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Keeps the queue: it ends with its consumer, and the next request declares it again."""

    def get_table(self, exchange: str) -> Any:
        return self.state.exchanges[exchange].setdefault("table", [])

    def get_table_or_empty(self, exchange: str) -> Any:
        """Returns the bindings of an exchange; none for one that was not declared here."""
        return self.state.exchanges.get(exchange, {}).get("table", ())

    # ------------------------------------------------------------------------------------------------------ sending

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:  # noqa: ARG002 - kombu's signature
        if queue in self._undecided:
            self._undecided.discard(queue)
            self.session.declare(queue, levels=0)
        if self.session.is_transient(queue) or not self.session.exists(queue):
            # The default exchange: the queue may be a transient one of another process.
            self.session.broadcast("", queue, message)
        else:
            self.session.send(queue, message)

    def broadcast(self, exchange: str, routing_key: str | None, message: dict[str, Any]) -> None:
        """Sends to the transient queues of all processes that are bound to the exchange."""
        self.session.broadcast(exchange, routing_key, message)

    # ---------------------------------------------------------------------------------------------------- receiving

    @property
    def _deliveries(self) -> QueueDeliveries:
        if self._made is None:
            self._made = self.session.deliveries(self.connection.inbox)
            self._limit()
        return self._made

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:  # noqa: ARG002
        self.qos.prefetch_count = prefetch_count
        if self._made is not None:
            self._limit()

    def _limit(self) -> None:
        made, count = self._made, self.qos.prefetch_count
        assert made is not None
        self.session.call(lambda: made.limit(count))

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._callback_of[consumer_tag] = self.connection._callbacks[queue]  # noqa: SLF001 - made by the base
        if no_ack:
            self._without_ack.add(queue)
        else:
            self._without_ack.discard(queue)
        if self.session.is_transient(queue):
            self.connection.consumed_by(queue, None, self)
            self.session.consume_transient(queue, self.connection.inbox)
            return
        if queue in self._undecided:
            self._undecided.discard(queue)
            self.session.declare(queue, levels=0)
        self.session.check_consumable(queue)
        deliveries = self._deliveries
        self.connection.consumed_by(queue, deliveries, self)
        self.session.call(lambda: deliveries.consume(queue))

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        self._callback_of.pop(consumer_tag, None)
        if queue is None or queue in self._active_queues:
            return
        if self.session.is_transient(queue):
            self.session.delete_transient(queue)
        elif self._made is not None and self.session.alive:
            self.session.run(_cancelled(self._made, queue))
        self.connection.not_consumed(queue, self._made)

    def deliver(self, delivery: KombuDelivery) -> None:
        """Gives a delivery to its consumer, in the thread that drains the connection."""
        tags = [tag for tag, queue in self._tag_to_queue.items() if queue == delivery.queue]
        callback = self._callback_of.get(tags[-1]) if tags else None  # of several, the newest, as in kombu
        if callback is None:
            self.return_delivery(delivery)
            return
        if delivery.queue in self._without_ack:
            self._settle(delivery.tag)
        callback(delivery.payload)

    def return_delivery(self, delivery: KombuDelivery) -> None:
        """Makes a delivery without a consumer available to others."""
        if delivery.tag and self._made is not None:
            made, tag = self._made, delivery.tag
            self.session.call(lambda: made.give_back(tag, unseen=True))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - kombu's signature
        if self.session.is_transient(queue):
            payload = self.session.get_transient(queue)
        else:
            delivery = self.session.run(self._deliveries.get(queue, GET_WAIT_MS))
            payload = None if delivery is None else delivery.payload
        if payload is None:
            raise Empty
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self._settle(message.delivery_tag)
        return message

    # -------------------------------------------------------------------------------------------------- settlements

    def settle(self, delivery_tag: str) -> None:
        """Acknowledges a message in the background."""
        self._settle(delivery_tag)

    def _settle(self, tag: str) -> None:
        if tag and self._made is not None:
            made = self._made
            self.session.call(lambda: made.ack(tag))

    def give_back(self, delivery_tag: str, message: Any) -> None:
        """Makes a message available again: to all workers, or to this process if its queue is transient."""
        if delivery_tag.startswith(TRANSIENT_TAG):
            payload = message.serializable()
            payload["properties"]["delivery_info"]["redelivered"] = True
            self.session.put_back(delivery_tag.split(":", 2)[2], payload)
        elif self._made is not None:
            made = self._made
            self.session.call(lambda: made.give_back(delivery_tag))

    def close(self) -> None:
        """Ends the consumers, sends acknowledgements, returns unsettled messages."""
        if not self.closed and self.session.alive and self._made is not None:
            for consumer in list(self._consumers):
                self.basic_cancel(consumer)
            made, self._made = self._made, None
            self.session.run(made.close())
        super().close()


async def _cancelled(made: QueueDeliveries, queue: str) -> None:
    """Cancels a consumer. The caller waits for the loop, which may deliver until then."""
    made.cancel(queue)


def _levels(queue: str, arguments: dict[str, Any] | None) -> int:
    """Returns the number of priorities of a queue, 0 if it has none."""
    given = (arguments or {}).get("x-max-priority")
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < LEVELS_MAX:
        raise ChannelError(
            f"PRECONDITION_FAILED - queue {queue!r}: x-max-priority is {given!r}; give a whole number from 0 to "
            f"{LEVELS_MAX - 1}",
            (50, 10),
            "Channel.queue_declare",
            "406",
        )
    return given + 1
