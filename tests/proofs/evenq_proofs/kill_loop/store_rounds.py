"""Rounds with the store alone in a child: its lines become a history that the checker judges, `verify` its files.

Between cycles the folder is sometimes left as worse endings than a kill would leave it: half a record behind the end of
the log, or without checkpoint and consume queues. Neither may cost anything that was acknowledged.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from evenq.runtime.clock import SystemClock
from evenq.runtime.failpoints import COUNTS_VARIABLE, VARIABLE
from evenq.testing.checker import check
from evenq.testing.history import Delivery, HistoryAction, Op, Recorder, read_history
from evenq_proofs.kill_loop.campaign import Campaign, Cycle, Ending, Needs, store_points
from evenq_proofs.kill_loop.child import name_of
from evenq_proofs.kill_loop.verifying import verified
from evenq_proofs.tolerance import tolerances

GROUP: Final = "g"
KILL_MS: Final = (2, 90)
HANG_MS: Final = 20_000
PACKAGES: Final = str(Path(__file__).resolve().parents[2])
"""Where the child finds this package."""


class StoreRound:
    """One folder over several cycles."""

    def __init__(self, campaign: Campaign, folder: Path, *, flush: str) -> None:
        self.campaign = campaign
        self.folder = folder
        self.data = folder / "data"
        self.flush = flush
        self.problems: list[str] = []
        self.start_ms_max = 0
        """Longest time from a process's start to its being ready, ms."""
        self._clock = SystemClock()
        folder.mkdir(parents=True)
        self._recorder = Recorder(folder / "history.jsonl", clock=self._clock, buffer_events_max=1 << 20)
        for topic in ("t1", "t2"):
            self._done(Op.ADMIN, action=HistoryAction.SUBSCRIBE, group=GROUP, topic=topic, order="queue")
        self._open: dict[str, int] = {}  # body or a letter and a queue -> operation
        self._places: dict[str, Delivery] = {}  # each body is at one place, a fired timer's too
        self._pair = 0
        self._killed = False
        self._ready = False
        self._last = ""

    def run(self, cycles: int) -> list[str]:
        """All cycles, the drain, the verdict: what is wrong, or nothing."""
        for number in range(cycles):
            if not self.problems:
                self._cycle(number)
        if not self.problems:
            self._process(None, name="drain", needs=Needs.NOTHING)
            if self._last != "closed":
                self.problems.append("the drain did not end")
        self._recorder.close()
        if not self.problems:
            report = check(read_history(self._recorder.path), limits=tolerances())
            self.problems += [anomaly.text for anomaly in report.anomalies[:5]]
        if not self.problems:
            self.problems += verified(self.data)
        if not self.problems:
            shutil.rmtree(self.folder)
        return self.problems

    # -- a cycle ------------------------------------------------------------------------------------------------------

    def _cycle(self, number: int) -> None:
        cycle = self.campaign.plan(store_points(), first=number == 0, killed=self._killed, kill_ms=KILL_MS)
        if cycle.needs is Needs.TORN:
            tear(self.data, self.campaign.rng)
        elif cycle.needs is Needs.REBUILD:
            forget(self.data, self.campaign.rng)
        self._recorder.fault("kill -9", target="store")
        code = self._process(cycle, name=f"c{cycle.number}", needs=cycle.needs)
        self._killed = self._ready and code == -signal.SIGKILL and cycle.needs is not Needs.CLEAN_STOP
        ending = cycle.ending if code != -signal.SIGKILL or cycle.ending is not Ending.CLEAN else Ending.RANDOM
        self.campaign.endings[ending] += 1
        if code not in {0, -signal.SIGKILL}:
            self.problems.append(f"cycle {cycle}: ended with exit code {code}; last line: {self._last}")

    def _process(self, cycle: Cycle | None, *, name: str, needs: Needs) -> int:
        """Run the child to its end, whichever it is; its exit code."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_")}
        environment = {**inherited, "PYTHONPATH": PACKAGES, COUNTS_VARIABLE: str(self.campaign.counts)}
        command = [sys.executable, "-m", "evenq_proofs.kill_loop.child", str(self.data), f"--flush={self.flush}"]
        command += [f"--seed={self.campaign.rng.getrandbits(32)}", f"--name={name}"]
        if cycle is None:
            command.append("--drain")
        elif cycle.point:
            environment[VARIABLE] = cycle.point
        self._ready, self._last = False, ""
        begun_ms = self._clock.monotonic_ms()
        with (self.folder / "stderr").open("ab") as log:
            child = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        try:
            self._listen(child, cycle, needs, begun_ms)
            return child.wait(HANG_MS / 1000)
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def _listen(self, child: subprocess.Popen[bytes], cycle: Cycle | None, needs: Needs, begun_ms: int) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        descriptor, rest = child.stdout.fileno(), b""
        deadline_ms, asked = begun_ms + HANG_MS, False
        while True:
            wait_ms = deadline_ms - self._clock.monotonic_ms()
            if wait_ms <= 0:
                if cycle is None or not self._ready or asked:
                    self.problems.append(f"cycle {cycle} hangs; last line: {self._last}")
                    child.kill()
                elif needs is Needs.CLEAN_STOP:
                    child.stdin.write(b"close\n")
                    child.stdin.flush()
                else:
                    child.kill()
                deadline_ms, asked = self._clock.monotonic_ms() + HANG_MS, True
                continue
            if not select.select([descriptor], [], [], wait_ms / 1000)[0]:
                continue
            data = os.read(descriptor, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            was_ready = self._ready
            for line in lines:
                self._take(line.decode().split(" "))
            if self._ready and not was_ready:
                now_ms = self._clock.monotonic_ms()
                self.start_ms_max = max(self.start_ms_max, now_ms - begun_ms)
                if cycle is not None:
                    wait_ms = self.campaign.rng.randint(*KILL_MS) if needs is Needs.CLEAN_STOP else cycle.wait_ms
                    deadline_ms = now_ms + wait_ms

    # -- what it says -------------------------------------------------------------------------------------------------

    def _take(self, words: list[str]) -> None:
        """One line of `Teller`."""
        word, rest = words[0], words[1:]
        self._last = " ".join(words)[:500]
        match word:
            case "s":
                for queue, body in zip(rest[0::2], rest[1::2], strict=True):
                    topic = name_of(int(queue)).split("/")[0]
                    self._open[body] = self._recorder.invoke(Op.SEND, process="sender", topic=topic, body=body)
            case "k":
                for queue, offset, body in zip(rest[0::3], rest[1::3], rest[2::3], strict=True):
                    self._recorder.ok(self._open.pop(body), queue=name_of(int(queue)), offset=int(offset))
            case "t":
                self._recorder.ok(self._open.pop(rest[0]))
            case "i":
                for body in rest:
                    self._recorder.info(self._open.pop(body))
            case "r":
                name = name_of(int(rest[0]))
                self._open["r" + rest[0]] = self._recorder.invoke(
                    Op.RECEIVE, process=name, group=GROUP, topic=name.split("/")[0]
                )
            case "d":
                self._recorder.ok(self._open.pop("r" + rest[0]), messages=_deliveries(rest[0], rest[1:]))
            case "c":
                self._open["c" + rest[0]] = self._recorder.invoke(
                    Op.OFFSET,
                    action=HistoryAction.COMMIT,
                    group=GROUP,
                    queue=name_of(int(rest[0])),
                    offset=int(rest[1]),
                )
            case "C":
                self._recorder.ok(self._open.pop("c" + rest[0]))
            case "o":
                queue = name_of(int(rest[0]))
                self._done(Op.OFFSET, {"offset": int(rest[1])}, action=HistoryAction.FETCH, group=GROUP, queue=queue)
            case "a" | "A":
                self._take_scan(word, rest)
            case _:
                self._take_rest(word, rest)

    def _take_scan(self, word: str, rest: list[str]) -> None:
        queue = name_of(int(rest[0]))
        if word == "a":
            self._open["a" + rest[0]] = self._recorder.invoke(
                Op.ADMIN, action=HistoryAction.SCAN, queue=queue, offset=0
            )
            return
        first = int(rest[2])
        found = [Delivery(queue, first + number, body) for number, body in enumerate(rest[4:])]
        for one in found:
            before = self._places.setdefault(one.body, one)
            if before != one:
                self.problems.append(f"{one.body} is at {before.queue}:{before.offset} and {one.queue}:{one.offset}")
        self._recorder.ok(self._open.pop("a" + rest[0]), offset=first, messages=found)

    def _take_rest(self, word: str, rest: list[str]) -> None:
        match word:
            case "p":
                self._pair = int(rest[0])
            case "P":
                state, message = map(int, rest)
                if state < self._pair:
                    self.problems.append(f"the state knows {state} pairs, {self._pair} were acknowledged")
                if message not in {state, -1}:
                    self.problems.append(
                        f"the state knows {state} pairs, the messages {message}: half a group came back"
                    )
            case "ready":
                self._ready = True
            case "drained":
                for topic in ("t1", "t2"):
                    self._done(Op.ADMIN, action=HistoryAction.DRAIN, group=GROUP, topic=topic)
            case "error":
                self.problems.append(" ".join(rest))
            case _:
                assert word == "closed", word

    def _done(self, op: Op, answer: dict[str, int] | None = None, **fields: str) -> None:
        self._recorder.ok(self._recorder.invoke(op, **fields), **(answer or {}))


def _deliveries(queue: str, rest: list[str]) -> list[Delivery]:
    name = name_of(int(queue))
    return [Delivery(name, int(offset), body) for offset, body in zip(rest[0::2], rest[1::2], strict=True)]


def tear(data: Path, rng: random.Random) -> None:
    """Leave a part of a record behind the end of the log, as a power loss in the middle of a write does."""
    newest = max((data / "commitlog").iterdir())
    content = newest.read_bytes()
    garbage = content[: rng.randrange(1, 400)] if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 400))
    with newest.open("ab") as file:
        file.write(garbage or b"\x00\x00\x01")


def forget(data: Path, rng: random.Random) -> None:
    """Lose what is derived from the log."""
    lost = rng.choice(("checkpoint", "consumequeue", "both"))
    if lost != "consumequeue":
        (data / "checkpoint").unlink(missing_ok=True)
    if lost != "checkpoint":
        shutil.rmtree(data / "consumequeue", ignore_errors=True)
