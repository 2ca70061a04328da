"""A group whose members are processes: who reads which queue by what they say, and how long each queue had no reader."""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evenq
from evenq_live.process import Process

WAIT_S = 60.0
LOOK_S = 0.05
QUIET_S = 2.0


def topic_of_crew(queues: int) -> Callable[[evenq.Admin], None]:
    """What the cluster of a test has from the beginning: the topic `stream`, read by the group `crew`."""

    def prepare(admin: evenq.Admin) -> None:
        admin.create_topic("stream", queues=queues)
        admin.create_group("crew", strategy="STICKY", start_from="FIRST")

    return prepare


class Crew:
    """Members of one group. What they say is taken in by their readers' threads."""

    def __init__(self, *, endpoint: str, topic: str, group: str, queues: int, folder: Path, ordered: bool = False) -> None:  # fmt: skip
        self.members: dict[str, Process] = {}
        self.histories: list[Path] = []
        self.owners: dict[str, str] = {}
        self.rests: list[tuple[int, int, str]] = []
        """Of each queue that got a reader again: when, for how many ms it had none, and which queue it is."""
        self.queues = queues
        self._lost_ms: dict[str, int] = {}
        self._gained_ms: dict[str, int] = {}
        self._changed = threading.Condition()
        self._folder = folder
        self._arguments = ["--endpoint", endpoint, "--topic", topic, "--group", group]
        self._arguments += ["--ordered"] if ordered else []
        self._count = 0
        self._counted_s = 0.0

    def join(self) -> str:
        """One member more, in a new process; returns its name."""
        self._count += 1
        name = f"m{self._count:02}"
        history = self._folder / f"{name}.history.jsonl"
        self.histories.append(history)
        command = ["-m", "evenq_live.member", *self._arguments, "--name", name, "--history", str(history)]
        self.members[name] = Process(name, command, folder=self._folder, heard=self._hear)
        return name

    def leave(self, name: str) -> None:
        """SIGTERM, and wait until it has handed everything over."""
        member = self.members.pop(name)
        member.terminate()
        code = member.wait(WAIT_S)
        assert code == 0, f"{name} ended with {code}; see {member.log_path}"

    def kill(self, name: str) -> int:
        """SIGKILL. How many queues have no reader from now on."""
        member = self.members.pop(name)
        member.kill()
        at_ms = int(time.monotonic() * 1_000)
        with self._changed:
            gone = [queue for queue, owner in self.owners.items() if owner == name]
            for queue in gone:
                del self.owners[queue]
                self._lost_ms[queue] = at_ms
        return len(gone)

    def until_even(self, what: str) -> None:
        """Every queue has a reader, and no member has two more than another."""

        def even() -> bool:
            sizes = Counter(self.owners.values())
            parts = [sizes[name] for name in self.members]
            return len(self.owners) == self.queues and set(sizes) <= set(self.members) and max(parts) - min(parts) <= 1

        self.until(even, what)

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = WAIT_S) -> None:
        """Wait for it, or fail."""
        deadline_s = time.monotonic() + seconds
        with self._changed:
            while not self._changed.wait_for(condition, LOOK_S):  # not all conditions are about what members say
                assert time.monotonic() < deadline_s, (
                    f"not within {seconds:.0f} s: {what}; {len(self.owners)} of {self.queues} queues have a reader: "
                    f"{dict(Counter(self.owners.values()))}"
                )

    def until_quiet(self, what: str) -> None:
        """Every queue has a reader and for some time no member got a message: all was read."""
        self.until(lambda: len(self.owners) == self.queues, what)
        self._counted_s = time.monotonic()
        self.until(lambda: time.monotonic() - self._counted_s > QUIET_S, what)

    def rests_since(self, at_ms: int) -> list[int]:
        """How long queues had no reader, of those that got one since then, ms."""
        with self._changed:
            return [rest_ms for gained_ms, rest_ms, _ in self.rests if gained_ms >= at_ms]

    def end(self) -> None:
        """Kill what still runs."""
        for member in self.members.values():
            member.kill()

    def _hear(self, name: str, report: dict[str, Any]) -> None:
        with self._changed:
            at_ms = report["at_ms"]
            if "count" in report:
                self._counted_s = time.monotonic()
            for queue in report.get("lost", ()):
                if self.owners.get(queue) == name:
                    del self.owners[queue]
                    self._lost_ms[queue] = at_ms
                elif queue in self._gained_ms:  # its new reader's word was heard first
                    self.rests.append((self._gained_ms[queue], self._gained_ms[queue] - at_ms, queue))
            for queue in report.get("gained", ()):
                self.owners[queue] = name
                self._gained_ms[queue] = at_ms
                if queue in self._lost_ms:
                    self.rests.append((at_ms, at_ms - self._lost_ms.pop(queue), queue))
            self._changed.notify_all()


def spread(times: list[int]) -> str:
    """p50, p99 and longest."""
    if not times:
        return "none"
    return f"{len(times)}: p50 {statistics.median(times):.0f}, p99 {at99(times)}, longest {max(times)} ms"


def at99(times: list[int]) -> int:
    """The 99th percentile; the longest if they are few."""
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))] if times else 0
