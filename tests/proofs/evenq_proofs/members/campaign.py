"""A run in slots: in each a member joins, a broker stops (SIGTERM) and starts again, and the oldest member ends.

Members end by SIGKILL and by a close in turn, in two of five slots while the broker is away, otherwise after it is back.
Each sender repeats a message until it is answered with OK, and sends the next one of its message group only then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import evenq
from evenq.testing import LocalCluster
from evenq_proofs.members import judging
from evenq_proofs.members.clients import Client, Commands, Load, now_us
from evenq_proofs.members.judging import Delivery, Hidden, HiddenTimes

BROKERS: Final = 3
HIDDEN_MS_MAX: Final = 15_000
ORDERED, NORMAL = "members-ordered", "members-normal"
GROUPS: Final = {ORDERED: "members-fifo", NORMAL: "members-normal-topic"}
AWAY_S: Final = 2.0
"""Between a broker's end and its start, longer than the three tries of a send."""
AFTER_S: Final = 3.0
"""From one event of a slot to the next."""
WHILE_AWAY: Final = (2, 4)
"""Slots of each five. In 14 slots each of three SDKs ends in each of the four ways, but for one."""
IDLE_S: Final = 90.0
"""What has not come after so long without anything new is lost."""


class Stop(NamedTuple):
    """A broker that was stopped and started."""

    broker: str
    exit_code: int
    stop_ms: int
    away_ms: int
    """From SIGTERM until it was ready again."""


class Ended(NamedTuple):
    """A member that ended."""

    client: Client
    how: str
    """`kill` or `close`, and what was away."""
    took_ms: int


@dataclass(slots=True)
class Campaign:
    """See the module. `run` once."""

    folder: Path
    sdks: tuple[str, ...]
    stops: int = 14
    minutes: float = 15
    hidden_ms_max: int = HIDDEN_MS_MAX
    say: Callable[[str], None] = lambda _: None
    stopped: list[Stop] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)
    _members: deque[Client] = field(default_factory=deque)
    _senders: list[Client] = field(default_factory=list)

    def run(self) -> list[str]:
        """What is wrong, or nothing."""
        commands = Commands(self.sdks, self.folder / "peers")
        with LocalCluster(brokers=BROKERS, folder=self.folder) as cluster:
            with evenq.Admin(endpoint=cluster.endpoints) as admin:
                for group, topic in GROUPS.items():
                    admin.create_topic(topic, queues=4, message_type="FIFO" if group == ORDERED else "NORMAL")
                    admin.create_group(group, ordered=group == ORDERED, start_from="FIRST", max_attempts=1_000)
            load = Load(cluster.endpoints, GROUPS, streams=4, pace_ms=500, work_ms=200)
            try:
                self._start(commands, load)
                for number in range(self.stops):
                    self._slot(number, cluster, commands, load)
                self._finish()
            finally:
                for client in self._clients:
                    client.end(self.folder / "peers")
            self.problems += [
                f"a stack trace in {node.log_path}" for node in cluster.nodes if "Traceback" in node.log_text()
            ]
        self._judge()
        return self.problems

    def _start(self, commands: Commands, load: Load) -> None:
        for sdk in self.sdks:
            self._join(commands, load, sdk)
        self._senders = [Client(commands, load, sdk, f"send-{sdk}", sends=True) for sdk in self.sdks]
        self._clients += self._senders
        for sender in self._senders:
            sender.wait_ready()

    def _join(self, commands: Commands, load: Load, sdk: str) -> None:
        count = sum(client not in self._senders for client in self._clients)
        member = Client(commands, load, sdk, f"{sdk}-{count}", sends=False)
        self._clients.append(member)
        self._members.append(member)
        member.wait_ready()

    def _slot(self, number: int, cluster: LocalCluster, commands: Commands, load: Load) -> None:
        end = time.monotonic() + self.minutes * 60 / self.stops
        node = cluster.brokers[number % BROKERS]
        self._join(commands, load, self.sdks[number % len(self.sdks)])
        wait(AFTER_S)
        begun = now_us()
        code = node.stop()
        gone = now_us()
        while_away = number % 5 in WHILE_AWAY
        if while_away:
            self._end_oldest(number, f"{node.name} away")
        wait(AWAY_S)
        node.start()
        node.wait_ready()
        self.stopped.append(Stop(node.name, code, (gone - begun) // 1_000, (now_us() - begun) // 1_000))
        self.say(f"slot {number}: {self.stopped[-1]}; {self._acknowledged()} acknowledged")
        if not while_away:
            wait(AFTER_S)
            self._end_oldest(number, "")
        wait(max(0.0, end - time.monotonic()))

    def _end_oldest(self, number: int, away: str) -> None:
        member = self._members.popleft()
        if number % 2 == 0:
            member.kill()
            ended = Ended(member, f"kill {away}".strip(), 0)
        else:
            ended = Ended(member, f"close {away}".strip(), member.leave())
        self.ended.append(ended)
        self.say(f"slot {number}: {member.name} {ended.how} {ended.took_ms} ms")

    def _finish(self) -> None:
        for sender in self._senders:
            sender.stop_sending()
        left, since = self._missing(), time.monotonic()
        while left and time.monotonic() - since < IDLE_S:
            wait(0.5)
            if (now := self._missing()) < left:
                left, since = now, time.monotonic()
        for member in self._members:
            member.kill()

    def _acknowledged(self) -> int:
        return sum(len(sender.sent()) for sender in self._senders)

    def _missing(self) -> int:
        return sum(len(judging.lost(self._sent(group), self._deliveries(group))) for group in GROUPS)

    def _sent(self, group: str) -> dict[str, int]:
        sent = {body: at for sender in self._senders for body, at in sender.sent().items()}
        return {body: at for body, at in sent.items() if ("-normal-" in body) == (group == NORMAL)}

    def _deliveries(self, group: str) -> list[Delivery]:
        return [one for client in self._clients for one in client.deliveries(group)]

    def hidden(self) -> list[tuple[Ended, dict[str, HiddenTimes]]]:
        """Each end with the times of each group."""
        sent = {group: self._sent(group) for group in GROUPS}
        came = {group: self._deliveries(group) for group in GROUPS}
        return [
            (
                ended,
                {
                    group: judging.hidden_times(end, sent[group], came[group])
                    for group, end in zip(GROUPS, ended.client.ends, strict=True)
                },
            )
            for ended in self.ended
        ]

    def _judge(self) -> None:
        for group in GROUPS:
            if lost := judging.lost(self._sent(group), self._deliveries(group)):
                self.problems.append(f"{group}: {len(lost)} lost: {lost[:5]}")
        if late := judging.late(self._deliveries(ORDERED)):
            self.problems.append(f"{len(late)} late: {late[:5]}")
        for ended, groups in self.hidden():
            for group, times in groups.items():
                long = [one for one in times.held if one.ms > self.hidden_ms_max]
                self.problems += [
                    f"{group}: {one.body} hidden for {one.ms} ms after {ended.client.name}'s {ended.how}"
                    for one in long[:3]
                ]
        self.problems += [f"{stop.broker} ended with {stop.exit_code}" for stop in self.stopped if stop.exit_code]

    def text(self) -> str:
        """For people."""
        lines = []
        for group in GROUPS:
            came = self._deliveries(group)
            late = f", late {len(judging.late(came))}" if group == ORDERED else ""
            lost = len(judging.lost(self._sent(group), came))
            lines.append(
                f"{group}: {len(self._sent(group)):,} acknowledged, lost {lost}{late}, {judging.repeats(came)} repeated"
            )
        lines += [
            f"{stop.broker} stopped within {stop.stop_ms} ms, ready {stop.away_ms} ms after SIGTERM"
            for stop in self.stopped
        ]
        held: list[Hidden] = []
        waiting: list[Hidden] = []
        for ended, groups in self.hidden():
            parts = [
                f"{group}: {spread(times.held)} held, {spread(times.waiting)} waiting"
                for group, times in groups.items()
            ]
            held += [one for times in groups.values() for one in times.held]
            waiting += [one for times in groups.values() for one in times.waiting]
            lines.append(f"{ended.client.name} {ended.how} ({ended.took_ms} ms): {'; '.join(parts)}")
        lines += [f"all ends: {spread(held)} held; {spread(waiting)} waiting", *self._refusal_lines()]
        verdict = "; ".join(self.problems) or f"lost 0, late 0, hidden at most {self.hidden_ms_max} ms"
        return "\n".join([*lines, f"verdict: {verdict}"]) + "\n"

    def _refusal_lines(self) -> list[str]:
        """Errors that the senders of each SDK got, with their number and the longest call."""
        lines = []
        for sender in self._senders:
            refusals = sender.refusals()
            longest = max((int(one["took_ms"]) for one in refusals), default=0)
            answered = max((int(one["took_ms"]) for one in sender.peer.of("sent")), default=0)
            lines.append(
                f"{sender.name}: {len(refusals)} sends refused, the longest call {longest} ms; of a send that was "
                f"acknowledged {answered} ms"
            )
            counted = Counter(str(one["why"]) for one in refusals)
            lines += [f"    {count} x {why[:600]}" for why, count in counted.most_common(4)]
        return lines


def spread(times: Sequence[Hidden]) -> str:
    """`NUMBER (MEDIAN, LONGEST ms)`."""
    ms = sorted(one.ms for one in times)
    return f"{len(ms)} ({ms[len(ms) // 2]}, {ms[-1]} ms)" if ms else "0"


def wait(seconds: float) -> None:
    """The pace of the run; nothing is expected of it."""
    threading.Event().wait(seconds)
