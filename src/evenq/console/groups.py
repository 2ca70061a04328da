"""Consumer groups: the list, and one group with its queues, members, reasons, faults and simulated changes.

The list shows the newest sample, so its time does not depend on the number of groups. Ages of messages need a call per
row: the page is sent without them, and its rows are requested again with them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.views import (
    ExplainedQueueView,
    ExplainView,
    GroupDetails,
    GroupQueueView,
    GroupView,
    SimulationView,
)
from evenq.console import group_changes, group_settings
from evenq.console.films import FilmStep, GroupFilm, members_of, strip
from evenq.console.fixes import fix_of
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import Error, NotFound
from evenq.model import MessageQueue
from evenq.model.names import is_system_topic

AT_A_TIME = 8
WAIT_MS_MAX = 4_000
Row = TypeVar("Row", bound=Hashable)
Value = TypeVar("Value")


class BoundedCalls:
    """Calls for the rows of a page: one per row, within a bounded time, and at most `AT_A_TIME` over all users of a
    console, so that many open pages do not load the cluster.
    """

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_A_TIME)

    async def of_rows(self, calls: Mapping[Row, Callable[[], Awaitable[Value]]]) -> dict[Row, Value]:
        """Returns the results, without those of calls that failed or did not end within `WAIT_MS_MAX`."""
        results: dict[Row, Value] = {}

        async def one(row: Row, call: Callable[[], Awaitable[Value]]) -> None:
            async with self._slots:
                with suppress(Error):
                    results[row] = await call()

        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_MS_MAX / 1_000):
                await asyncio.gather(*(one(row, call) for row, call in calls.items()))
        return results


TABS = {
    "queues": "Queues",
    "members": "Members",
    "why": "Why",
    "film": "Film",
    "doctor": "Doctor",
    "simulate": "Simulate",
    "move": "Move",
    "settings": "Settings",
}
EVERYBODY = "*"
EVERY_BROKER = "ALL_BROKERS"
"""Strategy that a rebalancer reports for groups whose members each read every broker."""
MOVES_SHOWN = 50
STRIPS_SHOWN = 64
"""Queues in the picture of a film."""
MEMBERS_SHOWN = 64
PICTURE_MARGIN_MS = 10_000
"""Time before the first move, in which the picture shows the previous owners."""
COUNT_MAX = (1 << 31) - 1
"""Maximum of whole numbers on the wire."""
Tab = Callable[[Visit, GroupDetails, BoundedCalls], Awaitable[dict[str, Any]]]


def routes(console: Console) -> list[BaseRoute]:
    calls = BoundedCalls()

    async def groups(visit: Visit) -> Response:
        return await _groups(visit, calls)

    async def group(visit: Visit) -> Response:
        return await _group(visit, calls)

    return [
        route(console, "/groups", groups),
        *group_changes.routes(console),
        *group_settings.routes(console),
        route(console, "/groups/{group:path}", group),
    ]


# ---------------------------------------------------------------------------------------------------------- the list


async def _groups(visit: Visit, calls: BoundedCalls) -> Response:
    sample = await visit.figures.newest()
    if sample.groups is None:
        raise sample.failures["groups"]
    words = visit.query("q").strip().lower()
    order = visit.query("sort", "lag")
    kept = [one for one in sample.groups.values() if words in one.group.lower()]
    kept.sort(key=(lambda one: (-one.lag, one.group)) if order == "lag" else (lambda one: (0, one.group)))
    begin = visit.number("begin")
    shown = kept[begin : begin + ROWS]
    return visit.page(
        "groups.html",
        title="Groups",
        sample=sample,
        groups=shown,
        silent=sorted({name for one in sample.groups.values() for name in one.silent}),
        ages=await _ages(visit, shown, calls) if _with_times(visit) else None,
        now_ms=visit.console.clock.now_ms(),
        total=len(kept),
        begin=begin,
        rows=ROWS,
        q=words,
        sort=order,
    )


def _with_times(visit: Visit) -> bool:
    """Returns True for a refresh, and for a reader without JavaScript who requests the times."""
    return visit.is_fragment or bool(visit.query("times"))


async def _ages(visit: Visit, groups: Sequence[GroupView], calls: BoundedCalls) -> dict[str, GroupDetails]:
    """Returns the details of those groups that have unfinished messages and answer in time."""
    return await calls.of_rows({one.group: partial(visit.admin.describe_group, one.group) for one in groups if one.lag})


# ---------------------------------------------------------------------------------------------------------- one group


async def _group(visit: Visit, calls: BoundedCalls) -> Response:
    name, tab = visit.path("group"), visit.query("tab", "queues")
    if tab not in TABS:
        raise NotFound(f"a group has no tab {tab[:50]!r}; its tabs are {', '.join(TABS)}")
    details = await visit.admin.describe_group(name)
    values = await _TABS[tab](visit, details, calls)
    return visit.page(
        "group.html",
        title=name,
        group=details.summary,
        details=details,
        tab=tab,
        tabs=TABS,
        now_ms=visit.console.clock.now_ms(),
        topics=_topics(details),
        **values,
    )


def _topics(details: GroupDetails) -> list[str]:
    """Returns the topics that the group reads, without its retry topic."""
    read = {one.queue.topic for one in details.queues} | {
        topic for one in details.members for topic in one.subscriptions
    }
    return sorted(topic for topic in read if not is_system_topic(topic))


async def _queues(visit: Visit, details: GroupDetails, calls: BoundedCalls) -> dict[str, Any]:
    topic = visit.query("topic")
    queues = [one for one in details.queues if topic in {"", one.queue.topic}]
    begin = visit.number("begin")
    shown = queues[begin : begin + ROWS]
    times = _with_times(visit)
    return {
        "queues": shown,
        "spans": await _spans(visit, shown, calls) if times else None,
        "topic": topic,
        "total": len(queues),
        "begin": begin,
        "rows": ROWS,
    }


async def _spans(
    visit: Visit, queues: Sequence[GroupQueueView], calls: BoundedCalls
) -> dict[MessageQueue, tuple[int, int]]:
    """Returns the store times of the first and the newest message of queues, without those that are not known."""

    async def oldest(at: GroupQueueView) -> int:
        if at.next_store_ms and at.committed <= at.min_offset:
            return at.next_store_ms  # the group stands at the first message
        found = await visit.admin.find_messages(
            at.queue.topic, queue=at.queue, offset=at.min_offset, limit=1, body_max=1
        )
        return found.messages[0].store_ms if found.messages else 0

    filled = [one for one in queues if one.max_offset > one.min_offset]
    topics = sorted({one.queue.topic for one in filled})
    details = await calls.of_rows({topic: partial(visit.admin.describe_topic, topic) for topic in topics})
    newest = {one.queue: one.last_store_ms for topic in details.values() for one in topic.queues}
    first = await calls.of_rows({one.queue: partial(oldest, one) for one in filled})
    return {queue: (at_ms, newest[queue]) for queue, at_ms in first.items() if at_ms and newest.get(queue)}


async def _members(visit: Visit, details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    begin = visit.number("begin")
    return {
        "members": details.members[begin : begin + ROWS],
        "owned": Counter(one.owner for one in details.queues),
        "total": len(details.members),
        "begin": begin,
        "rows": ROWS,
    }


async def _why(visit: Visit, _details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    topic, begin = visit.query("topic"), visit.number("begin")
    view = await visit.admin.explain_group(visit.path("group"), topic=topic)
    return {
        "view": view,
        "topic": topic,
        "queues": view.queues[begin : begin + ROWS],
        "moves": _newest_moves(view),
        "total": len(view.queues),
        "begin": begin,
        "rows": ROWS,
    }


def _newest_moves(view: ExplainView) -> list[ExplainedQueueView]:
    """Returns the last move of each queue, the newest first. Earlier moves of a queue are not kept by the cluster."""
    moved = [one for one in view.queues if one.since_ms]
    return sorted(moved, key=lambda one: (-one.since_ms, one.queue))[:MOVES_SHOWN]


async def _film(visit: Visit, _details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    film = await visit.principal.films.of(visit.path("group"))
    steps = film.steps()
    begin, now_ms = visit.number("begin"), visit.console.clock.now_ms()
    at_ms = visit.number("at", most=COUNT_MAX << 20)
    queues = sorted({*film.owners, *(one.queue for one in film.moves)})
    first_ms = min((one.at_ms for one in film.moves), default=film.since_ms)
    begin_ms = max(min(first_ms, film.since_ms) - PICTURE_MARGIN_MS, 0)
    return {
        "film": film,
        "steps": steps[begin : begin + ROWS],
        "total": len(steps),
        "begin": begin,
        "rows": ROWS,
        "strip": strip(film, queues[:STRIPS_SHOWN], begin_ms, now_ms),
        "members": members_of(film)[:MEMBERS_SHOWN],
        "strips_hidden": max(0, len(queues) - STRIPS_SHOWN),
        "begin_ms": begin_ms,
        "frame": _frame(film, steps, at_ms) if at_ms else None,
        "queues_shown": ROWS,
    }


@dataclass(frozen=True, slots=True)
class _MomentOwners:
    """The owners just after a moment, and the moments of the steps before and after it."""

    at_ms: int
    owners: list[tuple[str | None, list[MessageQueue]]]
    """Those with the most queues first; None: the queues whose owner is unknown."""
    previous_ms: int
    next_ms: int
    """0: there is none."""


def _frame(film: GroupFilm, steps: Sequence[FilmStep], at_ms: int) -> _MomentOwners:
    shares: dict[str | None, list[MessageQueue]] = {}
    for queue, owner in sorted(film.owners_at(at_ms).items()):
        shares.setdefault(owner, []).append(queue)
    owners = sorted(shares.items(), key=lambda one: (one[0] is None, -len(one[1]), one[0] or ""))
    times = sorted(one.at_ms for one in steps)
    return _MomentOwners(
        at_ms,
        owners,
        max((one for one in times if one < at_ms), default=0),
        min((one for one in times if one > at_ms), default=0),
    )


async def _settings(_visit: Visit, details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    return {"rows": group_settings.rows_of(details.summary)}


async def _doctor(visit: Visit, _details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    diagnosis = await visit.admin.diagnose_group(visit.path("group"))
    return {"diagnosis": diagnosis, "fixes": {one.command: fix_of(one.command) for one in diagnosis.findings}}


async def _simulate(visit: Visit, _details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    group, topic = visit.path("group"), visit.query("topic")
    members = visit.number("members", most=COUNT_MAX)
    queues = visit.number("queues", most=COUNT_MAX)
    strategy, lose_zone = visit.query("strategy").strip(), visit.query("lose_zone").strip()
    values: dict[str, Any] = {
        "asked": {
            "topic": topic,
            "members": members or "",
            "queues": queues or "",
            "strategy": strategy,
            "lose_zone": lose_zone,
        },
        "results": [],
        "shares": {},
        "refused": None,
        "rows": ROWS,
    }
    if not (members or queues or strategy or lose_zone):
        return values
    try:
        results = await visit.admin.simulate_group(
            group, topic=topic, members=members, queues=queues, strategy=strategy, lose_zone=lose_zone
        )
        now = await visit.admin.explain_group(group, topic=topic)
    except Error as error:  # the form stays, so that its values can be corrected
        return values | {"refused": error}
    return values | {"results": results, "shares": {one.topic: _shares(now, one) for one in results}}


@dataclass(frozen=True, slots=True)
class _MemberShares:
    """How many queues of a topic each member has, as `2 to 3`."""

    before: str
    after: str


def _shares(now: ExplainView, result: SimulationView) -> _MemberShares:
    owners = [one.owner for one in now.queues if one.queue.topic == result.topic]
    sizes = [*Counter(owner for owner in owners if owner).values(), *[0] * len(now.idle)]
    return _MemberShares(
        "all" if EVERYBODY in owners else _spread(min(sizes, default=0), max(sizes, default=0)),
        "all" if result.strategy == EVERY_BROKER else _spread(result.share_min, result.share_max),
    )


def _spread(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


async def _move(visit: Visit, _details: GroupDetails, _calls: BoundedCalls) -> dict[str, Any]:
    wanted = {name: visit.query(name) for name in ("topic", "broker", "queue")}
    return {"wanted": wanted, "targets": group_changes.TARGETS}


_TABS: dict[str, Tab] = {
    "queues": _queues,
    "members": _members,
    "why": _why,
    "film": _film,
    "doctor": _doctor,
    "simulate": _simulate,
    "move": _move,
    "settings": _settings,
}
