"""Time lines of groups over the copies of a message."""

from __future__ import annotations

from typing import Any

from evenq.client.core.admin.query_views import GroupTraceView, MessageTraceView, MessageView, TraceEventView
from evenq.console.timelines import timelines
from evenq.model import MessageQueue, MessageType


def trace(topic: str, *events: TraceEventView, groups: tuple[GroupTraceView, ...] = ()) -> MessageTraceView:
    message = MessageView(
        queue=MessageQueue(topic, "a", 0),
        offset=0,
        message_id="id",
        message_type=MessageType.NORMAL,
        tag=None,
        keys=(),
        properties={},
        message_group=None,
        priority=None,
        lite_topic=None,
        born_ms=0,
        born_host="",
        store_ms=0,
        delivery_ms=None,
        body=b"",
        body_bytes=0,
    )
    return MessageTraceView(message=message, groups=groups, events=events, remembered_since_ms=1)


def event(what: str, at_ms: int, group: str = "", **fields: Any) -> TraceEventView:
    return TraceEventView(
        what=what, at_ms=at_ms, group=group, **{"client_id": "", "attempt": 0, "until_ms": 0, **fields}
    )


def state(group: str, name: str) -> GroupTraceView:
    return GroupTraceView(group=group, state=name, attempt=0, client_id="", until_ms=0)


def test_the_story_of_a_group_covers_its_retry_and_dead_letter_copies() -> None:
    lines = timelines(
        [
            trace(
                "t",
                event("STORED", 1),
                event("DELIVERED", 2, "g", attempt=1, client_id="c", until_ms=50),
                event("DEAD_LETTERED", 9, "g"),
                groups=(state("g", "DEAD_LETTERED"), state("h", "WAITING")),
            ),
            trace("%RETRY%g", event("STORED", 4), event("INVISIBLE", 5, "g"), groups=(state("g", "FINISHED"),)),
            trace("%DLQ%g", event("STORED", 9), groups=(state("%DLQ%g", "FINISHED"),)),
        ]
    )
    assert [(one.group, one.has_events) for one in lines] == [("g", True), ("h", False)]
    assert [(one.event, one.copy.queue.topic) for one in lines[0].steps] == [
        ("stored", "t"),
        ("delivered", "t"),
        ("stored", "%RETRY%g"),
        ("given back", "%RETRY%g"),
        ("moved to the dead-letter topic", "t"),
        ("stored", "%DLQ%g"),
    ]
    assert [one.state for one in lines[0].states] == ["in the dead-letter topic", "finished", "dead letter, replayed"]
    assert [one.event for one in lines[1].steps] == ["stored"]


def test_a_kind_of_event_of_a_newer_server_keeps_its_name() -> None:
    [line] = timelines([trace("t", event("TELEPORTED", 3, "g"), groups=(state("g", "DREAMING"),))])
    assert (line.steps[0].event, line.states[0].state) == ("TELEPORTED", "DREAMING")
