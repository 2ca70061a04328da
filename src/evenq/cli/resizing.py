"""`evenq topic scale | permit` and `evenq broker drain | resume`: changes that must not leave a message behind.

Giving a topic fewer queues is a plan first: what lies in the queues to be closed is told, and `--yes` does it.

Shrinking and draining go on as long as somebody has messages to read; the command repeats its call, tells the progress
on standard error, and gives up waiting after `--wait`. The cluster keeps the state between the steps, so an interrupted
command is simply run again.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from evenq.cli.admin import Admin, message_type_name, with_admin
from evenq.cli.output import Column, Listing, Page, print_page, progress_console
from evenq.errors import BadRequest, ConnectionFailed, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

__all__ = ["PERMISSIONS", "drain", "permission_text", "permit", "resume", "scale"]

AGAIN_MS = 500
WAITING_TOLD_MAX = 5
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
_UNFINISHED = (
    Column("broker", "broker"),
    Column("topic", "topic"),
    Column("queue", "queue", "number"),
    Column("group", "group"),
    Column("lag", "lag", "number"),
    Column("inflight", "in flight", "number"),
)
_Change = admin_pb2.DrainBrokerRequest


def permission_text(number: int) -> str:
    """`read-write`, `read`, `write` or `none`."""
    name = definition_pb2.Permission.Name(number)  # type: ignore[arg-type]  # any int of the wire
    return next((text for text, known in PERMISSIONS.items() if known == name), name.lower())


class _Patience:
    """Repeats a call until nothing is left to wait for, `wait_s` seconds at most."""

    def __init__(self, wait_s: int) -> None:
        self._clock = SystemClock()
        self._deadline_ms = self._clock.monotonic_ms() + wait_s * 1000
        self._told = ""

    async def pause(self, told: str) -> bool:
        """Tell the progress if it is news; False when the time is over."""
        if told != self._told:
            self._told = told
            progress_console().print(told, markup=False)
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            return False
        await self._clock.sleep_ms(min(AGAIN_MS, left_ms))
        return True


def scale(options: argparse.Namespace) -> None:
    """`evenq topic scale NAME --queues N`."""

    async def work(admin: Admin) -> None:
        patience = _Patience(0 if options.no_wait else options.wait)
        request = admin_pb2.ScaleTopicRequest(
            topic=options.name,
            queues=options.queues,
            broker_name=options.broker,
            force=options.force,
            close_unread=options.yes,
        )
        if not await _planned(admin, options, request):
            if options.dry_run:
                return
            raise BadRequest(f"nothing was changed; add --yes to give topic {options.name} fewer queues")
        while True:
            answer = await admin.call("ScaleTopic", request, admin_pb2.ScaleTopicResponse)
            _must_have_landed(answer.brokers, f"topic {options.name} was not changed")
            open_ones = [one for one in answer.brokers if one.entry.read_queues != options.queues]
            left = [waits for one in open_ones for waits in one.unfinished]
            last = max((one.entry.read_queues for one in open_ones), default=0) - 1
            told = f"queues {options.queues} to {last} take no messages any more; to be read: {_who(left)}"
            if not open_ones or not await patience.pause(told):
                break
        if open_ones and not options.no_wait:
            raise RequestTimeout(
                f"queues {options.queues} to {last} of topic {options.name} are still read after {options.wait} s, by "
                f"{_who(left)}; run the command again to go on waiting, add --force to close them unread, "
                f"or go back with `evenq topic scale {options.name} --queues {last + 1}`"
            )
        sentence = f"Topic {options.name} has {options.queues} queues on {_brokers(answer.brokers)}."
        if open_ones:
            sentence = f"Queues {options.queues} to {last} of topic {options.name} are closed once they are read."
        elif any(message_type_name(one.entry.message_type) == "FIFO" for one in answer.brokers):
            sentence += " New messages of some message groups go to other queues than before."
        _print(options, answer.brokers, sentence)

    with_admin(options, work)


async def _planned(admin: Admin, options: argparse.Namespace, request: admin_pb2.ScaleTopicRequest) -> bool:
    """Say what is in queues that would be closed; False if it is to be done with --yes only, and was not."""
    look = admin_pb2.ScaleTopicRequest()
    look.CopyFrom(request)
    look.dry_run = True
    answer = await admin.call("ScaleTopic", look, admin_pb2.ScaleTopicResponse)
    _must_have_landed(answer.brokers, f"topic {options.name} was not looked at")
    fewer = [one for one in answer.brokers if max(one.entry.write_queues, one.entry.read_queues) > options.queues]
    if not fewer:
        if options.dry_run:
            sentence = f"No queue of topic {options.name} would be closed; {_brokers(answer.brokers)} would have "
            _print(options, answer.brokers, f"{sentence}{options.queues}.")
        return not options.dry_run
    stored, unread = sum(one.stored for one in fewer), sum(one.unread for one in fewer)
    groups = _who(waits for one in fewer for waits in one.unfinished)
    told = (
        f"Queues {options.queues} to {max(one.entry.read_queues for one in fewer) - 1} of topic {options.name} on "
        f"{_brokers(fewer)} hold {stored:,} messages. To be read first by groups: {groups}. "
    )
    if unread:
        told += f"{unread:,} of them no group has read: a group that comes later will not get them."
    else:
        told += "Groups that come later will not get what is stored there."
    if options.yes and not options.dry_run:
        progress_console().print(told, markup=False)
    else:
        _print(options, fewer, told)
    return bool(options.yes) and not options.dry_run


def permit(options: argparse.Namespace) -> None:
    """`evenq topic permit NAME PERMISSION`."""

    async def work(admin: Admin) -> None:
        number = definition_pb2.Permission.Value(PERMISSIONS[options.permission])
        request = admin_pb2.PermitTopicRequest(topic=options.name, permission=number, broker_name=options.broker)
        answer = await admin.call("PermitTopic", request, admin_pb2.PermitTopicResponse)
        _must_have_landed(answer.brokers, f"the permission of topic {options.name} was not changed")
        sentence = f"Topic {options.name} is open for {options.permission} on {_brokers(answer.brokers)}."
        if options.permission == "none":
            sentence = f"Topic {options.name} is closed on {_brokers(answer.brokers)}."
        _print(options, answer.brokers, sentence)

    with_admin(options, work)


def drain(options: argparse.Namespace) -> None:
    """`evenq broker drain NAME`."""

    async def work(admin: Admin) -> None:
        patience = _Patience(0 if options.no_wait else options.wait)
        request = admin_pb2.DrainBrokerRequest(broker_name=options.name, change=_Change.DRAIN)
        while True:
            answer = await admin.call("DrainBroker", request, admin_pb2.DrainBrokerResponse)
            if answer.empty or not await patience.pause(_progress(answer)):
                break
        if not answer.writers:
            progress_console().print("no other broker takes messages now: producers have nowhere to go", markup=False)
        if not answer.empty and not options.no_wait:
            raise RequestTimeout(
                f"{_progress(answer)}, still after {options.wait} s; run the command again to go on waiting, "
                f"or let it take messages again with `evenq broker resume {options.name}`"
            )
        _print_broker(options, answer, _drained(options.name, answer))

    with_admin(options, work)


def resume(options: argparse.Namespace) -> None:
    """`evenq broker resume NAME`."""

    async def work(admin: Admin) -> None:
        request = admin_pb2.DrainBrokerRequest(broker_name=options.name, change=_Change.RESUME)
        answer = await admin.call("DrainBroker", request, admin_pb2.DrainBrokerResponse)
        _print_broker(options, answer, f"Broker {options.name} takes messages.")

    with_admin(options, work)


def _drained(name: str, answer: admin_pb2.DrainBrokerResponse) -> str:
    if not answer.empty:
        return f"Broker {name} takes no messages. {_progress(answer)}."
    kept = []
    if answer.unread:
        kept.append(f"{answer.unread:,} messages of topics that no group ever read")
    if answer.dead_letters:
        kept.append(f"{answer.dead_letters:,} dead letters")
    rest = f" It still holds {' and '.join(kept)}." if kept else ""
    return f"Broker {name} takes no messages, and every group has read what it had: it may be stopped.{rest}"


def _progress(answer: admin_pb2.DrainBrokerResponse) -> str:
    delayed = f"; {answer.delayed:,} delayed messages and open transactions" if answer.delayed else ""
    return f"broker {answer.broker_name} has messages to be read: {_who(answer.unfinished)}{delayed}"


def _who(left: Iterable[admin_pb2.UnfinishedQueue]) -> str:
    lags: Counter[str] = Counter()
    for one in left:
        lags[one.group] += one.lag
    told = [f"{group} {lag:,}" for group, lag in lags.most_common(WAITING_TOLD_MAX)]
    more = len(lags) - len(told)
    return ", ".join(told) + (f" and {more} more groups" if more > 0 else "") or "none"


def _brokers(brokers: Sequence[object]) -> str:
    return f"{len(brokers)} broker{'s' * (len(brokers) != 1)}"


def _must_have_landed(brokers: Iterable[admin_pb2.ResizedTopic], what: str) -> None:
    failed = [f"{one.broker_name} ({one.error})" for one in brokers if one.error]
    if failed:
        raise ConnectionFailed(f"{what} on {', '.join(failed)}; run the command again")


def _print(options: argparse.Namespace, brokers: Sequence[admin_pb2.ResizedTopic], sentence: str) -> None:
    rows = [
        (
            one.broker_name,
            one.entry.write_queues,
            one.entry.read_queues,
            permission_text(one.entry.permission),
            sum(waits.lag for waits in one.unfinished),
            one.unread,
            one.stored,
        )
        for one in brokers
    ]
    left = [waits for one in brokers for waits in one.unfinished]
    listings = [Listing(key="brokers", columns=_QUEUES, rows=rows)]
    if left or options.json:
        listings.append(_unfinished(left))
    page = Page(facts={"topic": options.name}, listings=listings, sentence=sentence)
    print_page(page, as_json=options.json)


def _print_broker(options: argparse.Namespace, answer: admin_pb2.DrainBrokerResponse, sentence: str) -> None:
    facts: dict[str, str | int | bool | list[str] | None] = {
        "broker": answer.broker_name,
        "draining": answer.draining,
        "empty": answer.empty,
        "lag": answer.lag,
        "delayed": answer.delayed,
        "unread": answer.unread,
        "dead_letters": answer.dead_letters,
        "other_writers": answer.writers,
    }
    listings = [_unfinished(answer.unfinished)] if options.json or (answer.draining and answer.unfinished) else []
    print_page(Page(facts=facts, listings=listings, sentence=sentence), as_json=options.json)


def _unfinished(left: Iterable[admin_pb2.UnfinishedQueue]) -> Listing:
    rows = [
        (one.queue.broker_name, one.queue.topic, one.queue.queue_id, one.group, one.lag, one.inflight) for one in left
    ]
    return Listing(key="unfinished", columns=_UNFINISHED, rows=rows, title="To be read", empty="nothing")
