"""`evenq broker check-scale-in | forget`: whether brokers may be taken away, and what to do about those that were.

`check-scale-in` is made for scripts and for a chart's hook: it changes nothing, and its exit code is the answer.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from evenq.cli.admin import Admin, with_admin
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.errors import BadRequest
from evenq.wire.stubs.evenq.v1 import admin_pb2

__all__ = ["check", "forget"]

_COLUMNS = (
    Column("broker", "broker"),
    Column("state", "state"),
    Column("removable", "may be removed"),
    Column("draining", "draining"),
    Column("lag", "to read", "number"),
    Column("delayed", "delayed", "number"),
    Column("unread", "read by no group", "number"),
    Column("dead_letters", "dead letters", "number"),
    Column("why", "why not"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """On one broker."""

    broker: str
    state: str
    """`live`, `missing` or `unknown`."""
    why: str = ""
    """Empty: it may be taken away."""
    draining: bool = False
    lag: int = 0
    delayed: int = 0
    unread: int = 0
    dead_letters: int = 0

    def row(self) -> tuple[Scalar, ...]:
        """In the order of the columns."""
        return (
            self.broker, self.state, not self.why, self.draining, self.lag, self.delayed, self.unread,
            self.dead_letters, self.why,
        )  # fmt: skip


def check(options: argparse.Namespace) -> int:
    """`evenq broker check-scale-in NAME...`; 0 if all of them may be taken away, else 1."""
    verdicts: list[_Verdict] = []

    async def work(admin: Admin) -> None:
        known = await admin.call("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
        names = list(dict.fromkeys(options.names))
        verdicts.extend([await _verdict(admin, known, name, nobody_may_miss=not options.yes) for name in names])
        refused = [one.broker for one in verdicts if one.why]
        sentence = f"{', '.join(refused)}: not yet." if refused else "Nothing that they hold would be missed."
        listing = Listing(key="brokers", columns=_COLUMNS, rows=[one.row() for one in verdicts])
        print_page(Page(facts={"removable": not refused}, listings=[listing], sentence=sentence), as_json=options.json)

    with_admin(options, work)
    return int(any(one.why for one in verdicts))


async def _verdict(admin: Admin, known: admin_pb2.ListBrokersResponse, name: str, *, nobody_may_miss: bool) -> _Verdict:
    if name in {one.name for one in known.missing}:
        why = f"it is not there: start it, or `evenq broker forget {name} --yes`"
        return _Verdict(broker=name, state="missing", why=why)
    if name not in {one.broker.name for one in known.brokers}:
        names = ", ".join(one.broker.name for one in known.brokers)
        return _Verdict(broker=name, state="unknown", why=f"no broker has that name; the cluster has {names}")
    look = admin_pb2.DrainBrokerRequest(broker_name=name)
    answer = await admin.call("DrainBroker", look, admin_pb2.DrainBrokerResponse)
    return _Verdict(
        broker=name,
        state="live",
        why=_why_not(name, answer, nobody_may_miss=nobody_may_miss),
        draining=answer.draining,
        lag=answer.lag,
        delayed=answer.delayed,
        unread=answer.unread,
        dead_letters=answer.dead_letters,
    )


def _why_not(name: str, answer: admin_pb2.DrainBrokerResponse, *, nobody_may_miss: bool) -> str:
    if not answer.draining:
        return f"it takes messages: `evenq broker drain {name}`"
    if not answer.empty:
        return f"it is not read empty: `evenq broker drain {name} --wait 3600`"
    if nobody_may_miss and (answer.unread or answer.dead_letters):
        return "no group waits for what it holds: read or replay it, or add --yes"
    if not answer.writers:
        return "no other broker takes messages"
    return ""


def forget(options: argparse.Namespace) -> None:
    """`evenq broker forget NAME --yes`."""
    if not options.yes:
        raise BadRequest(
            f"this ends the search for broker {options.name}: what it holds is not missed any more, and comes back "
            "only if the broker does; add --yes to do it"
        )

    async def work(admin: Admin) -> None:
        request = admin_pb2.ForgetBrokerRequest(broker_name=options.name)
        await admin.call("ForgetBroker", request, admin_pb2.ForgetBrokerResponse)
        print_page(
            Page(facts={"forgotten": options.name}, sentence=f"Broker {options.name} is not missed any more."),
            as_json=options.json,
        )

    with_admin(options, work)
