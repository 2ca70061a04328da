"""`evenq up`: a whole cluster with one command, for work on one machine.

By default nameserver, brokers and rebalancer share this process and one loop. With `--processes`, or copies
(`--replicas`), each has its own process. Once clients are served, the line `ready HOST:PORT ...` is printed. SIGINT or
SIGTERM stops everything in order, with exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from evenq.cli.output import complain
from evenq.cli.up.plan import UpPlan, plan_of
from evenq.errors import Error, StoreError, StoreLocked
from evenq.runtime.clock import SystemClock
from evenq.runtime.lock_file import LockHeld, lock_file
from evenq.serving.program.logs import setup_logs
from evenq.serving.program.run import run as run_loop
from evenq.serving.program.settings import is_from_kubernetes

_SERVICES = ("EVENQ_BROKER_", "EVENQ_NAMESERVER_", "EVENQ_REBALANCER_")


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Locks the data folder until `stack` ends. Raises StoreLocked, which names the folder and its process."""
    try:
        stack.enter_context(lock_file(folder / "up.lock"))
    except LockHeld as held:
        raise StoreLocked(
            f"the data folder {folder.resolve()} is in use by another `evenq up`, {held}; "
            "stop it, or choose another folder with --data"
        ) from held
    except OSError as error:
        raise StoreError(
            f"the data folder {folder} cannot be used: {error.strerror}; choose another folder with --data"
        ) from error


def settings_without_effect(environ: Mapping[str, str]) -> list[str]:
    """Returns the variables that servers of their own would read, such as EVENQ_BROKER_AUTH__ENABLED."""
    return sorted(name for name in environ if name.startswith(_SERVICES) and not is_from_kubernetes(name, environ))


def run(options: argparse.Namespace) -> int:
    if names := settings_without_effect(os.environ):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        complain(
            f"`evenq up` does not read {', '.join(names[:3])}{more}: it takes options only. For settings, start "
            "evenq-nameserver, evenq-rebalancer and evenq-broker."
        )
    with ExitStack() as stack:
        return _run(options, plan_of(options, stack), stack)


def _run(options: argparse.Namespace, plan: UpPlan, stack: ExitStack) -> int:
    setup_logs(options.log_level, program="up")
    if options.processes or plan.replicas > 1:
        from evenq.cli.up.processes import serve as serve_processes

        work = serve_processes
    else:
        from evenq.cli.up.one_process import serve as serve_one

        work = serve_one
    failures: list[Error] = []

    async def guarded(stop: asyncio.Event) -> None:
        try:
            await work(plan, stop, SystemClock())
        except Error as error:
            failures.append(error)

    if plan.data is not None:
        lock_folder(plan.data, stack)
    code = run_loop(guarded)
    if failures:
        raise failures[0]
    return code
