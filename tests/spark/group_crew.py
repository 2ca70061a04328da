"""Who shares a group in `test_06_group`: two kinds of Spark jobs' ends, a consumer of our SDK and the official one.

Each is a process that joins, leaves and is killed on the word of the test, and knows what it read: the numbers of messages
in chunks, each with the moment, and what of it may be read again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.spark.waiting import within

PEERS, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "live"))
from evenq_live.process import Process  # noqa: E402

WAIT_S = 400.0
"""A driver starts a JVM, and a busy machine may need several tries for the runner of a query."""


class Ended(StrEnum):
    """How a job is stopped, in turn."""

    BETWEEN = "between two batches"
    ANY_MOMENT = "query.stop() at any moment"
    SIGTERM = "SIGTERM to the driver"


class Member:
    """One member in a process, which comes and goes on the word of the test. Commands are given by its own thread."""

    def __init__(self, name: str, command: list[str], *, folder: Path, stays: bool) -> None:
        self.name, self.joined, self.batch_ms = name, False, 0
        self.changes = 0
        self._stays = stays
        """True: the process outlives its membership, as a driver does."""
        self._command, self._folder = command, folder
        self._said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._process: Process | None = None
        self._changing: threading.Thread | None = None
        self.problem = ""
        self.troubles: list[dict[str, Any]] = []
        """What it wrote of calls that failed, for people."""

    def prepare(self) -> None:
        self._process = Process(self.name, self._command, folder=self._folder, heard=self._hear)
        self._until("ready")

    def toggle(self) -> bool:
        """Join or leave, in the background; False: it is at it already."""
        if self.busy:
            return False
        self._changing = threading.Thread(target=self._leave if self.joined else self._join, daemon=True)
        self._changing.start()
        return True

    @property
    def busy(self) -> bool:
        return self._changing is not None and self._changing.is_alive()

    def settle(self, *, joined: bool) -> None:
        if self._changing is not None:
            self._changing.join(WAIT_S)
        assert not self.problem, f"{self.name}: {self.problem}"
        if self.joined is not joined:
            assert self.toggle()
            self.settle(joined=joined)

    def kill(self) -> None:
        """SIGKILL, with everything that it started."""
        assert self._process is not None
        for pid in descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process, self.joined = None, False

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def _join(self) -> None:
        if self._process is None:
            self.prepare()
        if self._stays:
            self._say("start", "started")
        self.joined = True
        self.changes += 1

    def _leave(self, word: str = "stop") -> None:
        assert self._process is not None
        result = self._say(word, "stopped", "done")
        self.problem = result.get("failed", "")
        self.batch_ms = max(self.batch_ms, result.get("batch_ms", 0))
        if not self._stays:
            self._process.wait(WAIT_S)
            self._process = None
        self.joined = False
        self.changes += 1

    def _say(self, line: str, *answers: str) -> dict[str, Any]:
        assert self._process is not None
        with self._changed:
            self._said.clear()
        self._process.say(line)
        return self._until(*answers)

    def _until(self, *answers: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((reported for reported in self._said if any(word in reported for word in answers)), None)

        with self._changed:
            if not self._changed.wait_for(found, WAIT_S):
                self.problem = f"did not say {answers} within {WAIT_S:.0f} s, see {self.name}.log"
            return found() or {}

    def _hear(self, _name: str, report: dict[str, Any]) -> None:
        with self._changed:
            if "unacked" in report or report.get("failed"):
                self.troubles.append(report | {"at_ms": time.monotonic_ns() // 1_000_000})
            if "got" not in report:
                self._said.append(report)
            self._changed.notify_all()


class Reader(Member):
    """A member, and the chunks that it read: numbers of messages, and when (monotonic ms)."""

    def chunks(self) -> list[list[tuple[int, int]]]:
        raise NotImplementedError

    def last_batch(self) -> Callable[[], set[int]]:
        """What may come again after its kill: asked for now that it is dead, had when it has come back and worked that off."""
        raise NotImplementedError

    def cut_off(self) -> set[int]:
        """What stops cut off, so that it was read without a report; nothing of a consumer."""
        return set()


class SparkJob(Reader):
    def __init__(self, name: str, options: dict[str, str], *, folder: Path) -> None:
        self._out = folder / name
        self.stops: list[Ended] = []
        self.cut: list[int] = []
        """Batches that were not done when the job was stopped: in the log of offsets, and not in that of commits."""
        options = options | {"checkpointLocation": str(self._out / "checkpoint")}
        command = [str(PEERS / "group_members.py"), "spark", json.dumps(options), str(self._out)]
        super().__init__(name, command, folder=folder, stays=True)

    def chunks(self) -> list[list[tuple[int, int]]]:
        done = {int(file.stem): int(file.read_text()) for file in (self._out / "rows").glob("*.done")}
        return [[(number, done[batch]) for number in sorted(self._rows(batch))] for batch in sorted(done)]

    def cut_off(self) -> set[int]:
        return {number for batch in self.cut for number in self._rows(batch)}

    def last_batch(self) -> Callable[[], set[int]]:
        """Spark logs a batch, then tells the source that the one before has ended, then runs it: until a batch writes rows
        the end of the one before may not have been reported.
        """
        last = self._newest("offsets")
        batches = [last] if (self._out / "rows" / str(last)).exists() else [last - 1, last]
        return lambda: set[int]().union(*map(self._rows, batches))

    def _leave(self) -> None:
        ended = list(Ended)[len(self.stops) % len(Ended)]
        if ended is Ended.SIGTERM:
            self._terminate()
        else:
            super()._leave("stop between" if ended is Ended.BETWEEN else "stop")
        self.stops.append(ended)
        if (last := self._newest("offsets")) > self._newest("commits"):
            self.cut.append(last)

    def _terminate(self) -> None:
        assert self._process is not None
        family = descendants(self._process.pid)
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._process, self.joined = None, False
        if not within(WAIT_S, lambda: not any(map(lives, family))):
            self.problem = f"SIGTERM did not end {[pid for pid in family if lives(pid)]} of {family}"
        self.changes += 1

    def _rows(self, batch: int) -> set[int]:
        """Of a batch that is done. A later run of it writes the same."""
        if not (self._out / "rows" / f"{batch}.done").exists():
            return set()
        files = (self._out / "rows" / str(batch)).glob("part-*")
        return {int(line) for file in files for line in file.read_text().splitlines()}

    def _newest(self, kind: str) -> int:
        return max((int(one.name) for one in (self._out / "checkpoint" / kind).glob("[0-9]*")), default=-1)


class Consumer(Reader):
    def __init__(self, name: str, endpoint: str, topic: str, group: str, *, folder: Path) -> None:
        self._file = folder / f"{name}.rows"
        self._file.touch()
        command = [str(PEERS / "group_members.py"), "consumer", endpoint, topic, group, str(self._file)]
        super().__init__(name, command, folder=folder, stays=False)

    def chunks(self) -> list[list[tuple[int, int]]]:
        return [[(number, at_ms) for number, at_ms in json.loads(line)] for line in self._file.read_text().splitlines()]

    def last_batch(self) -> Callable[[], set[int]]:
        last = {number for number, _ in self.chunks()[-1]} if self.chunks() else set()
        return lambda: last


class OfficialSdk(Reader):
    def __init__(self, name: str, endpoint: str, topic: str, group: str, *, folder: Path) -> None:
        command = [str(ROOT / "tests" / "compat" / "python_sdk_peer.py"), "work", endpoint, topic, group, "0"]
        super().__init__(name, command, folder=folder, stays=False)
        self._got: list[tuple[int, int]] = []
        self._file = folder / f"{name}.rows"
        """For people; one line per message."""

    def chunks(self) -> list[list[tuple[int, int]]]:
        with self._changed:
            return [[one] for one in self._got]

    def last_batch(self) -> Callable[[], set[int]]:
        """It says each message before it acknowledges it, and takes up to 16 at once."""
        with self._changed:
            last = {number for number, _ in self._got[-16:]}
        return lambda: last

    def _hear(self, name: str, report: dict[str, Any]) -> None:
        with self._changed:
            if "got" in report:
                self._got.append((report["got"], time.monotonic_ns() // 1_000_000))
                with self._file.open("a", encoding="ascii") as file:
                    file.write(json.dumps([self._got[-1]]) + "\n")
        super()._hear(name, report)


def lives(pid: int) -> bool:
    """Whether the process runs; one whose end was not asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """The process and all that it started."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
    return found
