"""The Spark jobs of the demo: one process, and so one JVM, runs jobs of `spark/examples` one after the other.

`serve` runs in that process (`python -m flight_demo jobs`). Each line of its standard input names a module and the
arguments of its `main`. Standard output has the lines of the jobs, and one at the end of each. `SparkJobs` starts it.
"""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from evenq.errors import InternalError
from flight_demo import part_command, part_environment

EXAMPLES = Path("spark") / "examples"
END_SECONDS = 30
TAIL_LINES = 8


def serve() -> int:
    """Runs the jobs of standard input until its end."""
    sys.path.insert(0, str(EXAMPLES))
    for line in sys.stdin:
        job = json.loads(line)
        code = importlib.import_module(job["module"]).main(job["arguments"])
        print(json.dumps({"done": job["module"], "code": code}), flush=True)
    return 0


class SparkJobs:
    """Jobs in their own process, one at a time. Call `close` at the end; the methods are not thread-safe."""

    def __init__(self, log: Path) -> None:
        self.rows = 0
        """Rows that the running job reported last."""
        self._log = log
        self._job = ""
        self._ended = threading.Event()
        """Set when the job has returned or the process has ended."""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                part_command("jobs"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(),
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name="demo-spark", daemon=True)
        self._reader.start()

    def begin(self, module: str, *arguments: str) -> None:
        """Starts a job; `wait` reports a process that has ended."""
        self.rows, self._job = 0, module
        self._ended.clear()
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps({"module": module, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        else:
            self._ended.set()

    def wait(self, seconds: float) -> None:
        """Waits until the job has returned. Raises InternalError if it failed or takes longer."""
        if not self._ended.wait(seconds):
            raise InternalError(f"{self._job} has not ended after {seconds:.0f} s; its log is {tail_of(self._log)}")
        if self._job:
            code = self._process.wait(END_SECONDS)
            raise InternalError(f"{self._job} ended with {code}; its log is {tail_of(self._log)}")

    def run(self, module: str, *arguments: str, seconds: float) -> None:
        self.begin(module, *arguments)
        self.wait(seconds)

    @property
    def running(self) -> bool:
        """True until the job has returned."""
        return not self._ended.is_set()

    def interrupt(self) -> None:
        """Sends SIGTERM to the running job; streams end then."""
        if self.running and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends the process and Spark. Idempotent."""
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
    """Returns the path of a log and its last lines."""
    return "\n".join([str(log), *log.read_text(errors="replace").splitlines()[-TAIL_LINES:]])


def _environment() -> dict[str, str]:
    """Returns an environment for workers of this interpreter, on loopback."""
    return {
        **part_environment(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
