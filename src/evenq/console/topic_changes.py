"""Changes of a topic that lose nothing, each with a plan: creating it, giving it more queues, permitting more.

They are the fixes of the doctor. A change that closes queues or forbids something is refused here: whether messages
may be left behind is decided with the commands (`evenq topic scale`, `evenq topic permit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import QueueView
from evenq.console.pages import Console, Visit, route
from evenq.console.plans import digest, problem_of, whole
from evenq.errors import BadRequest, TopicNotFound
from evenq.model import MessageType, Permission
from evenq.model.names import broker_problem, is_system_topic, topic_problem

CHANGES = {"create": "create the topic", "scale": "give the topic more queues", "permit": "permit more"}
FIELDS = ("change", "topic", "broker", "queues", "type", "permission")
QUEUES_MAX = 4_096
PERMISSIONS = {"read-write": Permission.READ_WRITE, "read": Permission.READ, "write": Permission.WRITE}


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/topic-plan", _plan),
        route(console, "/topic-plan", _apply, changes=True),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """A requested change."""

    change: str
    topic: str
    broker: str
    """Empty: all brokers of the topic."""
    queues: int
    """Of each broker; 0: the server's default for a topic that is created."""
    message_type: MessageType
    permission: Permission

    @classmethod
    def parsed(cls, read: Callable[[str], str]) -> TopicChange:
        """Reads the fields of a form. Raises BadRequest."""
        change, topic, broker = read("change"), read("topic").strip(), read("broker").strip()
        if change not in CHANGES:
            raise BadRequest(f"change is {change[:50]!r}; it is one of {', '.join(CHANGES)}")
        problem = topic_problem(topic) or (broker_problem(broker) if broker else None)
        if problem:
            raise BadRequest(problem)
        if is_system_topic(topic):
            raise BadRequest(f"topic {topic} belongs to the brokers; change another one")
        queues, permission = read("queues").strip(), read("permission") or "read-write"
        if change == "scale" and not queues:
            raise BadRequest("no number of queues is given; give the queues of each broker")
        if permission not in PERMISSIONS:
            raise BadRequest(f"permission is {permission[:50]!r}; it is one of {', '.join(PERMISSIONS)}")
        message_type = read("type") or "NORMAL"
        if message_type not in {str(one) for one in MessageType}:
            raise BadRequest(f"type is {message_type[:50]!r}; it is one of {', '.join(MessageType)}")
        return cls(
            change=change,
            topic=topic,
            broker=broker,
            queues=whole("queues", queues, least=1, most=QUEUES_MAX) if queues else 0,
            message_type=MessageType(message_type),
            permission=PERMISSIONS[permission],
        )


@dataclass(frozen=True, slots=True)
class TopicPlanRow:
    """The effect at one broker."""

    broker: str
    now: str
    then: str


async def plan_of(admin: Admin, change: TopicChange) -> list[TopicPlanRow]:
    """Returns the rows of a plan; changes nothing. Raises BadRequest for a change that is not safe."""
    try:
        details = await admin.describe_topic(change.topic)
    except TopicNotFound:
        if change.change != "create":
            raise
        queues = f"{change.queues} queues" if change.queues else "the default number of queues"
        return [TopicPlanRow("each broker", "not there", f"{queues}, type {change.message_type}")]
    if change.change == "create":
        raise BadRequest(f"topic {change.topic} exists already; there is nothing to create")
    if change.change == "scale":
        return await _scale_rows(admin, change)
    return _permit_rows(change, details.queues)


async def _scale_rows(admin: Admin, change: TopicChange) -> list[TopicPlanRow]:
    views = await admin.scale_topic(change.topic, queues=change.queues, broker=change.broker, dry_run=True)
    rows = []
    for view in views:
        if change.queues < view.read_queues:
            raise BadRequest(
                f"broker {view.broker_name} has {view.read_queues} queues of {change.topic}, so {change.queues} would "
                "close some of them; use `evenq topic scale`, which shows what would be left behind"
            )
        now = f"{view.write_queues} queues for sending, {view.read_queues} for reading"
        rows.append(TopicPlanRow(view.broker_name, now, f"{change.queues} queues for both"))
    return sorted(rows, key=lambda one: one.broker)


def _permit_rows(change: TopicChange, queues: Sequence[QueueView]) -> list[TopicPlanRow]:
    rows = []
    brokers = {one.queue.broker_name for one in queues}
    if change.broker and change.broker not in brokers:
        raise BadRequest(f"broker {change.broker} has no queue of {change.topic}; see the topic for its brokers")
    for broker in sorted(brokers if not change.broker else {change.broker}):
        now = sorted({one.permission for one in queues if one.queue.broker_name == broker})
        lost = [one for one in now if not _includes(change.permission, Permission[one])]
        if lost:
            raise BadRequest(
                f"{change.permission.name} would take something from {', '.join(lost)} at broker {broker}; use "
                "`evenq topic permit`"
            )
        rows.append(TopicPlanRow(broker, ", ".join(now), change.permission.name))
    return rows


def _includes(wide: Permission, narrow: Permission) -> bool:
    return (wide.readable or not narrow.readable) and (wide.writable or not narrow.writable)


def _kind(change: TopicChange, rows: Sequence[TopicPlanRow]) -> str:
    return digest(change.change, change.topic, [(one.broker, one.now, one.then) for one in rows])


async def _plan(visit: Visit) -> Response:
    change = TopicChange.parsed(visit.query)
    return _page(visit, change, await plan_of(visit.admin, change), {name: visit.query(name) for name in FIELDS})


async def _apply(visit: Visit) -> Response:
    change = TopicChange.parsed(visit.text)
    rows = await plan_of(visit.admin, change)
    problem = problem_of(visit, _kind(change, rows))
    if problem:
        return _page(visit, change, rows, {name: visit.text(name) for name in FIELDS}, problem)
    if change.change == "create":
        made = await visit.admin.create_topic(change.topic, queues=change.queues, message_type=change.message_type)
        failed = [f"{one.broker_name}: {one.error}" for one in made if one.error]
        if failed:
            raise BadRequest(f"topic {change.topic} was not created everywhere: {'; '.join(failed)}")
        return visit.after(f"Created topic {change.topic}.", "topics", change.topic)
    if change.change == "scale":
        await visit.admin.scale_topic(change.topic, queues=change.queues, broker=change.broker)
        return visit.after(f"Changed the queues of topic {change.topic}.", "topics", change.topic)
    await visit.admin.permit_topic(change.topic, change.permission, broker=change.broker)
    return visit.after(f"Topic {change.topic} permits {change.permission.name}.", "topics", change.topic)


def _page(
    visit: Visit, change: TopicChange, rows: Sequence[TopicPlanRow], fields: dict[str, str], problem: str = ""
) -> Response:
    return visit.page(
        "topic_plan.html",
        status=409 if problem else 200,
        title=f"Plan for {change.topic}",
        change=change,
        what=CHANGES[change.change],
        plan_rows=rows,
        fields={name: value for name, value in fields.items() if value},
        kind=_kind(change, rows),
        planned_ms=visit.console.clock.now_ms(),
        problem=problem,
    )
