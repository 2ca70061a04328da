"""Dead letters: their number by group, the newest of one group, a table of them as CSV, and their replay.

A replay is planned by a dry run, confirmed, and then runs as a task of the session (`evenq.console.replays`).
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import DeadLettersView, DeadLetterView
from evenq.console.messages import attachment
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.console.replays import EVERY, ReplayPlan
from evenq.console.sessions import IDLE_MS
from evenq.errors import BadRequest, NotFound
from evenq.model import FilterExpression

LOADED_DEFAULT = 200
LOADED_MAX = 10_000
"""Dead letters of each broker that a page counts and a file has."""
REASONS = ("attempts", "forwarded", "sent-back", "too-large")
RATE_MAX = 1_000_000
_HOUR_MS = 3_600_000
_AGES = (
    ("under an hour", _HOUR_MS),
    ("under a day", 24 * _HOUR_MS),
    ("under a week", 168 * _HOUR_MS),
    ("older", math.inf),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/dead-letters", _groups),
        route(console, "/dead-letters/{group}/letters.csv", _file),
        route(console, "/dead-letters/{group}/plan", _plan, changes=True),
        route(console, "/dead-letters/{group}/replay", _replay, changes=True),
        route(console, "/dead-letters/{group}/replay", _progress),
        route(console, "/dead-letters/{group}/stop", _stop, changes=True),
        route(console, "/dead-letters/{group}", _group),
    ]


async def _groups(visit: Visit) -> Response:
    view = await visit.admin.list_dead_letters()
    begin = visit.number("begin")
    return visit.page(
        "dead_letters.html",
        title="Dead letters",
        counts=view.counts[begin : begin + ROWS],
        total=len(view.counts),
        begin=begin,
        rows=ROWS,
        silent=view.silent,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The dead letters that a page or a file shows."""

    reason: str
    waiting: bool
    loaded_max: int

    @property
    def query(self) -> dict[str, object]:
        loaded = "" if self.loaded_max == LOADED_DEFAULT else self.loaded_max
        return {"reason": self.reason, "waiting": "yes" if self.waiting else "", "limit": loaded}


async def _group(visit: Visit) -> Response:
    group = visit.path("group")
    choice = _choice(visit)
    view, chosen = await _letters(visit, choice)
    begin = visit.number("begin")
    now_ms = visit.console.clock.now_ms()
    stored = sum(one.waiting if choice.waiting else one.stored for one in view.counts)
    return visit.page(
        "dead_letters_group.html",
        title=f"Dead letters of {group}",
        group=group,
        counts=view.counts,
        silent=view.silent,
        letters=chosen[begin : begin + ROWS],
        total=len(chosen),
        loaded=len(view.letters),
        stored=stored,
        choice=choice,
        reasons=sorted({one.reason for one in view.letters if one.reason} | set(REASONS)),
        by_reason=Counter(one.reason for one in view.letters),
        ages=_ages(chosen, now_ms),
        begin=begin,
        rows=ROWS,
        loaded_most=LOADED_MAX,
        replay=visit.principal.replays.of(group),
        replay_reasons=REASONS,
    )


def _choice(visit: Visit) -> _Choice:
    return _Choice(
        reason=visit.query("reason"),
        waiting=bool(visit.query("waiting")),
        loaded_max=visit.number("limit", default=LOADED_DEFAULT, least=1, most=LOADED_MAX),
    )


async def _letters(visit: Visit, choice: _Choice) -> tuple[DeadLettersView, Sequence[DeadLetterView]]:
    """Returns what the brokers have, and the part that was chosen. Raises GroupNotFound."""
    view = await visit.admin.list_dead_letters(visit.path("group"), limit=choice.loaded_max, waiting=choice.waiting)
    if choice.reason == "unknown":
        return view, [one for one in view.letters if not one.reason]
    return view, [one for one in view.letters if choice.reason in {"", one.reason}]


def _ages(letters: Iterable[DeadLetterView], now_ms: int) -> list[tuple[str, int]]:
    counts = Counter(
        next(label for label, end_ms in _AGES if now_ms - one.stored_ms < end_ms) for one in letters if one.stored_ms
    )
    return [(label, counts[label]) for label, _ in _AGES]


# ---------------------------------------------------------------------------------------------------- CSV

_COLUMNS = (
    "message_id",
    "dead_since_ms",
    "topic",
    "broker",
    "queue",
    "offset",
    "reason",
    "attempts",
    "replayed",
    "tag",
    "keys",
    "body_bytes",
    "dead_letter_broker",
    "dead_letter_offset",
)


async def _file(visit: Visit) -> Response:
    _, letters = await _letters(visit, _choice(visit))
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(_COLUMNS)
    writer.writerows([_cell(value) for value in _values(one)] for one in letters)
    headers = attachment(f"dead-letters-{visit.path('group')}.csv")
    return Response(file.getvalue().encode(), media_type="text/csv; charset=utf-8", headers=headers)


def _values(one: DeadLetterView) -> tuple[object, ...]:
    """Returns the cells of a row; an empty one is unknown."""
    return (
        one.message_id,
        one.stored_ms or "",
        one.origin.topic,
        one.origin.broker_name,
        one.origin.queue_id if one.origin.queue_id >= 0 else "",
        one.origin_offset if one.origin_offset >= 0 else "",
        one.reason,
        one.attempts or "",
        "yes" if one.replayed else "no",
        one.tag,
        " ".join(one.keys),
        one.body_bytes,
        one.queue.broker_name,
        one.offset,
    )


def _cell(value: object) -> object:
    """Returns a cell that a spreadsheet does not run as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


# ---------------------------------------------------------------------------------------------------- replay


async def _plan(visit: Visit) -> Response:
    plan = _plan_of(visit)
    brokers = await visit.principal.replays.planned(plan)
    rows = sorted((topic, one.broker_name, number) for one in brokers for topic, number in one.would.items())
    return visit.page(
        "replay_plan.html",
        title=f"Replay of dead letters of {plan.group}",
        group=plan.group,
        form={name: visit.text(name).strip() for name in ("to_topic", "rate", "limit", "reason")},
        rows=rows,
        total=sum(number for _, _, number in rows),
        left_out=sum(one.left_out for one in brokers),
        without_topic=sum(number for topic, _, number in rows if not topic),
        failures=[(one.broker_name, one.error) for one in brokers if one.error],
        stops=_stops(visit),
    )


async def _replay(visit: Visit) -> Response:
    visit.principal.replays.start(_plan_of(visit))
    return RedirectResponse(visit.console.href("dead-letters", visit.path("group"), "replay"), 303)


async def _progress(visit: Visit) -> Response:
    group = visit.path("group")
    replay = visit.principal.replays.of(group)
    if replay is None:
        raise NotFound(f"no replay of dead letters of {group!r} was started in this session; see its dead letters")
    return visit.page(
        "replay.html",
        title=f"Replay of dead letters of {group}",
        group=group,
        replay=replay,
        brokers=[replay.brokers[name] for name in sorted(replay.brokers)],
        stops=_stops(visit),
    )


async def _stop(visit: Visit) -> Response:
    group = visit.path("group")
    await visit.principal.replays.stop(group)
    return visit.after("Stopped the replay.", "dead-letters", group, "replay")


def _stops(visit: Visit) -> str:
    """Returns when a replay that runs is ended."""
    if not visit.principal.user:
        return "when the console is stopped"
    return f"when you sign out, or after {IDLE_MS // 60_000} minutes without a request of this session"


def _plan_of(visit: Visit) -> ReplayPlan:
    """Returns the plan of the form. Raises BadRequest."""
    reason = visit.text("reason")
    if reason not in {"", *REASONS}:
        raise BadRequest(f"reason is {reason[:50]!r}; it must be one of {', '.join(REASONS)}, or empty for all")
    return ReplayPlan(
        group=visit.path("group"),
        expression=FilterExpression.sql(f"DLQ_REASON = '{reason}'") if reason else EVERY,
        to_topic=visit.text("to_topic").strip(),
        per_second=_rate(visit.text("rate").strip()),
        limit=visit.number("limit", most=(1 << 31) - 1),
    )


def _rate(text: str) -> float:
    if not text:
        return 0.0
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= RATE_MAX:
        raise BadRequest(f"the rate is {text[:50]!r}; give messages per second, above 0 and up to {RATE_MAX:,}")
    return rate
