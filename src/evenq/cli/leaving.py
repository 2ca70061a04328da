"""`evenq topic scale NAME --broker B --queues 0`: a topic leaves a broker once it is read there.

A plan first, as for fewer queues: what is there is shown, and `--yes` does it.
"""

from __future__ import annotations

import argparse

from evenq.cli.admin import with_admin
from evenq.cli.exit_codes import NotConfirmed
from evenq.cli.output import Page, print_page, progress_console
from evenq.cli.waiting import Patience, hidden_text, unfinished_listing, who
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import WithdrawView
from evenq.errors import BadRequest, RequestTimeout

__all__ = ["leave"]


def leave(options: argparse.Namespace) -> None:
    """One step after the other until it is gone, `--wait` seconds at most."""
    if not options.broker:
        raise BadRequest(
            "--queues 0 removes a topic from one broker: name the broker with --broker NAME; "
            f"`evenq topic delete {options.name}` deletes the topic on every broker"
        )

    async def work(admin: Admin) -> None:
        if not await _planned(admin, options):
            if options.dry_run:
                return
            raise NotConfirmed(
                f"nothing was changed; add --yes to remove topic {options.name} from broker {options.broker}"
            )
        patience = Patience(0 if options.no_wait else options.wait)
        while True:
            view = await admin.withdraw_topic(
                options.name, broker=options.broker, close_unread=True, force=options.force
            )
            if view.gone or not await patience.pause(_left(options, view)):
                break
        if not view.gone and not options.no_wait:
            raise RequestTimeout(
                f"{_left(options, view)}; run the command again to continue waiting, add --force to delete them with "
                f"the topic, or let it accept messages again with `evenq topic permit {options.name} read-write "
                f"--broker {options.broker}`"
            )
        sentence = f"Topic {options.name} was removed from {options.broker}, with {view.stored:,} stored messages."
        if not view.gone:
            sentence = (
                f"{_left(options, view)[0].upper()}{_left(options, view)[1:]}. Run the command again to continue."
            )
        _print(options, view, sentence)

    with_admin(options, work)


async def _planned(admin: Admin, options: argparse.Namespace) -> bool:
    """Say what the broker has of the topic; False if it is to be done with --yes only, and was not."""
    view = await admin.withdraw_topic(options.name, broker=options.broker, dry_run=True)
    delayed = ""
    if view.delayed:
        delayed = f"The removal waits for {view.delayed:,} delayed messages and open transactions of the broker. "
    sentence = (
        f"Topic {options.name} holds {view.stored:,} messages on {options.broker}, which are deleted with it. Groups "
        f"must read first: {who(view.unfinished)}. {delayed}{hidden_text(view.unread)}"
    )
    if options.yes and not options.dry_run:
        progress_console().print(sentence)
    else:
        _print(options, view, sentence)
    return bool(options.yes) and not options.dry_run


def _left(options: argparse.Namespace, view: WithdrawView) -> str:
    parts = []
    if view.unfinished:
        parts.append(f"to be read: {who(view.unfinished)}")
    if view.delayed:
        parts.append(f"{view.delayed:,} delayed messages and open transactions of the broker")
    return (
        f"topic {options.name} accepts no more messages on {options.broker}, but is not removed yet: {'; '.join(parts)}"
    )


def _print(options: argparse.Namespace, view: WithdrawView, sentence: str) -> None:
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
