"""`evenq topic scale | permit` and `evenq broker drain | resume`: changes that must not lose a message.

Fewer queues: without `--yes` the command prints the messages of the queues to be closed. Closing queues and draining
last until groups have read all messages. The command repeats its call, prints the progress on standard error, and stops
waiting after `--wait`. The cluster keeps the state, so an interrupted command can be run again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from evenq.cli.admin import warn_missing, with_admin
from evenq.cli.exit_codes import ExitCode, NotConfirmed
from evenq.cli.output import Column, Listing, Page, print_page, progress_console
from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import DrainView, ResizeView, UnfinishedView, WithdrawView
from evenq.client.loops.admin.resizing import problems_text, schedules_text, why_kept
from evenq.errors import BadRequest, RequestTimeout
from evenq.model import MessageType
from evenq.runtime.clock import SystemClock

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
    """Returns `read-write`, `read`, `write` or `none`."""
    return permission.lower().replace("_", "-")


def scale(options: argparse.Namespace) -> None:
    """Changes the number of queues; 0 removes the topic from a broker."""
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
                f"queues {options.queues} to {last} of topic {options.name} still have messages to be read after "
                f"{options.wait} s: {who(left)}; run the command again to continue waiting, add --force to close them "
                f"unread, or undo it with `evenq topic scale {options.name} --queues {last + 1}`"
            )
        each = "each of " * (len(brokers) != 1)
        queues = f"{options.queues} queue{'s' * (options.queues != 1)}"
        sentence = f"Topic {options.name} has {queues} on {each}{_brokers(brokers)}."
        if open_ones:
            sentence = f"Queues {options.queues} to {last} of topic {options.name} will be closed when they are read."
        elif any(one.message_type is MessageType.FIFO for one in brokers):
            sentence += " New messages of some message groups now go to other queues."
        _print(options, brokers, sentence)
        options.incomplete = bool(open_ones)
        if not options.broker:
            await warn_missing(options, admin, f"topic {options.name} was not changed")

    with_admin(options, work)


async def _planned(admin: Admin, options: argparse.Namespace) -> bool:
    """Prints the messages of the queues to be closed, if any; returns whether the change may be made."""
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
    """Drains a broker. Returns 0 if it may be removed by the rule of `check-scale-in`; otherwise 1, also when it still
    has messages to be read (`--no-wait`).
    """

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
        return ExitCode.NOT_DONE if problem or not view.empty else ExitCode.DONE

    return with_admin(options, work)


def resume(options: argparse.Namespace) -> None:
    async def work(admin: Admin) -> None:
        view = await admin.resume_broker(options.name)
        _print_broker(options, view, f"Broker {options.name} accepts messages.")

    with_admin(options, work)


def _drained(name: str, view: DrainView, problem: str) -> str:
    if not view.empty:
        return f"Broker {name} accepts no messages. {_progress(view)}.{problems_text(view.schedule_problems)}"
    kept = []
    if view.unread:
        kept.append(f"{view.unread:,} messages that no group has read")
    if view.dead_letters:
        kept.append(f"{view.dead_letters:,} dead letters")
    if view.schedules:
        kept.append(schedules_text(view.schedules, view.schedule_names))
    rest = f" It still holds {' and '.join(kept)}." if kept else ""
    rest += problems_text(view.schedule_problems)
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
    if left or options.output.structured:
        listings.append(unfinished_listing(left))
    page = Page(facts={"topic": options.name}, listings=listings, sentence=sentence)
    print_page(page, options.output)


def _print_broker(options: argparse.Namespace, view: DrainView, sentence: str) -> None:
    facts: dict[str, str | int | bool | list[str] | None] = {
        "broker": view.broker_name,
        "draining": view.draining,
        "empty": view.empty,
        "lag": view.lag,
        "delayed": view.delayed,
        "unread": view.unread,
        "dead_letters": view.dead_letters,
        "schedules": view.schedules,
        "schedule_names": list(view.schedule_names),
        "schedule_problems": [f"{one}: {why}" for one, why in view.schedule_problems.items()],
        "other_writers": view.other_writers,
    }
    listings = (
        [unfinished_listing(view.unfinished)]
        if options.output.structured or (view.draining and view.unfinished)
        else []
    )
    print_page(Page(facts=facts, listings=listings, sentence=sentence), options.output)


def leave(options: argparse.Namespace) -> None:
    """Removes a topic from a broker (`--queues 0`): prints the plan, then repeats the removal until the topic is gone,
    for at most `--wait` seconds.
    """
    if not options.broker:
        raise BadRequest(
            "--queues 0 removes a topic from one broker: name the broker with --broker NAME; "
            f"`evenq topic delete {options.name}` deletes the topic on every broker"
        )

    async def work(admin: Admin) -> None:
        if not await _leave_planned(admin, options):
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
        _print_left(options, view, sentence)
        options.incomplete = not view.gone

    with_admin(options, work)


async def _leave_planned(admin: Admin, options: argparse.Namespace) -> bool:
    """Prints the plan; returns whether the removal is confirmed (`--yes` without `--dry-run`)."""
    view = await admin.withdraw_topic(options.name, broker=options.broker, dry_run=True)
    delayed = ""
    if view.delayed:
        delayed = f"The removal waits for {view.delayed:,} delayed messages and open transactions of the broker. "
    schedules = ""
    if view.schedules:
        schedules = f"With the topic, the broker deletes {schedules_text(view.schedules, view.schedule_names)}. "
    sentence = (
        f"Topic {options.name} holds {view.stored:,} messages on {options.broker}, which are deleted with it. Groups "
        f"must read first: {who(view.unfinished)}. {delayed}{schedules}{hidden_text(view.unread)}"
    )
    if options.yes and not options.dry_run:
        progress_console().print(sentence)
    else:
        _print_left(options, view, sentence)
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


def _print_left(options: argparse.Namespace, view: WithdrawView, sentence: str) -> None:
    page = Page(
        facts={
            "topic": options.name,
            "broker": view.broker_name,
            "gone": view.gone,
            "stored": view.stored,
            "unread": view.unread,
            "delayed": view.delayed,
            "schedules": view.schedules,
            "schedule_names": list(view.schedule_names),
        },
        listings=[unfinished_listing(view.unfinished)] if options.output.structured or view.unfinished else [],
        sentence=sentence,
    )
    print_page(page, options.output)


AGAIN_MS = 500
GROUPS_NAMED_MAX = 5
_UNFINISHED = (
    Column("broker", "broker"),
    Column("topic", "topic"),
    Column("queue", "queue", "number"),
    Column("group", "group"),
    Column("lag", "lag", "number"),
    Column("inflight", "in flight", "number"),
)


class Patience:
    """The pauses between repeated calls, for at most `wait_s` seconds in total."""

    def __init__(self, wait_s: int) -> None:
        self._clock = SystemClock()
        self._deadline_ms = self._clock.monotonic_ms() + wait_s * 1000
        self._shown = ""

    async def pause(self, text: str) -> bool:
        """Prints the progress if it changed, and waits; returns False when the time is up."""
        if text != self._shown:
            self._shown = text
            progress_console().print(text)
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        await self._clock.sleep_ms(min(AGAIN_MS, left_ms))
        return True


def who(left: Iterable[UnfinishedView]) -> str:
    """Returns groups with their lag, the largest first."""
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    shown = [f"{group} {lag:,}" for group, lag in lags.most_common(GROUPS_NAMED_MAX)]
    more = len(lags) - len(shown)
    return ", ".join(shown) + (f" and {more} more groups" if more > 0 else "") or "none"


def hidden_text(unread: int) -> str:
    """Returns a warning: groups that are created later miss the messages of closed queues."""
    if unread:
        return f"No group has read {unread:,} of them: groups that are created later will not get them."
    return "Groups that are created later will not get the messages stored there."


def unfinished_listing(left: Iterable[UnfinishedView]) -> Listing:
    rows = [
        (one.queue.broker_name, one.queue.topic, one.queue.queue_id, one.group, one.lag, one.inflight) for one in left
    ]
    return Listing(key="unfinished", columns=_UNFINISHED, rows=rows, title="To be read", empty="nothing")
