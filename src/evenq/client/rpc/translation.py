"""Conversion of queues, filters, generations and counts between the model and evenq.v1."""

from __future__ import annotations

from evenq.client.core.calls import FINISHED, LockAnswer
from evenq.model import FilterExpression, FilterType, Generation, MessageQueue, StartPolicy
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2, groups_pb2


def wire_queue(queue: MessageQueue) -> common_pb2.Queue:
    return common_pb2.Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


def model_queue(queue: common_pb2.Queue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def filter_of(expression: FilterExpression) -> common_pb2.Filter:
    kind = common_pb2.Filter.SQL if expression.type is FilterType.SQL else common_pb2.Filter.TAG
    return common_pb2.Filter(type=kind, expression=expression.expression)


def model_filter(message: common_pb2.Filter) -> FilterExpression:
    """Returns the filter; an empty expression means all messages."""
    kind = FilterType.SQL if message.type == common_pb2.Filter.SQL else FilterType.TAG
    return FilterExpression(message.expression or "*", kind)


def wire_generation(generation: Generation) -> common_pb2.Generation:
    return common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)


def wire_count(offset: int, number: int) -> common_pb2.DeliveryCount:
    """Returns the count for a number of deliveries, or for FINISHED."""
    if number == FINISHED:
        return common_pb2.DeliveryCount(offset=offset, finished=True)
    return common_pb2.DeliveryCount(offset=offset, deliveries=number)


def lock_answer(message: groups_pb2.LockedQueue) -> LockAnswer:
    counts = tuple((count.offset, FINISHED if count.finished else count.deliveries) for count in message.counts)
    queue = model_queue(message.queue)
    return LockAnswer(
        queue, message.granted, message.holder, message.committed, message.given_until, counts, message.uid
    )


def wire_start(policy: StartPolicy) -> data_pb2.StartPolicy:
    return data_pb2.StartPolicy(
        start_from=policy.start_from or "",
        timestamp_ms=policy.timestamp_ms,
        young_from_first=policy.young_from_first,
        begun_ms=policy.begun_ms,
    )
