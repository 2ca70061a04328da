"""Recurring messages: their list, one with its message, and changes, each with a plan.

Brokers decide what a user may see and change: the grant `publish` on the topic, and on all topics for the whole list.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import ScheduleView
from evenq.console.bodies import shown_body
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.console.plans import digest, duration_text, problem_of
from evenq.errors import BadRequest

CHANGES = {
    "pause": ("Pause", "It sends no message until it is resumed; times until then are not missed ones."),
    "resume": ("Resume", "It counts from now: times of the pause get no message."),
    "run": ("Send now", "Its message is sent now, besides those of its times."),
    "delete": ("Delete", "Messages that it has sent stay."),
}
"""By change: its name, and its effect."""


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/schedules", _list),
        route(console, "/schedules/plan", _plan),
        route(console, "/schedules/plan", _apply, changes=True),
        route(console, "/schedules/{topic}/{name}", _show),
    ]


async def _list(visit: Visit) -> Response:
    topic = visit.query("topic").strip()
    view = await visit.admin.list_schedules(topic)
    begin = visit.number("begin")
    return visit.page(
        "schedules.html",
        title="Recurring messages",
        topic=topic,
        schedules=view.schedules[begin : begin + ROWS],
        total=len(view.schedules),
        begin=begin,
        rows=ROWS,
        silent=view.silent,
        rule=_rule,
        state=_state,
    )


async def _show(visit: Visit) -> Response:
    one = await visit.admin.describe_schedule(visit.path("topic"), visit.path("name"))
    return visit.page(
        "schedule.html",
        title=one.name,
        one=one,
        rule=_rule(one),
        state=_state(one),
        body=shown_body(one, ""),
        changes={name: CHANGES[name][0] for name in ("resume" if one.paused else "pause", "run", "delete")},
    )


def _rule(one: ScheduleView) -> str:
    return one.schedule or f"every {duration_text(one.every_ms)}"


def _state(one: ScheduleView) -> str:
    if one.moving_to:
        return f"moving to {one.moving_to}"
    return "paused" if one.paused else "failing" if one.problem else "active"


# ------------------------------------------------------------------------------------------------------------- changes


async def _plan(visit: Visit) -> Response:
    change, topic, name = (visit.query(one) for one in ("change", "topic", "name"))
    return _page(visit, change, await _planned(visit, change, topic, name))


async def _apply(visit: Visit) -> Response:
    change, topic, name = (visit.text(one) for one in ("change", "topic", "name"))
    one = await _planned(visit, change, topic, name)
    kind = _kind(change, one)
    problem = problem_of(visit, kind)
    if problem:
        return _page(visit, change, one, problem)
    if change == "delete":
        await visit.admin.delete_schedule(topic, name)
        return visit.after(f"Deleted schedule {name} of topic {topic}.", "schedules", topic=topic)
    if change == "run":  # a form that is sent twice sends one message
        message_id = digest(kind, visit.session_id, visit.number("planned_ms"))[:34].upper()
        await visit.admin.run_schedule(topic, name, message_id=message_id)
        return visit.after(f"Sent message {message_id}.", "schedules", topic, name)
    if change == "pause":
        await visit.admin.pause_schedule(topic, name)
    else:
        await visit.admin.resume_schedule(topic, name)
    return visit.after(f"Schedule {name} is {change}d.", "schedules", topic, name)


async def _planned(visit: Visit, change: str, topic: str, name: str) -> ScheduleView:
    if change not in CHANGES:
        raise BadRequest(f"change is {change[:50]!r}; it is one of {', '.join(CHANGES)}")
    if not topic or not name:
        raise BadRequest("the plan names no schedule; choose one in the list")
    return await visit.admin.describe_schedule(topic, name)


def _kind(change: str, one: ScheduleView) -> str:
    return digest(change, one.topic, one.name, _rule(one), _state(one), one.made_ms, one.tag, one.keys, one.body.hex())


def _page(visit: Visit, change: str, one: ScheduleView, problem: str = "") -> Response:
    label, effect = CHANGES[change]
    return visit.page(
        "schedule_plan.html",
        status=409 if problem else 200,
        title=f"{label}: {one.name}",
        one=one,
        rule=_rule(one),
        state=_state(one),
        effect=effect,
        fields={"change": change, "topic": one.topic, "name": one.name},
        kind=_kind(change, one),
        planned_ms=visit.console.clock.now_ms(),
        problem=problem,
    )
