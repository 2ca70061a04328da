"""Changes of a group, each in two steps: a plan, which changes nothing, and its application.

The page of a plan carries the plan's parameters and a digest of its kind. The console plans again before it applies
anything. It shows the new plan instead if that differs in kind, or if the old one was made long ago: a page that is
reloaded must not move a group twice. While members read, numbers of a plan change all the time; the digest covers what
an operator decides by: the queues, the failures, the notes, and each target or its direction.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import OffsetMoveView
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import BadRequest
from evenq.model import MessageQueue

TARGETS = {
    "first": "the first message that is kept",
    "last": "the end: only new messages follow",
    "time": "the first message stored at a time",
    "offset": "an offset",
}
CHANGES = ("reset", "skip", "clone")
PLAN_MS = 600_000
OFFSET_MAX = (1 << 63) - 1
QUEUE_ID_MAX = (1 << 31) - 1
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGE = re.compile(r"([0-9]{1,12})\s*([smhd])(?:\s+ago)?")


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/groups/{group:path}/plan", _plan),
        route(console, "/groups/{group:path}/move", _apply, changes=True),
        route(console, "/groups/{group:path}/delete", _delete_plan),
        route(console, "/groups/{group:path}/delete", _delete, changes=True),
    ]


# ---------------------------------------------------------------------------------------------------------- offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """A requested change of a group's offsets."""

    change: str
    """reset, skip or clone."""
    to: str
    """Target of a reset: first, last, time or offset."""
    value: int
    """Time in ms since the epoch, offset, or messages to skip; -1: skip all."""
    source: str
    """Group whose offsets are cloned."""
    topic: str
    """Empty: all topics of the group."""
    queue: MessageQueue | None

    @classmethod
    def parsed(cls, read: Callable[[str], str], *, now_ms: int) -> OffsetChange:
        """Reads the fields of a form. Raises BadRequest."""
        change, to = read("change"), read("to") or "last"
        if change not in CHANGES:
            raise BadRequest(f"change is {change[:50]!r}; it is one of {', '.join(CHANGES)}")
        if to not in TARGETS:
            raise BadRequest(f"the target is {to[:50]!r}; it is one of {', '.join(TARGETS)}")
        topic, queue = read("topic").strip(), _queue(read)
        value, source = -1, ""
        if change == "clone":
            source = read("source").strip()
            if not source:
                raise BadRequest("no group to clone is given; name the group whose offsets are taken")
        elif change == "skip":
            if queue is None:
                raise BadRequest("messages are skipped in one queue; give its topic, broker and number")
            value = _whole("count", read("count"), least=1) if read("count").strip() else -1
        elif to == "time":
            value = time_of(read("at"), now_ms=now_ms)
        elif to == "offset":
            value = _whole("offset", read("offset"))
        return cls(change=change, to=to, value=value, source=source, topic=topic, queue=queue)

    def fields(self) -> dict[str, str]:
        """Returns the fields from which the same change is parsed, at any time."""
        fields = {"change": self.change, "to": self.to, "topic": self.topic, "source": self.source}
        name = {"reset": {"time": "at", "offset": "offset"}.get(self.to), "skip": "count"}.get(self.change)
        if name is not None and self.value >= 0:
            fields[name] = f"{self.value}"
        if self.queue is not None:
            fields |= {"broker": self.queue.broker_name, "queue": f"{self.queue.queue_id}"}
        return {name: value for name, value in fields.items() if value}

    @property
    def is_fixed(self) -> bool:
        """True: the targets do not move while messages arrive and are read."""
        return self.change == "skip" or (self.change == "reset" and self.to != "last")

    async def plan(self, admin: Admin, group: str) -> list[OffsetMoveView]:
        return await self._called(admin, group, dry_run=True)

    async def apply(self, admin: Admin, group: str, moves: Sequence[OffsetMoveView]) -> list[OffsetMoveView]:
        """Applies the plan `moves`. A skip goes to the planned offset, so that sending it twice skips once."""
        if self.change != "skip":
            return await self._called(admin, group, dry_run=False)
        applied: list[OffsetMoveView] = []
        for move in moves:
            if move.error:
                applied.append(move)
                continue
            applied += await admin.reset_offsets(
                group, topic=move.queue.topic, queues=[move.queue], to=move.after, dry_run=False
            )
        return applied

    async def _called(self, admin: Admin, group: str, *, dry_run: bool) -> list[OffsetMoveView]:
        queues = [] if self.queue is None else [self.queue]
        if self.change == "clone":
            return await admin.clone_offsets(
                group, like_group=self.source, topic=self.topic, queues=queues, dry_run=dry_run
            )
        if self.change == "skip":
            count = self.value if self.value >= 0 else None
            return await admin.skip_offsets(group, topic=self.topic, queues=queues, count=count, dry_run=dry_run)
        to = self.value if self.to == "offset" else {"first": "earliest"}.get(self.to, "latest")
        at_ms = self.value if self.to == "time" else None
        return await admin.reset_offsets(
            group, topic=self.topic, queues=queues, to=to, timestamp_ms=at_ms, dry_run=dry_run
        )


def _queue(read: Callable[[str], str]) -> MessageQueue | None:
    topic, broker, number = (read(name).strip() for name in ("topic", "broker", "queue"))
    if not broker and not number:
        return None
    if not (topic and broker and number):
        raise BadRequest("one queue is named by its topic, its broker and its number; give all three")
    return MessageQueue(topic, broker, _whole("queue", number, most=QUEUE_ID_MAX))


def _whole(name: str, text: str, *, least: int = 0, most: int = OFFSET_MAX) -> int:
    text = text.strip()
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        raise BadRequest(f"{name} is {text[:50]!r}; give a whole number from {least} to {most}")
    return value


def time_of(text: str, *, now_ms: int) -> int:
    """Returns ms since the epoch of an age (`90m`), ISO 8601 (UTC unless it names a zone) or ms. Raises BadRequest."""
    text = text.strip()
    age = _AGE.fullmatch(text)
    if age is not None:
        return max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]])
    if text.isascii() and text.isdecimal() and len(text) < 17:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return max(0, int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000))
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"the time is {text[:50]!r}; write an age (30s, 90m, 2h, 7d), ISO 8601 (2026-01-31T08:00, in UTC) or ms "
            "since the epoch"
        ) from error


def kind_of(change: OffsetChange, moves: Sequence[OffsetMoveView]) -> str:
    """Returns the digest of a plan's kind."""
    rows = [
        (
            move.queue.topic,
            move.queue.broker_name,
            move.queue.queue_id,
            bool(move.error),
            bool(move.note),
            move.after if change.is_fixed and not move.error else 0 <= move.after < move.before,
        )
        for move in moves
    ]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()


async def _plan(visit: Visit) -> Response:
    change = OffsetChange.parsed(visit.query, now_ms=visit.console.clock.now_ms())
    moves = await change.plan(visit.admin, visit.path("group"))
    return _page(visit, change, moves)


async def _apply(visit: Visit) -> Response:
    group, now_ms = visit.path("group"), visit.console.clock.now_ms()
    change = OffsetChange.parsed(visit.text, now_ms=now_ms)
    moves = await change.plan(visit.admin, group)
    if visit.text("kind") != kind_of(change, moves):
        problem = "The plan has changed since it was shown. Nothing was done; check the new plan and confirm it."
        return _page(visit, change, moves, problem=problem)
    if not 0 <= now_ms - visit.number("planned_ms") <= PLAN_MS:
        problem = "The plan is older than ten minutes. Nothing was done; check the plan and confirm it."
        return _page(visit, change, moves, problem=problem)
    applied = await change.apply(visit.admin, group, moves)
    planned_notes = {move.queue: move.note for move in moves}
    if any(move.error or move.note != planned_notes.get(move.queue, "") for move in applied):
        return _page(visit, change, applied, applied=True)
    moved = sum(move.before != move.after or move.inflight > 0 for move in applied)
    done = f"Moved group {group} in {moved} queue{'s' * (moved != 1)}." if moved else f"Group {group} stays."
    return visit.after(done, "groups", group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    again: int
    """Messages that are delivered again."""
    skipped: int
    inflight: int
    failed: int


def distance(move: OffsetMoveView) -> int | None:
    """Returns how many messages the group skips, or reads again (negative); None: it has no position to compare."""
    if move.error or move.before < 0:
        return None
    return move.after - max(move.before, move.min_offset)


def _page(
    visit: Visit, change: OffsetChange, moves: Sequence[OffsetMoveView], *, problem: str = "", applied: bool = False
) -> Response:
    ways = [way for move in moves if (way := distance(move)) is not None]
    begin = visit.number("begin") if not problem and not applied else 0
    shown = sorted(moves, key=lambda move: (not move.error, not move.note, move.queue))
    group = visit.path("group")
    return visit.page(
        "group_plan.html",
        status=409 if problem else 200,
        title=f"{'Moved' if applied else 'Plan for'} {group}",
        group=group,
        change=change,
        targets=TARGETS,
        fields=change.fields(),
        kind=kind_of(change, moves),
        planned_ms=visit.console.clock.now_ms(),
        problem=problem,
        applied=applied,
        moves=shown[begin : begin + ROWS],
        distance=distance,
        totals=_Totals(
            again=-sum(way for way in ways if way < 0),
            skipped=sum(way for way in ways if way > 0),
            inflight=sum(move.inflight for move in moves),
            failed=sum(bool(move.error) for move in moves),
        ),
        total=len(moves),
        begin=begin,
        rows=ROWS,
    )


# --------------------------------------------------------------------------------------------------------- deletion


async def _delete_plan(visit: Visit) -> Response:
    return await _delete_page(visit)


async def _delete_page(visit: Visit, problem: str = "") -> Response:
    group = visit.path("group")
    details = await visit.admin.describe_group(group)
    return visit.page(
        "group_delete.html",
        status=409 if problem else 200,
        title=f"Delete {group}",
        group=details.summary,
        queues=len(details.queues),
        troubles=details.troubles,
        problem=problem,
    )


async def _delete(visit: Visit) -> Response:
    group = visit.path("group")
    if visit.text("confirm") != group:
        raise BadRequest(f"type the name {group} to delete the group with its progress")
    details = await visit.admin.describe_group(group)
    if details.summary.members > visit.number("members") or details.summary.silent != _shown_silent(visit):
        return await _delete_page(
            visit, "The group has changed since it was shown. It was not deleted; check it again."
        )
    await visit.admin.delete_group(group)
    return visit.after(f"Deleted group {group}.", "groups")


def _shown_silent(visit: Visit) -> tuple[str, ...]:
    return tuple(visit.text("silent").split())
