"""The trace of a message as one time line for each group, over its copies on all brokers.

A message that fails is stored again in the group's retry topic, or in its dead-letter topic. Each copy has a trace of
its own; a reader wants the story of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evenq.client.core.admin.query_views import GroupTraceView, MessageTraceView, MessageView, TraceEventView
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX

_STATES = {
    "WAITING": "not delivered yet",
    "IN_FLIGHT": "delivered, not acknowledged",
    "RETRY": "waits for its next delivery",
    "BLOCKED": "waits for the previous message of its message group",
    "FINISHED": "finished",
    "DEAD_LETTERED": "in the dead-letter topic",
}
_REPLAY_STATES = {"FINISHED": "dead letter, replayed"}
_EVENTS = {
    "STORED": "stored",
    "DELIVERED": "delivered",
    "ACKNOWLEDGED": "acknowledged",
    "DEAD_LETTERED": "moved to the dead-letter topic",
    "COMMITTED": "passed by its owner's commit",
    "RESET": "offset of the group moved by an operator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """An event of one copy."""

    at_ms: int
    event: str
    copy: MessageView
    client_id: str = ""
    attempt: int = 0
    """0: not known, or not a delivery."""
    until_ms: int = 0
    """End of the invisible time; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStateOfCopy:
    """The state of one copy in the group now."""

    copy: MessageView
    state: str
    attempt: int
    client_id: str
    until_ms: int


@dataclass(slots=True, kw_only=True)
class Timeline:
    group: str
    states: list[GroupStateOfCopy] = field(default_factory=list)
    steps: list[TraceStep] = field(default_factory=list)
    """By ascending time."""

    @property
    def has_events(self) -> bool:
        """False: the message was only stored."""
        return any(one.event != _EVENTS["STORED"] for one in self.steps)


def timelines(traces: Iterable[MessageTraceView]) -> list[Timeline]:
    """Returns the time lines by name of the group; those with events first."""
    lines: dict[str, Timeline] = {}
    shared: list[TraceStep] = []
    for trace in traces:
        owner = _owner(trace.message.queue.topic)
        for state in trace.groups:
            name = owner if owner and state.group.startswith(DLQ_PREFIX) else state.group
            lines.setdefault(name, Timeline(group=name)).states.append(_state(trace.message, state))
        for event in trace.events:
            step = _step(trace.message, event)
            name = event.group or owner
            if name:
                lines.setdefault(name, Timeline(group=name)).steps.append(step)
            else:
                shared.append(step)
    for line in lines.values():
        line.steps = sorted([*shared, *line.steps], key=lambda one: one.at_ms)
    return sorted(lines.values(), key=lambda one: (not one.has_events, one.group))


def _owner(topic: str) -> str:
    """Returns the group of a retry or dead-letter topic; empty for other topics."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""


def _state(copy: MessageView, state: GroupTraceView) -> GroupStateOfCopy:
    if state.group.startswith(DLQ_PREFIX):  # the group that keeps the progress of replays
        text = _REPLAY_STATES.get(state.state, "dead letter, not replayed")
    else:
        text = _STATES.get(state.state, state.state)
    return GroupStateOfCopy(
        copy=copy, state=text, attempt=state.attempt, client_id=state.client_id, until_ms=state.until_ms
    )


def _step(copy: MessageView, event: TraceEventView) -> TraceStep:
    text = _EVENTS.get(event.what, event.what)
    if event.what == "INVISIBLE":
        text = "made invisible" if event.until_ms else "given back"
    return TraceStep(
        at_ms=event.at_ms,
        event=text,
        copy=copy,
        client_id=event.client_id,
        attempt=event.attempt if event.what == "DELIVERED" else 0,
        until_ms=event.until_ms,
    )
