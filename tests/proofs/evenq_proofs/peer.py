"""A client in a process of its own, for tests with software of others: it gets lines and answers with JSON objects.

Whatever else it prints is passed over, its stderr goes to a file. Objects it says: one with the key `done` at the end
of its work, any others as it likes; a test waits for them with a deadline. End it with `end`, which kills it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Peer:
    """One client process and what it said."""

    def __init__(self, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it. `environment` None: that of this process."""
        self.said: list[dict[str, Any]] = []
        """All objects, in order; another thread appends."""
        self.log_path = log_path
        self._changed = threading.Condition()
        self._log = log_path.open("wb")
        self.process = subprocess.Popen(  # a client that the test names
            list(command),
            env=None if environment is None else dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._changed:
                    self.said.append(json.loads(line))
                    self._changed.notify_all()

    def write(self, line: str) -> None:
        """Tell it one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait(self, ready: Callable[[list[dict[str, Any]]], bool], *, seconds: float = 60) -> None:
        """Until what it said is enough. Raises AssertionError after `seconds`."""
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self.said), seconds), (
                f"only {self.said[-5:]}; see {self.log_path}"
            )

    def wait_done(self, *, seconds: float = 60) -> None:
        """Until it said that its work is done."""
        self.wait(lambda said: any("done" in s for s in said), seconds=seconds)

    def of(self, key: str) -> list[dict[str, Any]]:
        """All that has the key."""
        with self._changed:
            return [s for s in self.said if key in s]

    def numbers(self, key: str = "got") -> list[Any]:
        """The values of the key, in order."""
        return [s[key] for s in self.of(key)]

    def stop(self) -> None:
        """Ask it to end, and wait until it said that its work is done."""
        self.write("stop")
        self.wait_done()

    def end(self) -> None:
        """Kill it, if it lives, and leave nothing open. Idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()


def wait_for_all(members: Sequence[Peer], numbers: Iterable[int], *, seconds: float = 60) -> None:
    """Until the members got all these numbers together. Raises AssertionError after `seconds`."""
    pause, left = threading.Event(), set(numbers)
    for _ in range(int(seconds * 20)):
        left.difference_update(*(member.numbers() for member in members))
        if not left:
            return
        pause.wait(0.05)
    raise AssertionError(f"{len(left)} never came, for example {sorted(left)[:5]}")
