"""`evenq topic scale | permit` and `evenq broker drain | resume`: changes that must not leave a message behind.

Giving a topic fewer queues is a plan first: what lies in the queues to be closed is shown, and `--yes` does it.

Shrinking and draining go on as long as a group has messages to read; the command repeats its call, tells the progress
on standard error, and gives up waiting after `--wait`. The cluster keeps the state between the steps, so an interrupted
command is simply run again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from evenq.cli.admin import warn_missing, with_admin
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.leaving import leave
from evenq.cli.output import Column, Listing, Page, print_page, progress_console
from evenq.cli.waiting import Patience, hidden_text, unfinished_listing, who
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import DrainView, ResizeView
from evenq.client.loops.admin.scale_in import why_kept
from evenq.errors import RequestTimeout
from evenq.model import MessageType

__all__ = ["PERMISSIONS", "drain", "permission_text", "permit", "resume", "scale"]

PERMISSIONS = {"read-write": "READ_WRITE", "read": "READ", "write": "WRITE", "none": "NONE"}
_QUEUES = (
    Column("broker", "broker"),
    Column("write_queues", "write queues", "number"),
    Column("read_queues", "read queues", "number"),
    Column("permission", "permission"),
    Column("unfinished", "to read", "number"),
    Column("unread", "read by no group", "number"),
    Column("stored", "stored", "number"),
)


def permission_text(permission: str) -> str:
    """`read-write`, `read`, `write` or `none`."""
    return permission.lower().replace("_", "-")


def scale(options: argparse.Namespace) -> None:
    """`evenq topic scale NAME --queues N`; 0 lets it leave a broker."""
    if not options.queues:
        leave(options)
        return

    async def work(admin: Admin) -> None:
        patience = Patience(0 if options.no_wait else options.wait)
        if not await _planned(admin, options):
            if options.dry_run:
                return
            raise NotConfirmed(f"nothing was changed; add --yes to give topic {options.name} fewer queues")
        while True:
            brokers = await admin.scale_topic(
                options.name,
                queues=options.queues,
                broker=options.broker,
                force=options.force,
                close_unread=options.yes,
            )
            open_ones = [one for one in brokers if one.read_queues != options.queues]
            left = [waits for one in open_ones for waits in one.unfinished]
            last = max((one.read_queues for one in open_ones), default=0) - 1
            progress = f"queues {options.queues} to {last} accept no more messages; to be read: {who(left)}"
            if not open_ones or not await patience.pause(progress):
                break
        if open_ones and not options.no_wait:
            raise RequestTimeout(
                f"queues {options.queues} to {last} of topic {options.name} are still read after {options.wait} s, by "
                f"{who(left)}; run the command again to continue waiting, add --force to close them unread, "
                f"or undo it with `evenq topic scale {options.name} --queues {last + 1}`"
            )
        each = "each of " * (len(brokers) != 1)
        queues = f"{options.queues} queue{'s' * (options.queues != 1)}"
        sentence = f"Topic {options.name} has {queues} on {each}{_brokers(brokers)}."
        if open_ones:
            sentence = f"Queues {options.queues} to {last} of topic {options.name} will be closed when they are read."
        elif any(one.message_type is MessageType.FIFO for one in brokers):
            sentence += " New messages of some message groups now go to other queues."
        _print(options, brokers, sentence)
        if not options.broker:
            await warn_missing(options, admin, f"topic {options.name} was not changed")

    with_admin(options, work)


async def _planned(admin: Admin, options: argparse.Namespace) -> bool:
    """Say what is in queues that would be closed; False if it is to be done with --yes only, and was not."""
    brokers = await admin.scale_topic(options.name, queues=options.queues, broker=options.broker, dry_run=True)
    fewer = [one for one in brokers if max(one.write_queues, one.read_queues) > options.queues]
    if not fewer:
        if options.dry_run:
            sentence = f"No queue of topic {options.name} would be closed; {_brokers(brokers)} would have "
            _print(options, brokers, f"{sentence}{options.queues}.")
        return not options.dry_run
    stored, unread = sum(one.stored for one in fewer), sum(one.unread for one in fewer)
    groups = who(waits for one in fewer for waits in one.unfinished)
    warning = (
        f"Queues {options.queues} to {max(one.read_queues for one in fewer) - 1} of topic {options.name} on "
        f"{_brokers(fewer)} hold {stored:,} messages. Groups must read first: {groups}. {hidden_text(unread)}"
    )
    if options.yes and not options.dry_run:
        progress_console().print(warning)
    else:
        _print(options, fewer, warning)
    return bool(options.yes) and not options.dry_run


def permit(options: argparse.Namespace) -> None:
    """`evenq topic permit NAME PERMISSION`."""

    async def work(admin: Admin) -> None:
        brokers = await admin.permit_topic(options.name, options.permission, broker=options.broker)
        sentence = f"Topic {options.name} is open for {options.permission} on {_brokers(brokers)}."
        if options.permission == "none":
            sentence = f"Topic {options.name} is closed on {_brokers(brokers)}."
        _print(options, brokers, sentence)
        if not options.broker:
            await warn_missing(options, admin, f"topic {options.name} was not changed")

    with_admin(options, work)


def drain(options: argparse.Namespace) -> int:
    """`evenq broker drain NAME`; 0 if the broker may be taken away then, by the rule of `check-scale-in`, else 1."""

    async def work(admin: Admin) -> int:
        patience = Patience(0 if options.no_wait else options.wait)
        while True:
            view = await admin.drain_broker(options.name)
            if view.empty or not await patience.pause(_progress(view)):
                break
        if not view.empty and not options.no_wait:
            raise RequestTimeout(
                f"{_progress(view)}, still after {options.wait} s; run the command again to continue waiting, "
                f"or let it accept messages again with `evenq broker resume {options.name}`"
            )
        problem = why_kept(options.name, view, allow_unread=options.yes)
        _print_broker(options, view, _drained(options.name, view, problem))
        return int(bool(problem) and view.empty)

    return with_admin(options, work)


def resume(options: argparse.Namespace) -> None:
    """`evenq broker resume NAME`."""

    async def work(admin: Admin) -> None:
        view = await admin.resume_broker(options.name)
        _print_broker(options, view, f"Broker {options.name} accepts messages.")

    with_admin(options, work)


def _drained(name: str, view: DrainView, problem: str) -> str:
    if not view.empty:
        return f"Broker {name} accepts no messages. {_progress(view)}."
    kept = []
    if view.unread:
        kept.append(f"{view.unread:,} messages of topics that no group ever read")
    if view.dead_letters:
        kept.append(f"{view.dead_letters:,} dead letters")
    rest = f" It still holds {' and '.join(kept)}." if kept else ""
    verdict = f"it may not be removed: {problem}" if problem else "it may be removed"
    return f"Broker {name} accepts no messages, and every group has read its messages; {verdict}.{rest}"


def _progress(view: DrainView) -> str:
    delayed = f"; {view.delayed:,} delayed messages and open transactions" if view.delayed else ""
    return f"broker {view.broker_name} has messages to be read: {who(view.unfinished)}{delayed}"


def _brokers(brokers: Sequence[object]) -> str:
    return f"{len(brokers)} broker{'s' * (len(brokers) != 1)}"


def _print(options: argparse.Namespace, brokers: Sequence[ResizeView], sentence: str) -> None:
    rows = [
        (
            one.broker_name,
            one.write_queues,
            one.read_queues,
            permission_text(one.permission),
            sum(waits.lag for waits in one.unfinished),
            one.unread,
            one.stored,
        )
        for one in brokers
    ]
    left = [waits for one in brokers for waits in one.unfinished]
    listings = [Listing(key="brokers", columns=_QUEUES, rows=rows)]
    if left or options.json:
        listings.append(unfinished_listing(left))
    page = Page(facts={"topic": options.name}, listings=listings, sentence=sentence)
    print_page(page, as_json=options.json)


def _print_broker(options: argparse.Namespace, view: DrainView, sentence: str) -> None:
    facts: dict[str, str | int | bool | list[str] | None] = {
        "broker": view.broker_name,
        "draining": view.draining,
        "empty": view.empty,
        "lag": view.lag,
        "delayed": view.delayed,
        "unread": view.unread,
        "dead_letters": view.dead_letters,
        "other_writers": view.other_writers,
    }
    listings = [unfinished_listing(view.unfinished)] if options.json or (view.draining and view.unfinished) else []
    print_page(Page(facts=facts, listings=listings, sentence=sentence), as_json=options.json)
