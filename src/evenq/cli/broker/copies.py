"""Broker groups on the command line: their tables, `evenq broker move-leader`, and changes of their copies."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime

from evenq.cli.admin import with_admin
from evenq.cli.output import Column, Listing, Page, Scalar, print_page
from evenq.client.async_admin import Admin
from evenq.client.core.admin.broker_group_views import (
    BrokerCopyView,
    BrokerGroupView,
    LeaderMoveView,
    UncleanElectionView,
)

WAIT_MS = 10_000
"""Longest wait for a new leader: it reads its log before it serves."""
_GROUPS = (
    Column("broker", "broker group"),
    Column("mode", "mode"),
    Column("leader", "leader", "number"),
    Column("epoch", "epoch", "number"),
    Column("copies", "copies", "number"),
    Column("in_sync", "in sync", "number"),
    Column("in_sync_min", "needed", "number"),
    Column("note", "note", "sentence"),
)
_COPIES = (
    Column("broker", "broker group"),
    Column("copy", "copy", "number"),
    Column("address", "address for copies"),
    Column("state", "state"),
    Column("in_sync", "in sync"),
    Column("may_lead", "may lead"),
    Column("lag_bytes", "lag bytes", "number"),
    Column("lag_ms", "lag ms", "number"),
    Column("log_end", "log end", "number"),
    Column("away_since_ms", "away since", "time"),
)
ONE_COPY = "one copy: its data are on one disk only"


def groups_listing(groups: Iterable[BrokerGroupView]) -> Listing:
    rows: list[tuple[Scalar, ...]] = [
        (
            group.broker_name,
            group.mode or "one copy",
            group.leader,
            group.epoch,
            len(group.copies),
            group.in_sync,
            group.in_sync_min,
            _note(group),
        )
        for group in groups
    ]
    return Listing(key="broker_groups", columns=_GROUPS, rows=rows, title="Broker groups")


def copies_listing(groups: Iterable[BrokerGroupView]) -> Listing:
    """Returns one row for each copy of groups with several."""
    rows = [_copy_row(group.broker_name, one) for group in groups if group.mode for one in group.copies]
    return Listing(key="copies", columns=_COPIES, rows=rows, title="Copies")


def _copy_row(broker_name: str, one: BrokerCopyView) -> tuple[Scalar, ...]:
    state = one.state.lower().replace("_", " ")
    log = (one.lag_bytes, one.lag_ms, one.log_end)
    return (broker_name, one.copy, one.address, state, one.in_sync, one.may_lead, *log, one.away_since_ms)


def _note(group: BrokerGroupView) -> str:
    """Returns the most important problems of a group; empty if there are none."""
    if not group.mode:
        return ONE_COPY
    missing = [one for one in group.copies if not one.in_sync]
    parts = []
    if not group.served:
        able = ", ".join(str(one.copy) for one in group.copies if one.may_lead)
        starting = any(one.state == "STARTING" for one in group.copies)
        parts.append(
            "the leader does not serve yet" if starting else f"no leader; copies that may lead: {able or 'none'}"
        )
    if missing:
        parts.append("not in sync: " + ", ".join(f"copy {one.copy}" for one in missing))
    if group.in_sync < group.in_sync_min:
        parts.append(f"no writes are accepted until {group.in_sync_min} are in sync")
    elif missing and group.in_sync == group.in_sync_min:
        parts.append("if one more is lost, no writes are accepted")
    if group.unclean:
        parts.append(_unclean(group.unclean))
    return "; ".join(parts)


def _unclean(elections: tuple[UncleanElectionView, ...]) -> str:
    newest = elections[-1]
    when = datetime.fromtimestamp(newest.time_ms / 1000, UTC)
    earlier = f", and {len(elections) - 1} before" if len(elections) > 1 else ""
    return (
        f"acknowledged messages may be lost: unclean election at epoch {newest.epoch} on {when:%Y-%m-%d} by "
        f"copy {newest.copy}{earlier}"
    )


def move_leader(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> LeaderMoveView:
        return await admin.move_leader(options.name, to=options.to, wait_ms=WAIT_MS)

    view = with_admin(options, work)
    page = Page(
        facts={
            "broker": view.broker_name,
            "before": view.before,
            "leader": view.leader,
            "epoch": view.epoch,
            "served": view.served,
            "took_ms": view.took_ms,
        },
        sentence=_moved(view),
    )
    print_page(page, options.output)


def _moved(view: LeaderMoveView) -> str:
    group = f"broker group {view.broker_name}"
    if view.before == view.leader:
        return f"Copy {view.leader} of {group} is already the leader, in epoch {view.epoch}."
    before = "" if view.before is None else f", copy {view.before} led before"
    sentence = f"Copy {view.leader} of {group} leads epoch {view.epoch}{before}"
    if view.served:
        return f"{sentence}; it serves clients after {view.took_ms:,} ms."
    return (
        f"{sentence}; it is not known whether it serves clients: give the addresses of all copies to --endpoint, "
        "comma-separated, and check with `evenq cluster show`."
    )


def add_replica(options: argparse.Namespace) -> None:
    _change(
        options,
        lambda admin: admin.add_copy(options.name, options.copy, options.at),
        lambda _: (
            f"Broker group {options.name} has a copy {options.copy} at {options.at}. It counts once it is in sync: "
            "start it with an empty folder if it does not run yet, and check with `evenq cluster show`."
        ),
    )


def remove_replica(options: argparse.Namespace) -> None:
    _change(
        options,
        lambda admin: admin.remove_copy(options.name, options.copy),
        lambda _: (
            f"Copy {options.copy} was removed from broker group {options.name}. Stop its process. It may be "
            "added again, with its folder or an empty one."
        ),
    )


def replace(options: argparse.Namespace) -> None:
    _change(
        options,
        lambda admin: admin.replace_copy(
            options.name, options.copy, new=options.by, address=options.at, wait_ms=options.wait * 1_000
        ),
        lambda group: (
            f"Copy {options.by} is in sync, and copy {options.copy} was removed from broker group {options.name}. Stop "
            f"its process. The group now has {_listed(one.copy for one in group.copies)}."
        ),
    )


def grow(options: argparse.Namespace) -> None:
    _change(
        options,
        lambda admin: admin.grow_copies(
            options.name, options.members, in_sync_min=options.min_in_sync, wait_ms=options.wait * 1_000
        ),
        lambda group: _grown(group, options.members),
    )


def set_min_in_sync(options: argparse.Namespace) -> None:
    _change(
        options,
        lambda admin: admin.set_in_sync_min(options.name, options.copies),
        lambda group: (
            f"Broker group {options.name} accepts messages while {group.in_sync_min} of its copies are in sync."
        ),
    )


def _grown(group: BrokerGroupView, members: Mapping[int, str]) -> str:
    """Returns a text of the new state, which may exceed the request: nothing is removed, moved or lowered."""
    have = _listed(one.copy for one in group.copies if one.copy in members)
    verb = "is" if len(members) == 1 else "are"
    sentence = (
        f"{have[0].upper()}{have[1:]} of broker group {group.broker_name} {verb} in sync, and it accepts messages "
        f"while at least {group.in_sync_min} {'is' if group.in_sync_min == 1 else 'are'}."
    )
    for one in group.copies:
        asked = members.get(one.copy, one.address)
        if one.address and one.address != asked:
            sentence += (
                f" Copy {one.copy} keeps the address {one.address}, not {asked}: only new copies get an address."
            )
    return sentence


def _listed(copies: Iterable[int]) -> str:
    numbers = sorted(copies)
    return f"cop{'y' if len(numbers) == 1 else 'ies'} {', '.join(map(str, numbers))}"


def _change(
    options: argparse.Namespace,
    change: Callable[[Admin], Awaitable[BrokerGroupView]],
    sentence: Callable[[BrokerGroupView], str],
) -> None:
    async def work(admin: Admin) -> BrokerGroupView:
        return await change(admin)

    group = with_admin(options, work)
    page = Page(
        facts={
            "broker": group.broker_name,
            "leader": group.leader,
            "epoch": group.epoch,
            "copies": ", ".join(str(one.copy) for one in group.copies),
            "in_sync": group.in_sync,
            "in_sync_min": group.in_sync_min,
        },
        sentence=sentence(group),
    )
    print_page(page, options.output)
