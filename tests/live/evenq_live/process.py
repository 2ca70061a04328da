"""A child that speaks JSON lines: started, listened to, asked to go, killed; always by its own pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


class Process:
    """One child. `heard` is called for each line, in a thread of its own."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path, heard: Callable[[str, dict[str, Any]], None]) -> None:  # fmt: skip
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._heard = heard
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._reader = threading.Thread(target=self._read, name=f"hear-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def say(self, line: str) -> None:
        """One line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def terminate(self) -> None:
        """SIGTERM; does not wait."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.alive:
            self._process.kill()
        self.wait(60)

    def wait(self, seconds: float) -> int:
        """Its exit code, once all it said was heard."""
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._heard(self.name, json.loads(line))
