"""Messages of schedules, as a producer would send them, and schedules that are handed over."""

from __future__ import annotations

import json

from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import peers_pb2
from evenq_broker.core.sending.schedules import NAME_PROPERTY, TIME_PROPERTY
from evenq_broker.core.state.schedule_records import Schedule, SchedulePut, schedule_json, schedule_op_of


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


def give_schedule(caller: str, topic: str, name: str, *, uid: str = "", hop: int = 0) -> bytes:
    """Requests a schedule of another broker; with `hop`, reports that it is stored here."""
    return peers_pb2.GiveScheduleRequest(
        broker_name=caller, topic=topic, name=name, uid=uid, hop=hop
    ).SerializeToString()


def given(schedule: Schedule) -> bytes:
    """Returns a schedule for the broker that takes it."""
    return json.dumps(schedule_json(SchedulePut(schedule))).encode()


def given_schedule(response: bytes) -> Schedule:
    """Returns the schedule in the answer to `give_schedule`. Raises the error of its status."""
    message = peers_pb2.GiveScheduleResponse.FromString(response)
    check(message.status)
    op = schedule_op_of(json.loads(message.schedule))
    assert isinstance(op, SchedulePut), "a broker gives a whole schedule"
    return op.schedule


def check_given(response: bytes) -> None:
    """Checks the answer to a report of `give_schedule`."""
    check(peers_pb2.GiveScheduleResponse.FromString(response).status)
