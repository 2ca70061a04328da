"""Worker processes of taskiq over `EvenqBroker`, and what their tasks did.

`taskiq worker evenq_proofs.taskiq_workers:made_broker` is the command of each; its environment says which broker object
it makes. Tasks append a line to the file `notes` of a folder whenever they begin or end, so a test sees each run, also
those of processes that were killed. Results are files, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from taskiq import AsyncResultBackend, Context, SimpleRetryMiddleware, SmartRetryMiddleware, TaskiqDepends, TaskiqResult
from taskiq.kicker import AsyncKicker
from taskiq.task import AsyncTaskiqTask

from evenq import Credentials, Tls
from evenq.taskiq import EvenqBroker
from evenq_proofs.waiting import until, until_async

FOLDER, ARGUMENTS, RETRIES = "EVENQ_TASKIQ_FOLDER", "EVENQ_TASKIQ_ARGUMENTS", "EVENQ_TASKIQ_RETRIES"
HOLDS_S = 600
STARTS_S = ENDS_S = 240


class FileResults(AsyncResultBackend[Any]):
    """Results as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        fresh = self._folder / f"{task_id}.{os.getpid()}"
        fresh.write_text(result.model_dump_json())
        fresh.rename(self._folder / f"{task_id}.json")

    async def is_result_ready(self, task_id: str) -> bool:
        return (self._folder / f"{task_id}.json").exists()

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        del with_logs
        return TaskiqResult[Any].model_validate_json((self._folder / f"{task_id}.json").read_text())


def broker_of(arguments: Mapping[str, Any], folder: Path, *, retries: str = "") -> EvenqBroker:
    """A broker object; `arguments` are plain values, `ca` and `keys` make its TLS and credentials."""
    given = dict(arguments)
    if "ca" in given:
        given["tls"] = Tls(ca=Path(given.pop("ca")))
    if "keys" in given:
        given["credentials"] = Credentials(**given.pop("keys"))
    made = EvenqBroker(**given).with_result_backend(FileResults(folder))
    match retries:
        case "simple":
            made.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
        case "smart":
            made.add_middlewares(SmartRetryMiddleware(default_retry_count=5, default_delay=0.3))
    return made


def made_broker() -> EvenqBroker:
    """The broker object of a worker process, with its tasks."""
    folder = Path(os.environ[FOLDER])
    made = broker_of(json.loads(os.environ[ARGUMENTS]), folder, retries=os.environ[RETRIES])

    def note(what: str, name: str, **fields: object) -> None:
        line = json.dumps({"what": what, "name": name, "pid": os.getpid(), "ms": time.time_ns() // 1_000_000, **fields})
        with (folder / "notes").open("a") as file:
            file.write(line + "\n")

    async def run(
        name: str, fails: int = 0, until_file: str = "", *, context: Annotated[Context, TaskiqDepends()]
    ) -> str:
        note("begin", name, labels={key: str(value) for key, value in context.message.labels.items()})
        await until_async(lambda: not until_file or (folder / until_file).exists(), seconds=HOLDS_S)
        if len(notes(folder, "begin", name)) <= fails:
            raise ValueError(name)
        note("end", name)
        return name.upper()

    def add(first: int, second: int) -> int:
        return first + second

    made.register_task(run, task_name="run")
    made.register_task(run, task_name="retried", retry_on_error=True)
    made.register_task(add, task_name="add")
    return made


def notes(folder: Path, what: str = "", name: str = "") -> list[dict[str, Any]]:
    """What tasks noted, oldest first; of one kind, or of one task."""
    path = folder / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    every = [json.loads(line) for line in lines if line.endswith("}")]  # a killed process may leave half a line
    return [one for one in every if what in {"", one["what"]} and name in {"", one["name"]}]


async def sent(broker: EvenqBroker, task: str, *arguments: Any, **labels: Any) -> AsyncTaskiqTask[Any]:
    """Sends a task by its name, as a program without the function does."""
    kicker: AsyncKicker[Any, Any] = AsyncKicker(task_name=task, broker=broker, labels=labels)
    result: AsyncTaskiqTask[Any] = await kicker.kiq(*arguments)
    return result


class Worker:
    """One `taskiq worker`: a main process and its child, which runs the tasks."""

    def __init__(self, folder: Path, arguments: Mapping[str, Any], *options: str, retries: str = "") -> None:
        self._log = folder / f"worker-{len(list(folder.glob('worker-*')))}"
        environment = {
            **os.environ,
            FOLDER: str(folder),
            ARGUMENTS: json.dumps(arguments),
            RETRIES: retries,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-m", "taskiq", "worker", "evenq_proofs.taskiq_workers:made_broker"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--workers", "1", *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_listening(self) -> None:
        """Waits until the worker takes tasks."""
        until(lambda: "Listening started" in self.log, lambda: self.log[-2_000:], seconds=STARTS_S)

    def kill(self) -> None:
        """SIGKILL to both processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> None:
        """SIGTERM, as a container's runtime sends it; returns immediately."""
        self.process.terminate()

    def wait(self) -> int:
        """Waits for the end of the process; its exit code."""
        return self.process.wait(timeout=ENDS_S)
