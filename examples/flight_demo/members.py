"""The consumers of the demo: one group member per process, as in production.

`consume` runs in the member's process. It writes its history and sums to a folder, and JSON lines to standard output:
changes of owned queues, and its count. `MemberProcess` starts such a process and reads the lines.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import evenq
from evenq.client.options import PushOptions
from evenq.runtime.clock import Clock, SystemClock
from evenq.testing.history import HistoryAction, Op, Recorder
from flight_demo import part_command, part_environment
from flight_demo.flights import Delay
from flight_demo.publishing import queue_text
from flight_demo.report import OwnershipSpan

COUNT_EVERY = 2_000
STOP_SECONDS = 30


class DemoTally:
    """The sums of one member. Thread-safe: the listener runs in several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages = 0
        self.delays: dict[str, Delay] = {}

    def add(self, bodies: Sequence[bytes]) -> int:
        """Counts flights and returns the new total."""
        rows = [json.loads(body) for body in bodies]
        with self.lock:
            for row in rows:
                self.delays.setdefault(row["carrier"], Delay()).add(row["dep_delay"])
            self.messages += len(rows)
            return self.messages


def consume(*, endpoint: str, topic: str, group: str, member: str, folder: Path, clock: Clock) -> None:
    """Reads until SIGTERM or SIGINT, then leaves the group in order."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    tally = DemoTally()
    spoken = threading.Lock()

    def say(**fields: Any) -> None:
        with spoken:
            print(json.dumps({"member": member, "at_ms": clock.monotonic_ms(), **fields}), flush=True)

    with Recorder(folder / f"{member}.history.jsonl", clock=clock) as recorder:

        def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
            operation = recorder.invoke(Op.RECEIVE, process=member, group=group)
            recorder.ok(
                operation,
                messages=[
                    (queue_text(m.queue), int(m.queue_offset), m.properties["flight"], m.delivery_attempt)
                    for m in messages
                ],
            )
            total = tally.add([m.body for m in messages])
            if total // COUNT_EVERY != (total - len(messages)) // COUNT_EVERY:
                say(count=total)

        def moved(gained: Sequence[evenq.MessageQueue], lost: Sequence[evenq.MessageQueue]) -> None:
            for queues, action in ((lost, HistoryAction.UNLOCK), (gained, HistoryAction.LOCK)):
                for queue in queues:
                    recorder.ok(
                        recorder.invoke(Op.ADMIN, process=member, group=group, action=action, queue=queue_text(queue))
                    )
            say(gained=[queue_text(q) for q in gained], lost=[queue_text(q) for q in lost])

        recorder.ok(
            recorder.invoke(
                Op.ADMIN, process=member, group=group, action=HistoryAction.SUBSCRIBE, topic=topic, order="none"
            )
        )
        consumer = evenq.PushConsumer(
            group=group,
            endpoint=endpoint,
            listener=listen,
            subscriptions={topic: "*"},
            assignment="server",
            start_from="FIRST",
            on_rebalance=moved,
            options=PushOptions(drain_ms=10_000, commit_interval_ms=500),
        )
        consumer.start()
        say(ready=True)
        while not stop.wait(0.25):
            say(count=tally.messages)
        consumer.close()
    result = {carrier: [d.flights, d.delayed_known, d.minutes] for carrier, d in tally.delays.items()}
    (folder / f"{member}.sums.json").write_text(json.dumps({"messages": tally.messages, "delays": result}))
    say(count=tally.messages, closed=True)


def sums_of(folder: Path, member: str) -> tuple[int, dict[str, Delay]]:
    """Returns messages and delays per carrier, which a member writes at its end."""
    result = json.loads((folder / f"{member}.sums.json").read_text())
    return result["messages"], {carrier: Delay(*figures) for carrier, figures in result["delays"].items()}


class MemberProcess:
    """A member in its own process."""

    def __init__(self, name: str, *, endpoint: str, topic: str, group: str, folder: Path) -> None:
        self.name = name
        self.count = 0
        self.ownerships: list[OwnershipSpan] = []
        self._open: dict[str, int] = {}
        self._folder = folder
        self._clock = SystemClock()
        self._log = (folder / f"{name}.log").open("wb")
        target = ("--endpoint", endpoint, "--topic", topic, "--group", group)
        self.process = subprocess.Popen(
            part_command("consume", *target, "--member", name, "--folder", str(folder)),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=part_environment(),
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self.process.stdout,), name=f"demo-{name}", daemon=True
        )
        self._reader.start()

    @property
    def history(self) -> Path:
        return self._folder / f"{self.name}.history.jsonl"

    @property
    def queues(self) -> int:
        return len(self._open)

    def leave(self) -> None:
        """Stops the member, or kills it after STOP_SECONDS. Raises InternalError, which names its log."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        now = self._clock.monotonic_ms()
        for queue, begin in self._open.items():
            self.ownerships.append(OwnershipSpan(queue, self.name, begin, now))
        self._open.clear()
        if code != 0:
            raise evenq.errors.InternalError(f"member {self.name} ended with {code}; see {self._log.name}")

    def sums(self) -> tuple[int, dict[str, Delay]]:
        """Returns messages and delays per carrier, after its end."""
        return sums_of(self._folder, self.name)

    def _read(self, output: IO[str]) -> None:
        for line in output:
            said = json.loads(line)
            self.count = said.get("count", self.count)
            for queue in said.get("lost", ()):
                begin = self._open.pop(queue, None)
                if begin is not None:
                    self.ownerships.append(OwnershipSpan(queue, self.name, begin, said["at_ms"]))
            for queue in said.get("gained", ()):
                self._open[queue] = said["at_ms"]
