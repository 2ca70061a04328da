"""One run over shapes of broken links: each is applied again and again under senders and receivers, then all is judged.

Judged are the history (lost, repeated after an acknowledged ack, one place with two messages, how soon the group
answers again), the answers of deposed leaders, and the files of the three copies, which must be the same byte by byte.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evenq.errors import Error
from evenq.testing.checker import Tolerances, check
from evenq.testing.history import HistoryAction, Op, Recorder, read_history
from evenq_proofs.group_faults.clients import GroupClients, acks_of_deposed
from evenq_proofs.group_faults.shapes import SHAPES
from evenq_proofs.group_faults.stage import GROUP, Stage
from evenq_proofs.kill_loop.clients import GROUPS, TOPIC, Clients
from evenq_proofs.waiting import until

RECOVERY_MS_MAX: Final = 30_000
ALL_OF_IT: Final = "all of it"
"""A fault of the history that lasts from the first to the last: an election or a refusal may come long after what caused
it has ended, and what was not acknowledged then comes again, as it may.
"""
REST_S: Final = 1.0
"""Of work in peace behind each recovery."""
DRAIN_S: Final = 120.0


@dataclass(slots=True)
class FaultRun:
    """See the module. `run` once; then the figures are whole."""

    folder: Path
    shapes: Sequence[str]
    seconds: float
    """For each shape."""
    seed: int = 1
    mode: str = "sync"
    record: str = "lease"
    """Where the group record stands, one of `places.RECORDS`."""
    say: Callable[[str], None] = lambda _: None
    applied: Counter[str] = field(default_factory=Counter)
    promises: int = 0
    """Sends, acks and commits that were answered OK."""
    elections: int = 0
    events: int = 0
    slowest_ms: int = 0
    """From the end of a fault to the first call that worked, the longest."""
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """What is wrong, or nothing; then the folder may go."""
        rng = random.Random(self.seed)
        with Stage(self.folder, rng, mode=self.mode, record=self.record) as stage:
            with Recorder(self.folder / "history.jsonl", clock=stage.clock) as recorder:
                subscribe(recorder)
                stage.wait_in_sync()
                clients = GroupClients([node.address for node in stage.brokers], recorder, rng)
                try:
                    _until_more(clients, 50)
                    recorder.fault(ALL_OF_IT, target=GROUP)
                    for name in self.shapes:
                        self._play(stage, clients, recorder, rng, name)
                finally:
                    stage.mend()
                    clients.stop()
                stage.wait_in_sync()
                recorder.heal(ALL_OF_IT, target=GROUP)
                drained(stage, recorder)
            self.problems += stage.problems()
            self.elections = len(stage.elections())
            self.promises = clients.acknowledged
            self.problems += acks_of_deposed(clients.answers.acknowledged, stage.elections())[:5]
            stage.stop()
            self.problems += equal_logs(stage)
        self._judge()
        return self.problems

    def _play(self, stage: Stage, clients: GroupClients, recorder: Recorder, rng: random.Random, name: str) -> None:
        """One shape for its time."""
        shape, end = SHAPES[name], time.monotonic() + self.seconds
        while time.monotonic() < end:
            leader, over = stage.state().leader, time.monotonic() + rng.uniform(*shape.lasts_s)
            self.say(f"{name}: {shape.says}; {stage.state()}")
            recorder.fault(name, target=GROUP)
            shape.breaks(stage, leader)
            turn = 0
            while (left := over - time.monotonic()) > 0:
                threading.Event().wait(min(left, shape.again_s))  # the rhythm of the fault
                if shape.again is not None:
                    shape.again(stage, leader, turn)
                    turn += 1
            stage.mend()
            self.applied[name] += 1
            _until_more(clients, 20)
            recorder.heal(name, target=GROUP)
            threading.Event().wait(REST_S)
        stage.wait_in_sync()

    def _judge(self) -> None:
        limits = Tolerances(recovery_ms_max=RECOVERY_MS_MAX)
        report = check(read_history(self.folder / "history.jsonl"), limits=limits)
        self.events = report.events
        self.slowest_ms = max((fault.rto_ms or 0 for fault in report.faults), default=0)
        self.problems += [f"{anomaly.kind}: {anomaly.text}" for anomaly in report.anomalies[:10]]

    def text(self) -> str:
        """For people."""
        applied = ", ".join(f"{name} x {count}" for name, count in self.applied.items())
        verdict = (
            "; ".join(self.problems) or "0 lost, 0 repeated after an acknowledged ack, 0 answers of a deposed leader"
        )
        return (
            f"{applied}\n{self.promises:,} sends, acks and commits acknowledged, {self.elections} elections, "
            f"{self.events:,} events; slowest recovery {self.slowest_ms} ms; seed {self.seed}, mode {self.mode}, "
            f"record {self.record}\nverdict: {verdict}\n"
        )


def subscribe(recorder: Recorder) -> None:
    """The groups of the clients, for the checker."""
    for group in GROUPS:
        order = "none" if group == "pop" else "queue"
        recorder.ok(recorder.invoke(Op.ADMIN, action=HistoryAction.SUBSCRIBE, group=group, topic=TOPIC, order=order))


def drained(stage: Stage, recorder: Recorder) -> None:
    """Everything is received, pulled and scanned at the leader. Raises AssertionError."""

    async def once(address: str) -> None:
        clients = Clients(address, recorder, random.Random(0), name="drain")
        try:
            await clients.drain()
        finally:
            await clients.close()

    end = time.monotonic() + DRAIN_S
    while True:
        try:
            return asyncio.run(once(stage.brokers[stage.state().leader].address))
        except Error as error:
            if time.monotonic() > end:
                raise AssertionError(f"not drained within {DRAIN_S} s") from error
            time.sleep(0.2)


def equal_logs(stage: Stage) -> list[str]:
    """I4 on disk: after a stop in order, what the three logs hold at the same place is the same."""
    logs = [_log_of(stage.folder_of(broker)) for broker in range(len(stage.brokers))]
    common = sorted(set(logs[0]) & set(logs[1]) & set(logs[2]))
    if not common:
        return [f"the copies have no log file in common: {[sorted(log) for log in logs]}"]
    differing = []
    for name in common:
        parts = [log[name].read_bytes().rstrip(b"\0") for log in logs]
        shortest = min(map(len, parts))
        if len({part[:shortest] for part in parts}) != 1:
            differing.append(f"{name} differs between the copies")
    return differing


def _log_of(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted((folder / "commitlog").iterdir()) if path.is_file()}


def _until_more(clients: GroupClients, count: int) -> None:
    """The group answers again."""
    goal = clients.acknowledged + count
    until(lambda: clients.acknowledged >= goal, f"{count} more answers", seconds=90)
