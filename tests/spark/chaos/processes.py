"""Which processes of a driver are what: its JVM, the executors, the runners of its queries and the Python workers."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Part(StrEnum):
    """What a process of a Spark application does."""

    DRIVER = "driver"
    """The JVM. It is also the master and the workers of a local cluster."""
    EXECUTOR = "executor"
    RUNNER = "runner"
    """Serves one streaming query on the driver's side, and is the member of its group."""
    PLANNER = "planner"
    """Python on the driver's side: plans reads, commits writes."""
    WORKER = "worker"
    """Python at an executor: runs tasks."""
    DAEMON = "daemon"
    """Forks the workers of an executor."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Process:
    """One that runs now."""

    pid: int
    part: Part
    started: str
    """Tells it from a later process with the same id."""


def started_at(pid: int) -> str:
    """When the process began, in ticks since the machine's start; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def end(processes: list[Process]) -> None:
    """SIGKILL those that are still there."""
    for process in processes:
        if process.started and started_at(process.pid) == process.started:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def left_by(hooks: Path) -> list[Process]:
    """All processes of Spark that were started with this folder of hooks, no matter what is their parent by now."""
    mark, found = f"CHAOS_HOOKS={hooks}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                pid = int(entry.name)
                part = _part(pid, Part.OTHER)
                if part is not None and b"evenq_" not in (entry / "cmdline").read_bytes():
                    found.append(Process(pid, part, started_at(pid)))
    return found


def parts(root: int) -> list[Process]:
    """All descendants of the driver's Python process."""
    found: list[Process] = []
    waiting: list[tuple[int, Part]] = [(root, Part.OTHER)]
    while waiting:
        parent, of = waiting.pop()
        for pid in _children(parent):
            part = _part(pid, of)
            if part is not None:
                found.append(Process(pid, part, started_at(pid)))
                waiting.append((pid, part))
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += [int(child) for child in (thread / "children").read_text().split()]
    return children


def _part(pid: int, parent: Part) -> Part | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    if "CoarseGrainedExecutorBackend" in command:
        return Part.EXECUTOR
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return Part.DRIVER
    if "python_streaming_source_runner" in command:
        return Part.RUNNER
    if "pyspark.daemon" in command:
        match parent:
            case Part.EXECUTOR:
                return Part.DAEMON
            case Part.DAEMON:
                return Part.WORKER
            case _:
                return Part.PLANNER
    return Part.OTHER
