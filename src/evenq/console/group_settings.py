"""Settings of a group: a form that creates a group or changes one, its plan, and its application.

A plan compares the settings now with those that would be set, and lists the topics that would be created with the
group. Fields that are left empty change nothing. Topics that exist stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import GroupView
from evenq.console.pages import Console, Visit, route
from evenq.console.plans import digest, duration_ms, duration_text, problem_of, whole
from evenq.errors import BadRequest, Error, GroupNotFound, TopicNotFound
from evenq.model import EVEN_BALANCE, BalancePolicy, MessageType, Weight
from evenq.model.names import group_problem, is_system_topic, topic_problem
from evenq.model.retry import RetryKind, RetryPolicy

FIELDS = (
    "group", "topics", "queues", "type", "ordered", "max_attempts", "strategy", "start_from", "retry", "delays",
    "initial", "max", "multiplier", "weight", "moves_max", "hold", "hold_lag_max",
)  # fmt: skip
STRATEGIES = ("STICKY", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM_NEARBY-AVG", "NONE")
"""Suggested; the rebalancer may have others."""
TOPICS_MAX = 20
QUEUES_MAX = 4_096
ATTEMPTS_MAX = 1_000
LABELS = {
    "ordered": "Order",
    "max_attempts": "Most deliveries of a message",
    "strategy": "Strategy",
    "start_from": "Start in a queue without progress",
    "retry": "Pauses after failures",
    "balance": "Balance",
}
DEFAULTS = {
    "ordered": "any order",
    "max_attempts": "the broker's default",
    "strategy": "members divide the queues",
    "start_from": "at the end (LAST)",
    "retry": "classic",
    "balance": "even",
}
_STARTS = {"LAST": "at the end (LAST)", "FIRST": "at the first message (FIRST)"}


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/new-group", _form),
        route(console, "/new-group/plan", _plan),
        route(console, "/new-group", _apply, changes=True),
    ]


# ------------------------------------------------------------------------------------------------------- the request


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """The requested settings. None and empty: unchanged, or the default of a new group."""

    group: str
    topics: tuple[str, ...]
    queues: int
    """Queues of each broker of topics that are created; 0: the server's default."""
    message_type: MessageType
    ordered: bool | None
    max_attempts: int
    strategy: str
    start_from: str
    retry: RetryPolicy | None
    balance: Mapping[str, object] | None
    """Changed fields of the balance policy."""

    @classmethod
    def parsed(cls, read: Callable[[str], str]) -> GroupRequest:
        """Reads the fields of a form. Raises BadRequest."""
        group = read("group").strip()
        if problem := group_problem(group):
            raise BadRequest(problem)
        start_from = _choice("start_from", read("start_from"), ("", *_STARTS))
        ordered = _choice("ordered", read("ordered"), ("", "yes", "no"))
        attempts, queues = read("max_attempts").strip(), read("queues").strip()
        return cls(
            group=group,
            topics=_topics(read("topics")),
            queues=whole("queues", queues, least=1, most=QUEUES_MAX) if queues else 0,
            message_type=MessageType(_choice("type", read("type") or "NORMAL", tuple(map(str, MessageType)))),
            ordered={"yes": True, "no": False}.get(ordered),
            max_attempts=whole("max_attempts", attempts, least=1, most=ATTEMPTS_MAX) if attempts else 0,
            strategy=read("strategy").strip(),
            start_from=start_from,
            retry=_retry(read),
            balance=_balance(read),
        )

    def balance_after(self, before: BalancePolicy) -> BalancePolicy | None:
        """Returns the whole new policy; None: unchanged. Raises BadRequest."""
        if self.balance is None:
            return None
        changes = dict(self.balance)
        if changes.get("hold_ms", before.hold_ms) == 0:
            changes.setdefault("hold_lag_max", 0)
        try:
            return replace(before, **changes)  # type: ignore[arg-type]  # its fields, from `_balance`
        except ValueError as error:
            raise BadRequest(f"{error}") from error


def _choice(name: str, text: str, allowed: Sequence[str]) -> str:
    if text not in allowed:
        raise BadRequest(f"{name} is {text[:50]!r}; it is one of {', '.join(filter(None, allowed))}")
    return text


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if len(names) > TOPICS_MAX:
        raise BadRequest(f"{len(names)} topics are named; one plan creates at most {TOPICS_MAX}")
    for name in names:
        if problem := topic_problem(name):
            raise BadRequest(problem)
        if is_system_topic(name):
            raise BadRequest(f"topic {name} belongs to the brokers; leave it out")
    return names


def _retry(read: Callable[[str], str]) -> RetryPolicy | None:
    kind = read("retry")
    if not kind:
        if any(read(name).strip() for name in ("delays", "initial", "max", "multiplier")):
            raise BadRequest("pauses are given, and no kind of pauses; choose the kind that they belong to")
        return None
    _choice("retry", kind, tuple(map(str, RetryKind)))
    try:
        if kind == RetryKind.CUSTOMIZED:
            delays = read("delays").replace(",", " ").split()
            return RetryPolicy(
                kind=RetryKind.CUSTOMIZED, delays_ms=tuple(duration_ms("a pause", one) for one in delays[:100])
            )
        if kind == RetryKind.EXPONENTIAL:
            initial_ms = duration_ms("the first pause", read("initial"))
            longest = read("max").strip()
            return RetryPolicy(
                kind=RetryKind.EXPONENTIAL,
                initial_ms=initial_ms,
                max_ms=duration_ms("the longest pause", longest) if longest else max(initial_ms, 7_200_000),
                multiplier=_factor(read("multiplier").strip()),
            )
    except ValueError as error:
        raise BadRequest(f"{error}") from error
    return RetryPolicy()


def _factor(text: str) -> float:
    try:
        value = float(text or "2")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"the factor of growth is {text[:50]!r}; give a number from 1 to 100")
    return value


def _balance(read: Callable[[str], str]) -> dict[str, object] | None:
    changes: dict[str, object] = {}
    if weight := _choice("weight", read("weight"), ("", "EVEN", "LAG", "CAPACITY")):
        changes["weight"] = Weight("" if weight == "EVEN" else weight)
    if text := read("moves_max").strip():
        changes["moves_max"] = whole("moves_max", text)
    if text := read("hold").strip():
        changes["hold_ms"] = duration_ms("hold", text)
    if text := read("hold_lag_max").strip():
        changes["hold_lag_max"] = whole("hold_lag_max", text, most=(1 << 53))
    return changes or None


# ----------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting now and then."""

    label: str
    now: str
    """Empty: the group does not exist."""
    then: str
    given: bool = False
    """True: it is set, perhaps to the value that it has at the broker that answered."""

    @property
    def changes(self) -> bool:
        return self.now != self.then


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: str
    exists: bool
    text: str
    """Queues and type now, or as they would be created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """The effect of a request now."""

    request: GroupRequest
    before: GroupView | None
    """None: the group does not exist."""
    rows: Sequence[SettingRow]
    topics: Sequence[TopicRow]

    @property
    def kind(self) -> str:
        """Returns the digest of what an operator decides by."""
        rows = [(one.label, one.now, one.then) for one in self.rows]
        return digest(self.before is None, rows, [(one.topic, one.exists) for one in self.topics])

    @property
    def changes(self) -> bool:
        settings = self.before is None or any(one.given for one in self.rows)
        return settings or any(not one.exists for one in self.topics)


async def plan_of(admin: Admin, request: GroupRequest) -> GroupPlan:
    """Returns the plan of a request; changes nothing. Raises errors of the cluster."""
    try:
        before = (await admin.describe_group(request.group)).summary
    except GroupNotFound:
        before = None
    return GroupPlan(
        request=request,
        before=before,
        rows=_rows(request, before),
        topics=[await _topic_row(admin, request, topic) for topic in request.topics],
    )


async def _topic_row(admin: Admin, request: GroupRequest, topic: str) -> TopicRow:
    try:
        details = await admin.describe_topic(topic)
    except TopicNotFound:
        queues = f"{request.queues} queues" if request.queues else "the default number of queues"
        return TopicRow(topic, False, f"{queues} on each broker, type {request.message_type}")
    return TopicRow(topic, True, f"{len(details.queues)} queues, type {details.message_type}")


def rows_of(group: GroupView) -> list[SettingRow]:
    """Returns the settings of a group that the cluster reports."""
    values = _texts_of(group)
    return [SettingRow(LABELS[name], values[name], values[name]) for name in LABELS]


def _texts_of(group: GroupView) -> dict[str, str]:
    return {
        "ordered": _order(group.ordered),
        "max_attempts": f"{group.max_attempts}",
        "strategy": group.strategy or DEFAULTS["strategy"],
        "start_from": "unknown",  # the cluster does not report it
        "retry": str(group.retry),
        "balance": balance_text(group.balance),
    }


def _rows(request: GroupRequest, before: GroupView | None) -> list[SettingRow]:
    now = dict.fromkeys(LABELS, "") if before is None else _texts_of(before)
    base = DEFAULTS if before is None else now
    balance = request.balance_after(EVEN_BALANCE if before is None else before.balance)
    strategy = DEFAULTS["strategy"] if request.strategy.upper() == "NONE" else request.strategy
    then = {
        "ordered": "" if request.ordered is None else _order(request.ordered),
        "max_attempts": f"{request.max_attempts}" if request.max_attempts else "",
        "strategy": strategy,
        "start_from": _STARTS.get(request.start_from, ""),
        "retry": "" if request.retry is None else str(request.retry),
        "balance": "" if balance is None else balance_text(balance),
    }
    return [SettingRow(LABELS[name], now[name], then[name] or base[name], bool(then[name])) for name in LABELS]


def _order(ordered: bool) -> str:
    return "ordered by message group" if ordered else DEFAULTS["ordered"]


def balance_text(balance: BalancePolicy) -> str:
    """Returns a short text of the policy."""
    parts = [f"weight {balance.weight.value}"] if balance.weight else []
    if balance.moves_max:
        parts.append(f"at most {balance.moves_max} moves")
    if balance.hold_ms:
        until = f" or {balance.hold_lag_max} messages" if balance.hold_lag_max else ""
        parts.append(f"hold {duration_text(balance.hold_ms)}{until}")
    return ", ".join(parts) or DEFAULTS["balance"]


# ---------------------------------------------------------------------------------------------------------- the pages


async def _form(visit: Visit) -> Response:
    return _form_page(visit, {name: visit.query(name) for name in FIELDS})


def _form_page(visit: Visit, form: Mapping[str, str], problem: str = "") -> Response:
    return visit.page(
        "new_group.html",
        status=400 if problem else 200,
        title="New group",
        form=form,
        strategies=STRATEGIES,
        types=[str(one) for one in MessageType],
        kinds=[str(one) for one in RetryKind],
        problem=problem,
    )


async def _plan(visit: Visit) -> Response:
    try:
        request = GroupRequest.parsed(visit.query)
        plan = await plan_of(visit.admin, request)
    except BadRequest as error:  # the form stays, so that its values can be corrected
        return _form_page(visit, {name: visit.query(name) for name in FIELDS}, f"{error}")
    return _plan_page(visit, plan, {name: visit.query(name) for name in FIELDS})


async def _apply(visit: Visit) -> Response:
    fields = {name: visit.text(name) for name in FIELDS}
    plan = await plan_of(visit.admin, GroupRequest.parsed(visit.text))
    problem = problem_of(visit, plan.kind)
    if problem:
        return _plan_page(visit, plan, fields, problem)
    done: list[str] = []
    try:
        warnings = await _applied(visit.admin, plan, done)
    except Error as error:
        now = await plan_of(visit.admin, plan.request)
        return _plan_page(visit, now, fields, f"{' '.join(done) or 'Nothing was done.'} Then this failed: {error}")
    return visit.after(" ".join([*done, *(f"Warning: {one}." for one in warnings)]), "groups", plan.request.group)


async def _applied(admin: Admin, plan: GroupPlan, done: list[str]) -> Sequence[str]:
    """Creates the missing topics, then the group; appends what is done to `done`. Returns warnings."""
    request = plan.request
    for one in plan.topics:
        if one.exists:
            continue
        made = await admin.create_topic(one.topic, queues=request.queues, message_type=request.message_type)
        failed = [f"{place.broker_name}: {place.error}" for place in made if place.error]
        if failed:
            raise BadRequest(f"topic {one.topic} was not created everywhere: {'; '.join(failed)}")
        done.append(f"Created topic {one.topic}.")
    warnings = await admin.create_group(
        request.group,
        ordered=request.ordered,
        max_attempts=request.max_attempts,
        strategy=request.strategy,
        start_from=request.start_from,
        retry=request.retry,
        balance=request.balance_after(EVEN_BALANCE if plan.before is None else plan.before.balance),
    )
    done.append(f"{'Created' if plan.before is None else 'Changed'} group {request.group}.")
    return warnings


def _plan_page(visit: Visit, plan: GroupPlan, fields: Mapping[str, str], problem: str = "") -> Response:
    kept = {name: value for name, value in fields.items() if value}
    return visit.page(
        "new_group_plan.html",
        status=409 if problem else 200,
        title=f"Plan for {plan.request.group}",
        plan=plan,
        fields=kept,
        kind=plan.kind,
        planned_ms=visit.console.clock.now_ms(),
        problem=problem,
    )
