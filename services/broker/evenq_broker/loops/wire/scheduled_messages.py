"""Messages of schedules, as a producer would send them."""

from __future__ import annotations

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.sending.schedules import NAME_PROPERTY, TIME_PROPERTY
from evenq_broker.core.state.schedule_records import Schedule


def scheduled_message(schedule: Schedule, topic: str, at_ms: int, message_id: str) -> definition_pb2.Message:
    """Returns the message of the firing for the time `at_ms`."""
    message = definition_pb2.Message(body=schedule.body)
    message.topic.name = topic
    message.user_properties.update(schedule.properties)
    message.user_properties[NAME_PROPERTY] = schedule.name
    message.user_properties[TIME_PROPERTY] = str(at_ms)
    system = message.system_properties
    system.message_id = message_id
    system.keys.extend(schedule.keys)
    if schedule.tag:
        system.tag = schedule.tag
    if schedule.message_group:
        system.message_group = schedule.message_group
    return message
