"""Rules for histories in which topics and groups are deleted and made again; pure functions from runs to problems.

Names and offsets come again there, so messages are known by their bodies, topics by uid, groups by the number of their
life.

- unread: each acknowledged message of a living topic reaches its living group;
- two listeners: an ordered queue, or a message group, is in the hands of one listener at a time;
- old retry: a group that was made anew is not given what a group of its name had failed. Its first attempt of a message
  is at most as high as the number of times that brokers handed the message to members of this group: what a member that
  was killed had fetched comes as attempt 2, whether its listener had it or not (decision 22);
- out of order: the first deliveries of a message group come in the order of its sends;
- again: in a world without kills, what a listener finished does not come again;
- early: a delayed message does not come before its time;
- held: nothing is kept for a client that is gone;
- unheard: a consumer of lite topics learns that its topic was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evenq_proofs.sim.checks import Problem

DRAIN_US = 2_900_000
"""A listener that runs longer may lose its queue meanwhile: a broker that stops waits no longer."""

SLACK_US = 2_000
"""Brokers count whole milliseconds."""


@dataclass(slots=True)
class Sent:
    """One message that a producer sent."""

    body: int
    at_us: int
    """When it was sent first, world time."""
    message_group: str = ""
    due_us: int = 0
    """Not to be delivered before; 0: at once."""
    acknowledged_us: int = 0
    """0: never."""
    place: tuple[str, str] = ("", "")
    """Broker, and uid that its topic had there."""
    queue: str = ""
    tries: int = 0
    """More than one may have stored it more than once."""


@dataclass(slots=True)
class Run:
    """One message in the hands of one listener."""

    body: int
    member: str
    group_life: int
    queue: str
    offset: int
    attempt: int
    start_us: int
    end_us: int = 0
    """0: not yet."""
    how: str = ""
    """`done`, `failed` or `cut`, by the end of its member; empty: it has not ended."""
    excused: bool = False
    """Its member was stopped or died meanwhile."""
    handed_out: int = 1
    """Times that brokers handed it to members of this life of the group, this time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEnding:
    """How the world looked at its end."""

    at_us: int
    graceful: bool
    ordered: bool
    uids: Mapping[str, str]
    """Per broker: the uid of the topic that lives there now."""
    wanted_from_us: int
    """Messages that were sent later must have reached the group; 0: all."""
    held: tuple[tuple[str, str], ...]
    """(queue, text): what brokers keep for clients that are gone."""
    unheard: tuple[str, ...]
    """Ends of lite topics that living consumers were not told."""


def judge_lifecycles(sent: Iterable[Sent], runs: Iterable[Run], ending: LifecycleEnding) -> list[Problem]:
    """All problems, in order of time."""
    messages, deliveries = {one.body: one for one in sent}, list(runs)
    problems = [*_unread(messages, deliveries, ending), *_old_retries(deliveries), *_early(messages, deliveries)]
    problems += [Problem("held", ending.at_us, queue, text) for queue, text in ending.held]
    problems += [Problem("unheard", ending.at_us, "", text) for text in ending.unheard]
    if ending.ordered:
        problems += [*_two_listeners(messages, deliveries), *_order(messages, deliveries, ending)]
    if ending.graceful:
        problems += _again(messages, deliveries)
    return sorted(problems, key=lambda problem: problem.at_us)


def wanted(message: Sent, ending: LifecycleEnding) -> bool:
    """Whether the group must get this message."""
    broker, uid = message.place
    return bool(message.acknowledged_us and uid and ending.uids.get(broker) == uid) and (
        message.at_us > ending.wanted_from_us
    )


def _unread(messages: Mapping[int, Sent], runs: list[Run], ending: LifecycleEnding) -> list[Problem]:
    finished = {run.body for run in runs if run.how == "done"}
    return [
        Problem(
            "unread", ending.at_us, one.queue, f"#{one.body}, sent at {one.at_us / 1000:.0f} ms, was never finished"
        )
        for one in messages.values()
        if one.body not in finished and wanted(one, ending)
    ]


def _old_retries(runs: list[Run]) -> list[Problem]:
    problems: list[Problem] = []
    lives: dict[int, set[int]] = {}
    for run in runs:
        seen = lives.setdefault(run.body, set())
        if run.attempt > max(1, run.handed_out) and seen and run.group_life not in seen:
            text = f"#{run.body} came to {run.member} as attempt {run.attempt}, the first that this group gets of it"
            problems.append(Problem("old retry", run.start_us, run.queue, text))
        seen.add(run.group_life)
    return problems


def _two_listeners(messages: Mapping[int, Sent], runs: list[Run]) -> list[Problem]:
    problems: list[Problem] = []
    last: dict[str, Run] = {}
    for run in runs:
        message = messages.get(run.body)
        lane = message.message_group if message is not None and message.message_group else run.queue
        if message is not None and lane == run.queue:
            lane += message.place[1]  # a queue of the topic that is made again is another one
        before = last.get(lane)
        if before is not None and before.member != run.member and _overlaps(before, run):
            text = (
                f"#{run.body} was given to {run.member} while {before.member} works on #{before.body} of {before.queue}"
            )
            problems.append(Problem("two listeners", run.start_us, run.queue, text))
        if before is None or run.end_us == 0 or run.end_us >= before.end_us:
            last[lane] = run
    return problems


def _overlaps(before: Run, run: Run) -> bool:
    return not before.excused and (not before.end_us or before.end_us > run.start_us)


def _order(messages: Mapping[int, Sent], runs: list[Run], ending: LifecycleEnding) -> list[Problem]:
    """Bodies grow; each message group has one producer, which sends one after the other."""
    problems: list[Problem] = []
    if not ending.graceful:
        return problems
    highest: dict[tuple[int, str], int] = {}
    seen: set[tuple[int, int]] = set()
    for run in runs:
        message = messages.get(run.body)
        if message is None or not message.message_group or (run.group_life, run.body) in seen:
            continue
        seen.add((run.group_life, run.body))
        lane = (run.group_life, message.message_group)
        if run.body < highest.get(lane, 0):
            text = f"#{run.body} of {message.message_group} came behind #{highest[lane]}"
            problems.append(Problem("out of order", run.start_us, run.queue, text))
        highest[lane] = max(run.body, highest.get(lane, 0))
    return problems


def _early(messages: Mapping[int, Sent], runs: list[Run]) -> list[Problem]:
    return [
        Problem("early", run.start_us, run.queue, f"#{run.body} came {(due_us - run.start_us) / 1000:.0f} ms too early")
        for run in runs
        if run.body in messages and (due_us := messages[run.body].due_us) > run.start_us + SLACK_US
    ]


def _again(messages: Mapping[int, Sent], runs: list[Run]) -> list[Problem]:
    problems: list[Problem] = []
    finished: dict[tuple[int, int], Run] = {}
    for run in runs:
        if run.body in messages and messages[run.body].tries > 1:
            continue
        before = finished.get((run.group_life, run.body))
        if before is not None and before.end_us < run.start_us:
            text = f"#{run.body} came to {run.member}, and {before.member} had finished it"
            problems.append(Problem("again", run.start_us, run.queue, text))
        if run.how == "done" and run.end_us - run.start_us < DRAIN_US:
            finished.setdefault((run.group_life, run.body), run)
    return problems
