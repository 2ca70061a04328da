"""Requests of `delivery.py`, as bytes: both servers get the same ones, and the load program spends no time on them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable

from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

CLIENT = "replay"
BODY = bytes(range(256)) * 4
GROUPS, LITE_TOPICS, PRIORITIES, QUEUES = 1_000, 1_000, 10, 8
LONG_DELAY_MS, SHORT_DELAY_MS = 3_600_000, 1_000
SQL = "n >= 5 AND kind = 'bench'"
OK = definition_pb2.OK

_numbers = itertools.count()
_start = os.getpid() << 40


def _normal(message: definition_pb2.Message, number: int) -> None:
    message.system_properties.message_type = definition_pb2.NORMAL
    message.system_properties.tag = "AB"[number // QUEUES % 2]
    message.user_properties["n"] = str(number // QUEUES % 10)
    message.user_properties["kind"] = "bench"


def _fifo(message: definition_pb2.Message, number: int) -> None:
    message.system_properties.message_type = definition_pb2.FIFO
    message.system_properties.message_group = f"group-{number % GROUPS}"


def _delay(after_ms: int) -> Callable[[definition_pb2.Message, int], None]:
    def make(message: definition_pb2.Message, _number: int) -> None:
        message.system_properties.message_type = definition_pb2.DELAY
        set_ms(message.system_properties.delivery_timestamp, int(time.time() * 1000) + after_ms)

    return make


def _transaction(message: definition_pb2.Message, _number: int) -> None:
    message.system_properties.message_type = definition_pb2.TRANSACTION


def _priority(message: definition_pb2.Message, number: int) -> None:
    message.system_properties.message_type = definition_pb2.PRIORITY
    message.system_properties.priority = number % PRIORITIES


def _lite(message: definition_pb2.Message, number: int) -> None:
    message.system_properties.message_type = definition_pb2.LITE
    message.system_properties.lite_topic = f"lite-{number % LITE_TOPICS}"


_KINDS = {
    "normal": _normal,
    "fifo": _fifo,
    "delay": _delay(LONG_DELAY_MS),
    "delay-short": _delay(SHORT_DELAY_MS),
    "transaction": _transaction,
    "priority": _priority,
    "lite": _lite,
}


def sends(kind: str, topic: str, count: int, *, batch: int = 1, together: bool = False) -> list[bytes]:
    """SendMessageRequests with `count` messages of 1 KiB, each with its own id. `together`: the messages of a
    request have one queue, as with SDKs; otherwise each has the next one.
    """
    finish = _KINDS[kind]
    requests: list[bytes] = []
    for first in range(0, count, batch):
        request = service_pb2.SendMessageRequest()
        for number in range(first, min(first + batch, count)):
            message = request.messages.add(body=BODY)
            message.topic.name = topic
            system = message.system_properties
            system.message_id = f"01{_start + next(_numbers):032X}"
            system.queue_id, system.body_encoding, system.born_host = (
                (first // batch if together else number) % QUEUES,
                definition_pb2.IDENTITY,
                "localhost",
            )
            set_ms(system.born_timestamp, int(time.time() * 1000))
            finish(message, number)
        requests.append(request.SerializeToString())
    return requests


def commits(topic: str, answers: Iterable[bytes]) -> list[bytes]:
    """EndTransactionRequests for the half messages of these answers."""
    requests = []
    for response in answers:
        entry = service_pb2.SendMessageResponse.FromString(response).entries[0]
        request = service_pb2.EndTransactionRequest(
            message_id=entry.message_id, transaction_id=entry.transaction_id, resolution=definition_pb2.COMMIT
        )
        request.topic.name = topic
        requests.append(request.SerializeToString())
    return requests


def receive(topic: str, group: str, expression: str, *, is_sql: bool, poll_ms: int = 5_000) -> bytes:
    """ReceiveMessageRequest of a simple consumer for 32 messages of any queue."""
    request = service_pb2.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name, request.message_queue.id = group, topic, -1
    request.filter_expression.expression = expression
    request.filter_expression.type = definition_pb2.SQL if is_sql else definition_pb2.TAG
    set_duration_ms(request.invisible_duration, 60_000)
    set_duration_ms(request.long_polling_timeout, poll_ms)
    return request.SerializeToString()


def pulls(topic: str, count: int) -> list[bytes]:
    """PullMessageRequests that read each of the queues in steps of 32."""
    requests = []
    for offset in range(0, count // QUEUES, 32):
        for queue in range(QUEUES):
            request = service_pb2.PullMessageRequest(offset=offset, batch_size=32)
            request.group.name, request.message_queue.topic.name, request.message_queue.id = "pull", topic, queue
            request.filter_expression.expression = "*"
            requests.append(request.SerializeToString())
    return requests


def change(topic: str, message_id: str, handle: str) -> bytes:
    """ChangeInvisibleDurationRequest: redelivery in 10 s."""
    request = service_pb2.ChangeInvisibleDurationRequest(receipt_handle=handle, message_id=message_id)
    request.group.name, request.topic.name = f"g-{topic}", topic
    set_duration_ms(request.invisible_duration, 10_000)
    return request.SerializeToString()


def dead(topic: str, message_id: str, handle: str) -> bytes:
    """ForwardMessageToDeadLetterQueueRequest."""
    request = service_pb2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle, message_id=message_id)
    request.group.name, request.topic.name = f"g-{topic}", topic
    return request.SerializeToString()


def lite_subscription(topic: str, group: str) -> bytes:
    """SyncLiteSubscriptionRequest for all lite topics of `sends`."""
    request = service_pb2.SyncLiteSubscriptionRequest(action=definition_pb2.COMPLETE_ADD)
    request.topic.name, request.group.name = topic, group
    request.lite_topic_set.extend(f"lite-{number}" for number in range(LITE_TOPICS))
    return request.SerializeToString()


def must_be_ok(method: str, answers: Iterable[bytes]) -> None:
    """Ends the run if one was not answered OK."""
    parse = getattr(service_pb2, f"{method}Response").FromString
    for response in answers:
        status = parse(response).status
        if status.code != OK:
            raise SystemExit(f"{method} was answered {status.code}: {status.message}")
