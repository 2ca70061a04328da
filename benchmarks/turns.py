"""Client programs as child processes that read jobs as lines of JSON, so that two of them can take turns.

The child calls `serve` with its jobs; the parent starts it with `started` and calls `ask`. Standard library only,
because a child may run in another environment than the project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class Timer:
    """Timer of the measured part of a job: `with timer: ...`, once."""

    secs = cpu_s = 0.0

    def __enter__(self) -> None:
        self._cpu, self._began = time.process_time(), time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self.secs, self.cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu


def serve(works: dict[str, Callable[..., int]]) -> None:
    """Runs the job of each line of stdin until it ends. A job takes a `Timer` and returns its number of messages."""
    for line in sys.stdin:
        order = json.loads(line)
        timer = Timer()
        messages = works[order.pop("do")](timer, **order)
        print(json.dumps({"messages": messages, "secs": timer.secs, "cpu_s": timer.cpu_s}), flush=True)


@dataclass(frozen=True, slots=True)
class Turn:
    messages: int
    secs: float
    cpu_s: float
    """CPU of the client's process, user and system."""


class Client:
    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name

    def ask(self, work: str, **arguments: object) -> Turn:
        """Runs a job. Ends the run if it failed; its output is on stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": work, **arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} failed at {work} {arguments}, exit code {self._process.wait()}; see above")
        return Turn(**json.loads(line))


@contextmanager
def started(python: str, program: Path, *options: str) -> Iterator[Client]:
    """Runs a child until the block ends."""
    command = [python, str(program), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Client(process, program.name)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
