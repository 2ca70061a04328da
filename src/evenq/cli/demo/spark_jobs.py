"""Spark for the demo: one process, and so one JVM, runs jobs of `spark/examples` one after the other.

`serve` is what runs in that process (`python -m evenq.cli.demo jobs`): a line of its standard input names a module and
the arguments of its `main`; a line of its standard output says when that has returned. What a job prints itself (the
stream that counts tells its rows) comes between. `SparkJobs` is the demo's handle on such a process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from evenq.errors import InternalError

__all__ = ["SparkJobs", "serve", "tail_of"]

EXAMPLES = Path("spark") / "examples"
END_SECONDS = 30
TAIL_LINES = 8


def serve() -> int:
    """Run what is asked for until there is no more."""
    sys.path.insert(0, str(EXAMPLES))
    for line in sys.stdin:
        job = json.loads(line)
        code = importlib.import_module(job["module"]).main(job["arguments"])
        print(json.dumps({"done": job["module"], "code": code}), flush=True)
    return 0


class SparkJobs:
    """Jobs in a process of their own. `close` when done; the methods are for one thread."""

    def __init__(self, log: Path) -> None:
        self.rows = 0
        """Of the running job, as it tells."""
        self._log = log
        self._job = ""
        self._ended = threading.Event()
        """The job has returned, or the process is gone."""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenq.cli.demo", "jobs"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment(),
            )  # fmt: skip
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="demo-spark", daemon=True
        )  # fmt: skip
        self._reader.start()

    def begin(self, module: str, *arguments: str) -> None:
        """Start the job; there is one at a time."""
        self.rows, self._job = 0, module
        self._ended.clear()
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps({"module": module, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        else:
            self._ended.set()

    def wait(self, seconds: float) -> None:
        """Until the job has returned. Raises InternalError if it failed or takes longer."""
        if not self._ended.wait(seconds):
            raise InternalError(
                f"{self._job} runs for more than {seconds:.0f} s; the whole log is {tail_of(self._log)}"
            )
        if self._job:
            code = self._process.wait(END_SECONDS)
            raise InternalError(f"{self._job} ended with {code}; the whole log is {tail_of(self._log)}")

    def run(self, module: str, *arguments: str, seconds: float) -> None:
        """`begin` and `wait`."""
        self.begin(module, *arguments)
        self.wait(seconds)

    @property
    def running(self) -> bool:
        """Whether the job has not returned."""
        return not self._ended.is_set()

    def interrupt(self) -> None:
        """Tell the job to end, if it is one that waits for that."""
        if self.running and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the process, and Spark with it. Idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            report = json.loads(line)
            self.rows = report.get("rows", self.rows)
            if "done" in report:
                self._job = ""
                self._ended.set()
        self._ended.set()


def tail_of(log: Path) -> str:
    """The path of a log and its last lines."""
    return "\n".join([str(log), *log.read_text(errors="replace").splitlines()[-TAIL_LINES:]])


def _environment() -> dict[str, str]:
    """Workers run our own interpreter, on loopback."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
