"""`evenq group explain | simulate | doctor`: reasons of the assignment, simulated changes, problems."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from evenq.cli.admin import with_admin
from evenq.cli.output import QUEUE, WIDE, Column, Listing, Page, Scalar, print_page, queue_cells
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import DiagnosisView, ExplainView, SimulationView
from evenq.errors import BadRequest

EVERYBODY = "*"
EVERY_BROKER = "ALL_BROKERS"
"""The strategy that a rebalancer reports for groups whose members each read every broker."""
_EXPLAINED = (
    *QUEUE,
    Column("owner", "owner"),
    Column("state", "state"),
    Column("since_ms", "since", "time", shown=WIDE),
    Column("why", "why", "sentence"),
    Column("previous_owner", "previous owner", shown=WIDE),
    Column("owner_zone", "owner's zone", shown=WIDE),
    Column("broker_zone", "broker's zone", shown=WIDE),
)


# ------------------------------------------------------------------------------------------------------- explain


def explain(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.explain_group(options.name, topic=options.topic)
        print_page(_explained(view), options.output)

    with_admin(options, work)


def _explained(view: ExplainView) -> Page:
    rows: list[tuple[Scalar, ...]] = [
        (
            *queue_cells(row.queue),
            row.owner and _owner(row.owner),
            row.state,
            row.since_ms,
            row.reason,
            row.previous_owner,
            row.owner_zone,
            row.broker_zone,
        )
        for row in view.queues
    ]
    empty = "nothing is decided yet" if view.decides == "the rebalancer" else "the group has read nothing yet"
    idle = Listing(
        key="idle",
        columns=(Column("client_id", "member"), Column("why", "why", "sentence")),
        rows=list(view.idle.items()),
        title="Members without a queue",
    )
    return Page(
        facts={
            "group": view.group,
            "decides": view.decides,
            "strategy": _strategy(view.strategy),
            "generation": view.generation,
            "problems": list(view.problems),
        },
        listings=[Listing(key="queues", columns=_EXPLAINED, rows=rows, title="Queues", empty=empty), idle],
    )


# ------------------------------------------------------------------------------------------------------- simulate


def simulate(options: argparse.Namespace) -> None:
    wish = {name: getattr(options, name) for name in ("members", "queues", "strategy", "lose_zone")}
    if not any(wish.values()):
        raise BadRequest("nothing to simulate: give --members N, --queues N, --strategy NAME or --lose-zone ZONE")

    async def work(admin: Admin) -> None:
        views = await admin.simulate_group(options.name, topic=options.topic, **wish)
        now = await admin.explain_group(options.name, topic=options.topic)
        print_page(_simulated(options, now, views), options.output)

    with_admin(options, work)


def _simulated(options: argparse.Namespace, now: ExplainView, views: Sequence[SimulationView]) -> Page:
    columns = (
        Column("topic", "topic"),
        Column("queues", "queues", "number"),
        Column("moves", "moves", "number"),
        Column("unowned", "unowned", "number"),
        Column("spread_now", "each has now"),
        Column("spread_then", "each would have"),
        Column("cross_zone_now", "other zone now", "number"),
        Column("cross_zone_then", "other zone then", "number"),
    )
    rows: list[tuple[Scalar, ...]] = []
    moved: list[tuple[Scalar, ...]] = []
    for view in views:
        of_topic = [row.owner for row in now.queues if row.queue.topic == view.topic]
        everybody = EVERYBODY in of_topic and set(of_topic) <= {EVERYBODY, ""}
        shares = Counter(owner for owner in of_topic if owner not in {"", EVERYBODY})
        rows.append(
            (
                view.topic,
                view.queues,
                view.moved,
                view.unowned,
                "all" if everybody else _spread([*shares.values(), *[0] * len(now.idle)]),
                "all" if view.strategy == EVERY_BROKER else _spread([view.share_min, view.share_max]),
                view.other_zone_before,
                view.other_zone_after,
            )
        )
        moved += [(*queue_cells(move.queue), _owner(move.before), _owner(move.after)) for move in view.moves]
    listings = [Listing(key="topics", columns=columns, rows=rows)]
    if options.rows:
        ways = (*QUEUE, Column("from", "from"), Column("to", "to"))
        listings.append(Listing(key="moves", columns=ways, rows=moved, title="Queues that would move"))
    facts: dict[str, Scalar | list[str]] = {
        "group": options.name,
        "strategy": options.strategy or _strategy(now.strategy),
    }
    facts |= {name: value for name in ("members", "queues", "lose_zone") if (value := getattr(options, name))}
    return Page(facts=facts, listings=listings)


def _strategy(name: str) -> str:
    return "none: every member reads every broker" if name == EVERY_BROKER else name


def _owner(client_id: str) -> str:
    return "every member" if client_id == EVERYBODY else client_id or "nobody"


def _spread(sizes: Sequence[int]) -> str:
    low, high = min(sizes, default=0), max(sizes, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


# ------------------------------------------------------------------------------------------------------- doctor


def doctor(options: argparse.Namespace) -> int:
    """Returns 0 if the group is healthy, 1 if there are findings."""

    async def work(admin: Admin) -> DiagnosisView:
        return await admin.diagnose_group(options.name, watch_ms=options.watch_ms, stuck_ms=options.stuck_ms)

    view = with_admin(options, work)
    print_page(_diagnosis(options.name, view, full=options.output.structured), options.output)
    return int(bool(view.findings))


def _diagnosis(group: str, view: DiagnosisView, *, full: bool) -> Page:
    facts: dict[str, Scalar | list[str]] = {
        "group": group,
        "healthy": not view.findings,
        "decides": view.decides,
        "members": view.members,
        "queues": view.queues,
        "brokers": list(view.brokers),
        "silent": list(view.silent),
    }
    keys = ("severity", "kind", "subject", "seen", "fix", "command")
    if full:
        columns = tuple(Column(key, key) for key in keys)
        rows = [tuple(getattr(one, key) for key in keys) for one in view.findings]
        return Page(facts=facts, listings=[Listing(key="findings", columns=columns, rows=rows)])
    looked = [_counted(view.members, "member")] if view.members else []
    looked.append(f"{_counted(view.queues, 'queue')} at {', '.join(view.brokers)}")
    decides = view.decides if view.members else "no member is connected"  # so nobody gets the queues
    found = _counted(len(view.findings), "finding") if view.findings else "no findings"
    lines = [f"{group}: {found}, {' and '.join(looked)}; {decides}"]
    for one in view.findings:
        lines += [
            "",
            f"{one.severity} {one.kind} {one.subject}",
            f"  {one.seen}",
            f"  {one.fix}:",
            f"    {one.command}",
        ]
    return Page(facts=facts, sentence=lines)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
