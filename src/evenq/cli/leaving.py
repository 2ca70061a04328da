"""`evenq topic scale NAME --broker B --queues 0`: a topic leaves a broker once it is read there."""

from __future__ import annotations

import argparse

from evenq.cli.admin import with_admin
from evenq.cli.output import Page, print_page
from evenq.cli.waiting import Patience, unfinished_listing, who
from evenq.client.async_admin import Admin
from evenq.client.core.views import WithdrawView
from evenq.errors import BadRequest, RequestTimeout

__all__ = ["leave"]


def leave(options: argparse.Namespace) -> None:
    """One step after the other until it is gone, `--wait` seconds at most."""
    if not options.broker:
        raise BadRequest(
            "--queues 0 lets a topic leave one broker: name it with --broker NAME; "
            f"`evenq topic delete {options.name}` ends it everywhere"
        )

    async def work(admin: Admin) -> None:
        patience = Patience(0 if options.no_wait else options.wait)
        while True:
            view = await admin.withdraw_topic(
                options.name, broker=options.broker, close_unread=options.yes, force=options.force
            )
            if view.gone or not _is_waited_for(view) or not await patience.pause(_left(options, view)):
                break
        if not view.gone and (not options.no_wait or not _is_waited_for(view)):
            raise RequestTimeout(
                f"{_left(options, view)}; {_advice(view)}, or let it take messages again with `evenq topic "
                f"permit {options.name} read-write --broker {options.broker}`"
            )
        _print(options, view)

    with_admin(options, work)


def _is_waited_for(view: WithdrawView) -> bool:
    """False: only what never ends by itself is left."""
    return bool(view.unfinished or view.delayed)


def _left(options: argparse.Namespace, view: WithdrawView) -> str:
    parts = []
    if view.unfinished:
        parts.append(f"to be read: {who(view.unfinished)}")
    if view.unread:
        parts.append(f"{view.unread:,} messages that no group reads")
    if view.delayed:
        parts.append(f"{view.delayed:,} delayed messages and open transactions of the broker")
    return (
        f"topic {options.name} takes no messages on {options.broker} any more, but is still there: {'; '.join(parts)}"
    )


def _advice(view: WithdrawView) -> str:
    if not _is_waited_for(view):
        return "read them, or add --yes to end them with the topic"
    return "run the command again to go on waiting, add --force to end them with the topic"


def _print(options: argparse.Namespace, view: WithdrawView) -> None:
    sentence = (
        f"Topic {options.name} is not on {options.broker} any more; {view.stored:,} stored messages ended with it."
    )
    if not view.gone:
        sentence = f"{_left(options, view)[0].upper()}{_left(options, view)[1:]}. Run the command again to go on."
    page = Page(
        facts={
            "topic": options.name,
            "broker": view.broker_name,
            "gone": view.gone,
            "stored": view.stored,
            "unread": view.unread,
            "delayed": view.delayed,
        },
        listings=[unfinished_listing(view.unfinished)] if options.json or view.unfinished else [],
        sentence=sentence,
    )
    print_page(page, as_json=options.json)
