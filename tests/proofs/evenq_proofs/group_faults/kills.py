"""The kill loop of reliability T3 for groups of copies: SIGKILL of leader, followers and the record's place, under load.

A cycle kills a process, at a random moment or at a failpoint that was armed at its last start, and brings it back; some
come back with an empty disk. A round is a group over several cycles; at its end everything is drained and judged as in
`campaign`.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evenq.runtime.failpoints import COUNTS_VARIABLE, POINTS, VARIABLE, read_counts
from evenq.testing.checker import Tolerances, check
from evenq.testing.history import Recorder, read_history
from evenq_proofs.group_faults.campaign import ALL_OF_IT, drained, equal_logs, subscribe
from evenq_proofs.group_faults.clients import GroupClients, acks_of_deposed
from evenq_proofs.group_faults.places import MEMBERS
from evenq_proofs.group_faults.stage import BROKERS, GROUP, Stage
from evenq_proofs.kill_loop.campaign import SINK_ONLY
from evenq_proofs.waiting import until

KINDS: Final[Mapping[str, int]] = {
    "leader": 6, "leader with its disk": 2, "follower": 3, "follower with its disk": 1, "place": 2, "leader and place": 2,
    "everybody": 1,
}  # fmt: skip
"""Who dies, and how often of 17."""
MEMBER_KINDS: Final[Mapping[str, int]] = {
    "member killed": 2,
    "member paused": 2,
    "two members killed": 1,
    "leader and member paused": 2,
}
"""The same of a place of several members; what is paused goes on when whoever died is started."""
ROUND_CYCLES: Final = 12
KILL_S: Final = (0.2, 1.5)
POINT_SHARE: Final = 0.5
"""Of the starts, those with an armed failpoint."""
POINT_AT_MAX: Final = 40
AGAIN_S: Final = 120
"""The group answers again: where two copies died, not before one of them is started, which a busy machine does slowly."""
NEVER: Final = (*SINK_ONLY, "retention.", "index.removing", "close.", "recovery.rebuilding")
"""Points that are not passed in a round: nothing is old enough to go, no process is stopped, no derived file is lost."""


@dataclass(slots=True)
class GroupKills:
    """See the module. `run` once."""

    folder: Path
    cycles: int
    seed: int = 1
    mode: str = "sync"
    record: str = "lease"
    """Where the group record stands, one of `places.RECORDS`."""
    say: Callable[[str], None] = lambda _: None
    killed: Counter[str] = field(default_factory=Counter)
    promises: int = 0
    elections: int = 0
    slowest_ms: int = 0
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """What is wrong, or nothing."""
        rng, number = random.Random(self.seed), 0
        while (left := self.cycles - sum(self.killed.values())) > 0 and not self.problems:
            number += 1
            folder = self.folder / f"round-{number}"
            _Round(self, folder, rng).run(min(ROUND_CYCLES, left))
            if not self.problems:
                shutil.rmtree(folder)
        return self.problems

    @property
    def hits(self) -> dict[str, int]:
        """How often each point that a member of a group can pass has ended one."""
        counted = read_counts(self.counts)
        return {name: counted[name].hit for name in POINTS if not name.startswith(NEVER)}

    @property
    def counts(self) -> Path:
        """Where all processes count their failpoints."""
        return self.folder / "failpoints"

    def armed(self, rng: random.Random) -> str:
        """A failpoint for a process that is about to start, or nothing."""
        if rng.random() >= POINT_SHARE:
            return ""
        counted = read_counts(self.counts)
        known = [name for name in POINTS if not name.startswith(NEVER)]
        fewest = min(counted[name].hit for name in known)
        name = rng.choice([name for name in known if counted[name].hit <= fewest])
        passed = counted[name].passed // max(1, sum(self.killed.values()))
        return f"{name}:{1 + rng.randrange(max(1, min(POINT_AT_MAX, passed)))}"

    def text(self) -> str:
        """For people."""
        hit = {name: hits for name, hits in self.hits.items() if hits}
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.killed.items()))
        verdict = (
            "; ".join(self.problems) or "0 lost, 0 repeated after an acknowledged ack, 0 answers of a deposed leader"
        )
        return (
            f"{sum(self.killed.values())} cycles ({kinds}); at failpoints {sum(hit.values())} ({len(hit)} of "
            f"{len(self.hits)} points); {self.promises:,} sends, acks and commits acknowledged, {self.elections} elections; "
            f"slowest recovery {self.slowest_ms} ms; seed {self.seed}, mode {self.mode}, record {self.record}\nverdict: {verdict}\n"
        )


class _Round:
    """One group over several cycles."""

    def __init__(self, whole: GroupKills, folder: Path, rng: random.Random) -> None:
        self.whole, self.folder, self.rng = whole, folder, rng
        self.stage = Stage(folder, rng, mode=whole.mode, record=whole.record)

    def run(self, cycles: int) -> None:
        """All cycles, the drain, the verdict."""
        whole, stage = self.whole, self.stage
        with stage:
            with Recorder(self.folder / "history.jsonl", clock=stage.clock) as recorder:
                subscribe(recorder)
                stage.wait_in_sync()
                clients = GroupClients([node.address for node in stage.brokers], recorder, self.rng)
                try:
                    self._until_more(clients, 30)
                    recorder.fault(ALL_OF_IT, target=GROUP)
                    for _ in range(cycles):
                        self._cycle(recorder, clients)
                    self._disarm()
                finally:
                    clients.stop()
                recorder.heal(ALL_OF_IT, target=GROUP)
                drained(stage, recorder)
            whole.problems += stage.problems()
            whole.elections += len(stage.elections())
            whole.promises += clients.acknowledged
            whole.problems += acks_of_deposed(clients.answers.acknowledged, stage.elections())[:5]
            stage.stop()
            whole.problems += equal_logs(stage)
        report = check(read_history(self.folder / "history.jsonl"), limits=Tolerances(recovery_ms_max=AGAIN_S * 1_000))
        whole.slowest_ms = max([whole.slowest_ms, *(fault.rto_ms or 0 for fault in report.faults)])
        whole.problems += [f"{anomaly.kind}: {anomaly.text}; {self.folder}" for anomaly in report.anomalies[:10]]

    def _cycle(self, recorder: Recorder, clients: GroupClients) -> None:
        kinds = KINDS if self.whole.record == "lease" else {**KINDS, **MEMBER_KINDS}
        kind = self.rng.choices([*kinds], [*kinds.values()])[0]
        threading.Event().wait(self.rng.uniform(*KILL_S))  # so that some die at their failpoints first
        self.whole.say(f"{kind}; {self.stage.state()}, {clients.acknowledged} acknowledged")
        recorder.fault(kind, target=GROUP)
        dead = self._victims(kind)
        if "disk" in kind:
            self._whole_again()  # a disk may go while the others have what was promised, not two at once
            dead = self._victims(kind)
        if "place" in kind or kind == "everybody":
            self.stage.place.kill()
        if "member" in kind:
            members = self.rng.sample(range(MEMBERS), 2 if "two" in kind else 1)
            self.stage.place.take(members, "killed" if "killed" in kind else "paused")
        for broker in dead:
            self.stage.brokers[broker].kill()
            if "disk" in kind:
                shutil.rmtree(self.stage.folder_of(broker))
        threading.Event().wait(self.rng.uniform(0.0, 2.0))  # how long they are away
        self._back()
        self._until_more(clients, 20)
        recorder.heal(kind, target=GROUP)
        self.whole.killed[kind] += 1

    def _victims(self, kind: str) -> list[int]:
        leader = max(0, self.stage.state().leader)
        if kind == "everybody":
            return [*BROKERS]
        if kind.startswith("follower"):
            return [self.rng.choice(self.stage.followers())]
        return [leader] if kind.startswith("leader") else []

    def _back(self, *, arm: bool = True) -> None:
        """Start each process that is dead, some with an armed failpoint."""
        if not self.stage.place.running:
            self.stage.place.start()
        for node in self.stage.brokers:
            if not node.alive:
                if node.exit_code not in {None, -9}:
                    self.whole.problems.append(f"{node.name} {node.end_text}: {node.log_text()[-2_000:]}")
                node.environment.pop(VARIABLE, None)
                node.environment[COUNTS_VARIABLE] = str(self.whole.counts)
                if arm and (point := self.whole.armed(self.rng)):
                    node.environment[VARIABLE] = point
                node.start()

    def _until_more(self, clients: GroupClients, count: int) -> None:
        """The group answers again; who dies at its failpoint meanwhile is started without one."""
        goal = clients.acknowledged + count

        def answers() -> bool:
            self._back(arm=False)
            return clients.acknowledged >= goal

        until(answers, f"{count} more answers; {self.stage.state()}", seconds=AGAIN_S)

    def _disarm(self) -> None:
        """A process that may still die at a failpoint dies now: the drain is to be in peace."""
        self._whole_again()
        for node in self.stage.brokers:
            if VARIABLE in node.environment:
                node.kill()
                self._whole_again()

    def _whole_again(self) -> None:
        """All three run without armed failpoints and are in sync."""
        end = time.monotonic() + AGAIN_S
        while not self.stage.is_whole():
            self._back(arm=False)
            assert time.monotonic() < end, f"not whole within {AGAIN_S} s: {self.stage.state()}"
            time.sleep(0.05)
