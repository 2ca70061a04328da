"""Rounds with a real broker process, spoken to on both wires without any SDK: sends, acks, pulls, commits.

A group that acknowledges and one that commits offsets read everything; the checker judges what they were answered, and
`verify` the files.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.runtime.failpoints import COUNTS_VARIABLE, VARIABLE
from evenq.testing.checker import check
from evenq.testing.free_ports import FreePorts
from evenq.testing.history import HistoryAction, Op, Recorder, read_history
from evenq.testing.node import Node
from evenq_proofs.kill_loop.campaign import Campaign, Cycle, Ending, Needs, broker_points
from evenq_proofs.kill_loop.clients import BROKER, GROUPS, TOPIC, Clients
from evenq_proofs.kill_loop.store_rounds import forget, tear
from evenq_proofs.kill_loop.verifying import verified
from evenq_proofs.tolerance import tolerances

KILL_MS: Final = (30, 400)
SETTINGS: Final = {
    "HOST": "127.0.0.1", "BROKER_NAME": BROKER, "STORE__SEGMENT_BYTES": str(1 << 16), "STORE__CACHE_BYTES": "65536",
    "STORE__FLUSH_INTERVAL_MS": "20", "STORE__DISK_FREE_MIN_BYTES": "0", "STORE__DISK_USED_MAX_RATIO": "1",
    "STORE__SNAPSHOT_LOG_BYTES": "65536", "DEFAULT_GROUP_MAX_ATTEMPTS": "1000", "DEFAULT_START_FROM": "FIRST",
    "DRAIN_MS": "1000",
}  # fmt: skip


class BrokerRound:
    """One folder over several cycles."""

    def __init__(self, campaign: Campaign, folder: Path, *, flush: str) -> None:
        self.campaign = campaign
        self.folder = folder
        self.problems: list[str] = []
        self.start_ms_max = 0
        """Longest time from a process's start to its being ready, ms."""
        self._data = folder / "data"
        self._clock = SystemClock()
        folder.mkdir(parents=True)
        self._recorder = Recorder(folder / "history.jsonl", clock=self._clock)
        self._ports = FreePorts()
        self._port, self._metrics_port = self._ports.take(), self._ports.take()
        self._settings = {**SETTINGS, "STORE__FLUSH": flush, "STORE__PATH": str(self._data)}
        self._killed = False
        for group in GROUPS:
            order = "none" if group == "pop" else "queue"
            number = self._recorder.invoke(
                Op.ADMIN, action=HistoryAction.SUBSCRIBE, group=group, topic=TOPIC, order=order
            )
            self._recorder.ok(number)

    def run(self, cycles: int) -> list[str]:
        """All cycles, the drain, the verdict: what is wrong, or nothing."""
        try:
            for number in range(cycles):
                if not self.problems:
                    self._cycle(number)
            if not self.problems:
                self._last()
        finally:
            self._recorder.close()
            self._ports.close()
        if not self.problems:
            report = check(read_history(self._recorder.path), limits=tolerances())
            self.problems += [anomaly.text for anomaly in report.anomalies[:5]]
        if not self.problems:
            self.problems += verified(self._data)
        if not self.problems:
            shutil.rmtree(self.folder)
        return self.problems

    def _cycle(self, number: int) -> None:
        cycle = self.campaign.plan(broker_points(), first=number == 0, killed=self._killed, kill_ms=KILL_MS)
        if cycle.needs is Needs.TORN:
            tear(self._data, self.campaign.rng)
        elif cycle.needs is Needs.REBUILD:
            forget(self._data, self.campaign.rng)
        self._recorder.fault("kill -9", target=BROKER)
        node = self._started({VARIABLE: cycle.point} if cycle.point else {})
        ready = self._ready(node)
        if ready:
            self._talk(lambda clients: self._drive(clients, node, cycle), name=f"c{cycle.number}")
        if cycle.needs is Needs.CLEAN_STOP and node.alive:
            try:
                node.stop()
            except RequestTimeout as error:
                self.problems.append(f"cycle {cycle}: {error}")
        node.kill()
        self._killed = ready and node.exit_code == -signal.SIGKILL and cycle.needs is not Needs.CLEAN_STOP
        self.campaign.endings[cycle.ending if node.exit_code else Ending.CLEAN] += 1
        if node.exit_code not in {0, -signal.SIGKILL}:
            self.problems.append(f"cycle {cycle}: exit code {node.exit_code}; {node.log_text()[-2_000:]}")
        if "Traceback" in node.log_text():
            self.problems.append(f"cycle {cycle}: a stack trace in {node.log_path}")

    def _last(self) -> None:
        node = self._started({})
        if not self._ready(node):
            self.problems.append(f"the last start failed; {node.log_text()[-2_000:]}")
            return
        try:
            self._talk(lambda clients: clients.drain(), name="drain")
            node.stop()
        except RequestTimeout as error:
            self.problems.append(f"the drain did not end: {error}")
        finally:
            node.kill()

    def _started(self, more: dict[str, str]) -> Node:
        own = {
            f"EVENQ_BROKER_{name}": value
            for name, value in {
                **self._settings, "PORT": str(self._port), "METRICS_PORT": str(self._metrics_port)
            }.items()
        }  # fmt: skip
        node = Node(
            "evenq_broker", name=BROKER, port=self._port, metrics_port=self._metrics_port,
            log_path=self.folder / "broker.log",
            environment={**own, COUNTS_VARIABLE: str(self.campaign.counts), **more},
        )  # fmt: skip
        node.start()
        return node

    def _ready(self, node: Node) -> bool:
        begun_ms = self._clock.monotonic_ms()
        try:
            node.wait_ready()
        except ConnectionFailed:
            return False  # its exit code says whether it was killed
        except RequestTimeout as error:
            self.problems.append(str(error))
            return False
        self.start_ms_max = max(self.start_ms_max, self._clock.monotonic_ms() - begun_ms)
        return True

    def _talk(self, story: Callable[[Clients], Coroutine[Any, Any, None]], *, name: str) -> None:
        async def body() -> None:
            clients = Clients(f"127.0.0.1:{self._port}", self._recorder, self.campaign.rng, name=name)
            try:
                await story(clients)
            finally:
                await clients.close()

        asyncio.run(body())

    async def _drive(self, clients: Clients, node: Node, cycle: Cycle) -> None:
        """Work until the process is dead, or it is time to kill it."""
        work = clients.start()
        until_ms = self._clock.monotonic_ms() + cycle.wait_ms
        while node.alive and self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep_ms(5)
        if cycle.needs is not Needs.CLEAN_STOP:
            await asyncio.to_thread(node.kill)
        await clients.stop(work)
