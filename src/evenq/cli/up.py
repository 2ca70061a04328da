"""`evenq up`: a whole cluster with one command, for work on one machine.

By default nameserver, brokers and rebalancer share this process and one loop; with `--processes` each is a process of
its own, and with `--replicas` each copy of a broker is one. Either way the line `ready HOST:PORT ...` is printed once
clients are served, and SIGINT or SIGTERM stops everything in order, exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from evenq.cli.up_plan import plan_of
from evenq.errors import Error, StoreError, StoreLocked
from evenq.runtime.clock import SystemClock
from evenq.serving.logs import setup_logs
from evenq.serving.run import run as run_loop

__all__ = ["lock_folder", "run"]


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Make the data folder ours until `stack` ends. Raises StoreLocked that names the folder and the process in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not "w": the file of a process that has the lock must keep its number.
        file = stack.enter_context((folder / "up.lock").open("a+", encoding="utf-8"))
    except OSError as error:
        raise StoreError(
            f"the data folder {folder} cannot be used: {error.strerror}; choose another with --data"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        raise StoreLocked(
            f"the data folder {folder.resolve()} is in use by another `evenq up`, process {owner}; "
            "stop it, or choose another folder with --data"
        ) from error
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()


def run(options: argparse.Namespace) -> int:
    """`evenq up`."""
    plan = plan_of(options)
    setup_logs(options.log_level, program="up")
    if options.processes or plan.replicas > 1:
        from evenq.cli.up_processes import serve as serve_processes

        work = serve_processes
    else:
        from evenq.cli.up_one import serve as serve_one

        work = serve_one
    failures: list[Error] = []

    async def guarded(stop: asyncio.Event) -> None:
        try:
            await work(plan, stop, SystemClock())
        except Error as error:
            failures.append(error)

    with ExitStack() as stack:
        if plan.data is not None:
            lock_folder(plan.data, stack)
        code = run_loop(guarded)
    if failures:
        raise failures[0]
    return code
