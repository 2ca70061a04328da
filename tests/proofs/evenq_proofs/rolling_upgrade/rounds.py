"""Rounds of a rolling upgrade with the rules of a StatefulSet: the highest pod first; SIGTERM and a grace time; its new
version starts on the same data; the next pod when all are ready, and nothing else is waited for.

So what keeps the group whole is its own: it is ready when it is in sync, a leader hands over before it ends. Rounds go
from the old version to the new one and back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq_proofs.rolling_upgrade.judging import Outcome
from evenq_proofs.rolling_upgrade.load import Load
from evenq_proofs.rolling_upgrade.versions import Version

COPIES: Final = 3
GRACE_MS: Final = 30_000
"""The chart's terminationGraceSeconds."""
STALL_MS_MAX: Final = 1_000
SETTLE_MS: Final = 1_000
"""A stall that begins so soon after a pod is ready is of its replacement."""
READY_S: Final = 120.0


class PodTurn(NamedTuple):
    """One pod that was replaced. Times are ms."""

    round: int
    pod: str
    led: bool
    to: str
    """The version that it has now."""
    begun_ms: int
    ready_ms: int
    stop_took_ms: int


@dataclass(slots=True)
class RollingUpgrade:
    """See the module. `run` once."""

    folder: Path
    old: Version
    new: Version
    rounds: int = 20
    mode: str = "sync"
    stall_ms_max: int = STALL_MS_MAX
    """Of one pod, of all senders together."""
    say: Callable[[str], None] = lambda _: None
    turns: list[PodTurn] = field(default_factory=list)
    stalls_ms: list[tuple[int, int]] = field(default_factory=list)
    """Of each turn: of all streams together, and of one stream."""
    outcome: Outcome = field(default_factory=Outcome)
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """What is wrong, or nothing."""
        settings = {"REPLICATION__MODE": self.mode}
        cluster = LocalCluster(
            replicas=COPIES, nameservers=2, rebalancer=False, folder=self.folder, broker_settings=settings
        )
        for node in cluster.nodes:
            node.environment.update(self.old.environment())
        with cluster:
            self._until_ready(cluster)
            with Load(cluster.endpoints) as load:
                load.wait_for(200)
                for number in range(self.rounds):
                    self._round(cluster, load, number)
                self.outcome = load.finish()
                for text in load.unfinished[:20]:
                    self.say(f"not acknowledged: {text}")
                self.stalls_ms = [load.stalls_ms(turn.begun_ms, turn.ready_ms + SETTLE_MS) for turn in self.turns]
            self.problems += [
                f"a stack trace in {node.log_path}" for node in cluster.nodes if "Traceback" in node.log_text()
            ]
        self.problems += self.outcome.problems
        self.problems += [
            f"round {turn.round}, {turn.pod}: no message was acknowledged for {together} ms"
            for turn, (together, _) in zip(self.turns, self.stalls_ms, strict=True)
            if together > self.stall_ms_max
        ]
        return self.problems

    def _round(self, cluster: LocalCluster, load: Load, number: int) -> None:
        version = self.old if number % 2 else self.new
        for node in cluster.nameservers:
            self._replace(cluster, node, version, number)
        for node in reversed(cluster.brokers):
            load.wait_for(50)  # everybody works again
            record = _record_of(cluster)
            if len(record["isr"]) < COPIES:
                self.problems.append(
                    f"round {number}: {node.name} stops while only {sorted(record['isr'])} are in sync, and all are ready"
                )
            leads = node is cluster.brokers[record["leader"]]
            turn = self._replace(cluster, node, version, number, leads=leads)
            self.turns.append(turn)
            together, one = load.stalls_ms(turn.begun_ms, _now_ms())
            self.say(
                f"round {number}: {turn.pod}{', which led,' if turn.led else ''} has {turn.to}; ended in "
                f"{turn.stop_took_ms} ms, ready after {turn.ready_ms - turn.begun_ms} ms; longest time without an "
                f"acknowledgement {together} ms, of one sender {one} ms; {load.acknowledged} acknowledged"
            )

    def _replace(
        self, cluster: LocalCluster, node: Node, version: Version, number: int, *, leads: bool = False
    ) -> PodTurn:
        begun_ms = _now_ms()
        code = node.stop(timeout_ms=GRACE_MS)
        stopped_ms = _now_ms()
        if code:
            self.problems.append(f"round {number}: {node.name} {node.end_text}")
        node.environment.update(version.environment())
        node.start()
        node.wait_ready(timeout_ms=int(READY_S * 1_000))
        self._until_ready(cluster)
        return PodTurn(number, node.name, leads, version.name, begun_ms, _now_ms(), stopped_ms - begun_ms)

    def _until_ready(self, cluster: LocalCluster) -> None:
        for node in cluster.brokers:
            node.wait_ready(timeout_ms=int(READY_S * 1_000))

    def text(self) -> str:
        """For people."""
        together = sorted(stall for stall, _ in self.stalls_ms) or [0]
        of_one = sorted(stall for _, stall in self.stalls_ms) or [0]
        led = sum(turn.led for turn in self.turns)
        verdict = "; ".join(self.problems) or "0 lost, 0 repeated, 0 reordered, never a second one down"
        return (
            f"{self.rounds} rounds, {len(self.turns)} pods replaced ({led} led), {self.old.name} and {self.new.name} in "
            f"turn, mode {self.mode}; {self.outcome.acknowledged:,} messages acknowledged, {self.outcome.refused} refused\n"
            f"write stall of a pod: median {together[len(together) // 2]} ms, longest {together[-1]} ms; of one sender "
            f"median {of_one[len(of_one) // 2]} ms, longest {of_one[-1]} ms\nverdict: {verdict}\n"
        )


def _record_of(cluster: LocalCluster) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((cluster.folder / "broker-a.group").read_bytes())
    return record


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
