"""`evenq group explain | simulate | doctor`: why queues are where they are, what would be if, what is wrong."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from evenq.cli.admin import Admin, NoServer, with_admin
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.errors import BadRequest, ConnectionFailed, NotImplementedYet
from evenq.model.names import is_system_topic
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, diagnosis_pb2

__all__ = ["doctor", "explain", "simulate"]

ASSIGNMENT = "evenq.v1.Assignment"
EVERYBODY = "*"
_QUEUE = (Column("topic", "topic"), Column("broker", "broker"), Column("queue", "queue", "number"))
_EXPLAINED = (
    *_QUEUE,
    Column("state", "state"),
    Column("owner", "owner"),
    Column("since_ms", "since", "time"),
    Column("why", "why"),
    Column("previous_owner", "owner before"),
    Column("owner_zone", "owner's zone"),
    Column("broker_zone", "broker's zone"),
)


# ------------------------------------------------------------------------------------------------------- explain


def explain(options: argparse.Namespace) -> None:
    """`evenq group explain NAME`."""

    async def work(admin: Admin) -> None:
        try:
            page = _decided(options.name, await _explained(admin, options.name, options.topic))
        except NoServer:
            raise
        except NotImplementedYet:
            page = await _by_locks(admin, options, "no rebalancer: members and brokers compute it")
        except ConnectionFailed as error:
            page = await _by_locks(admin, options, f"nobody at the moment: {error}")
        print_page(page, as_json=options.json)

    with_admin(options, work)


async def _explained(admin: Admin, group: str, topic: str) -> assignment_pb2.ExplainResponse:
    request = assignment_pb2.ExplainRequest(group=group, topic=topic)
    return await admin.call("Explain", request, assignment_pb2.ExplainResponse, service=ASSIGNMENT)


def _decided(group: str, answer: assignment_pb2.ExplainResponse) -> Page:
    rows: list[tuple[Scalar, ...]] = [
        (
            row.queue.topic,
            row.queue.broker_name,
            "all" if row.queue.queue_id < 0 else row.queue.queue_id,
            row.state,
            "every member" if row.owner == EVERYBODY else row.owner,
            row.since_ms,
            row.reason,
            row.previous_owner,
            row.owner_zone,
            row.broker_zone,
        )
        for row in answer.queues
    ]
    generation = f"{answer.generation.epoch}.{answer.generation.counter}" if answer.queues else ""
    return Page(
        facts={
            "group": group,
            "decides": "the rebalancer",
            "strategy": answer.strategy,
            "generation": generation,
            "problems": list(answer.problems),
        },
        listings=[
            Listing(key="queues", columns=_EXPLAINED, rows=rows, title="Queues", empty="nothing was decided yet"),
            _idle((one.client_id, one.reason) for one in answer.idle),
        ],
    )


async def _by_locks(admin: Admin, options: argparse.Namespace, decides: str) -> Page:
    """What brokers know by themselves: who holds the locks."""
    request = admin_pb2.DescribeGroupRequest(group=options.name)
    answer = await admin.call("DescribeGroup", request, admin_pb2.DescribeGroupResponse)
    zones = {member.client_id: member.zone for member in answer.members}
    rows: list[tuple[Scalar, ...]] = []
    for at in answer.queues:
        queue = at.queue
        if options.topic in {"", queue.topic}:
            state, why = ("OWNED", "holds the queue's lock") if at.owner else ("UNOWNED", "nobody holds its lock")
            place = (queue.topic, queue.broker_name, queue.queue_id)
            rows.append((*place, state, at.owner, 0, why, "", zones.get(at.owner, ""), ""))
    holders = {at.owner for at in answer.queues}
    idle = [
        (member.client_id, "it holds no lock")
        if member.protocol == "evenq"
        else (member.client_id, "it takes what others leave: it needs no lock")
        for member in answer.members
        if member.client_id not in holders
    ]
    return Page(
        facts={
            "group": options.name,
            "decides": decides,
            "strategy": answer.summary.strategy,
            "generation": "",
            "problems": [],
        },
        listings=[
            Listing(key="queues", columns=_EXPLAINED, rows=rows, title="Queues", empty="nothing was read yet"),
            _idle(idle),
        ],
    )


def _idle(members: Iterable[tuple[str, str]]) -> Listing:
    columns = (Column("client_id", "member"), Column("why", "why"))
    return Listing(key="idle", columns=columns, rows=list(members), title="Members without a queue")


# ------------------------------------------------------------------------------------------------------- simulate


def simulate(options: argparse.Namespace) -> None:
    """`evenq group simulate NAME`."""
    wish = {name: getattr(options, name) for name in ("members", "queues", "strategy", "lose_zone")}
    if not any(wish.values()):
        raise BadRequest("say what to imagine: --members N, --queues N, --strategy NAME or --lose-zone ZONE")

    async def work(admin: Admin) -> None:
        now = await _explained(admin, options.name, options.topic)
        topics = sorted({row.queue.topic for row in now.queues if not is_system_topic(row.queue.topic)})
        if not topics:
            raise BadRequest(
                f"nothing was decided about group {options.name} yet, so there is nothing to compare with; "
                "start its members"
            )
        answers = {}
        for topic in topics:
            request = assignment_pb2.SimulateRequest(group=options.name, topic=topic, **wish)
            answers[topic] = await admin.call("Simulate", request, assignment_pb2.SimulateResponse, service=ASSIGNMENT)
        print_page(_simulated(options, now, answers), as_json=options.json)

    with_admin(options, work)


def _simulated(
    options: argparse.Namespace,
    now: assignment_pb2.ExplainResponse,
    answers: dict[str, assignment_pb2.SimulateResponse],
) -> Page:
    columns = (
        Column("topic", "topic"),
        Column("queues", "queues", "number"),
        Column("moves", "moves", "number"),
        Column("unowned", "unowned", "number"),
        Column("spread_now", "each has now"),
        Column("spread_then", "each would have"),
        Column("cross_zone_now", "other zone now", "number"),
        Column("cross_zone_then", "then", "number"),
    )
    rows: list[tuple[Scalar, ...]] = []
    moved: list[tuple[Scalar, ...]] = []
    for topic, answer in answers.items():
        shares = Counter(row.owner for row in now.queues if row.queue.topic == topic and row.owner not in {"", "*"})
        rows.append(
            (
                topic,
                len({(row.queue.broker_name, row.queue.queue_id) for row in answer.queues}),
                answer.moves,
                sum(not row.owner for row in answer.queues),
                _spread([*shares.values(), *[0] * len(now.idle)]),
                _spread([answer.queues_per_member_min, answer.queues_per_member_max]),
                answer.cross_zone_now,
                answer.cross_zone_then,
            )
        )
        moved += [
            (topic, row.queue.broker_name, row.queue.queue_id, row.previous_owner or "nobody", row.owner or "nobody")
            for row in answer.queues
            if row.owner != row.previous_owner
        ]
    listings = [Listing(key="topics", columns=columns, rows=rows)]
    if options.rows:
        ways = (*_QUEUE, Column("from", "from"), Column("to", "to"))
        listings.append(Listing(key="moves", columns=ways, rows=moved, title="Queues that would move"))
    facts: dict[str, Scalar | list[str]] = {"group": options.name, "strategy": options.strategy or now.strategy}
    facts |= {name: value for name in ("members", "queues", "lose_zone") if (value := getattr(options, name))}
    return Page(facts=facts, listings=listings)


def _spread(sizes: Sequence[int]) -> str:
    low, high = min(sizes, default=0), max(sizes, default=0)
    return f"{low}" if low == high else f"{low} to {high}"


# ------------------------------------------------------------------------------------------------------- doctor


def doctor(options: argparse.Namespace) -> int:
    """`evenq group doctor NAME`: 0 healthy, 1 something was found."""
    found: list[diagnosis_pb2.DiagnoseGroupResponse] = []

    async def work(admin: Admin) -> None:
        request = diagnosis_pb2.DiagnoseGroupRequest(
            group=options.name, watch_ms=options.watch_ms, stuck_ms=options.stuck_ms
        )
        answer = await admin.call("DiagnoseGroup", request, diagnosis_pb2.DiagnoseGroupResponse)
        found.append(answer)
        print_page(_diagnosis(options.name, answer, as_json=options.json), as_json=options.json)

    with_admin(options, work)
    return int(any(answer.findings for answer in found))


def _diagnosis(group: str, answer: diagnosis_pb2.DiagnoseGroupResponse, *, as_json: bool) -> Page:
    facts: dict[str, Scalar | list[str]] = {
        "group": group,
        "healthy": not answer.findings,
        "decides": answer.decides,
        "members": answer.members,
        "queues": answer.queues,
        "brokers": list(answer.brokers),
        "silent": list(answer.silent),
    }
    keys = ("severity", "kind", "subject", "seen", "fix", "command")
    if as_json:
        columns = tuple(Column(key, key) for key in keys)
        rows = [tuple(getattr(one, key) for key in keys) for one in answer.findings]
        return Page(facts=facts, listings=[Listing(key="findings", columns=columns, rows=rows)])
    looked = f"{answer.members} members and {answer.queues} queues at {', '.join(answer.brokers)}"
    number = len(answer.findings)
    lines = [f"{group}: {number or 'no'} finding{'s' * (number != 1)}, {looked}; {answer.decides}"]
    for one in answer.findings:
        lines += [
            "",
            f"{one.severity} {one.kind} {one.subject}",
            f"  {one.seen}",
            f"  {one.fix}:",
            f"    {one.command}",
        ]
    return Page(facts=facts, sentence="\n".join(lines))
