"""One server process of a `LocalCluster`: start, kill, stop, pause, restart, with the same port, folder and log file.

Signals go to the process by its pid, and only while it is an unreaped child of this process, so never to a foreign one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.runtime.accelerator import VARIABLE as NATIVE
from evenq.runtime.clock import SystemClock
from evenq.runtime.private_files import open_private
from evenq.serving.program.run import PARENT

__all__ = ["Node"]

_TAIL_LINES = 15
_PAUSES_MAX, _BETWEEN_S = 1_000, 0.01


class Node:
    def __init__(
        self,
        module: str,
        *,
        name: str,
        port: int,
        metrics_port: int,
        log_path: Path,
        environment: Mapping[str, str],
        tls: bool = False,
        peer_port: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        """`host`: loopback address on which it listens; set it in `environment`, too. `environment`: the program's
        settings as variables; of this process's `EVENQ_` variables only EVENQ_NATIVE is inherited. `tls`: its port uses
        TLS. `peer_port`: where a copy answers other copies of its group, also while it follows. `metrics_port` -1: it
        has no page, and is ready when its peer port answers, or its gRPC port if there is none.
        """
        self.tls = tls
        self.host = host
        self.module = module
        self.name = name
        self.port = port
        self.peer_port = peer_port
        self.metrics_port = metrics_port
        self.log_path = log_path
        self.environment = dict(environment)
        """Variables of its next start."""
        self._process: subprocess.Popen[bytes] | None = None
        self._clock = SystemClock()

    @property
    def address(self) -> str:
        """Its gRPC port: `host:port`, or `evenqs://host:port`."""
        return f"evenqs://{self.host}:{self.port}" if self.tls else f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def alive(self) -> bool:
        """True while the process runs, also if it is paused."""
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """Exit code; negative: the signal. None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def end_text(self) -> str:
        """Text about its end; empty while it runs or before it was started."""
        code = self.exit_code
        if code is None:
            return ""
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def start(self) -> None:
        """Starts the process, without waiting until it serves. Does nothing while it runs."""
        if self.alive:
            return
        # A developer's own `EVENQ_` settings must not change what a test starts. The accelerator changes no result, so
        # any test can run with and without it.
        inherited = {key: value for key, value in os.environ.items() if key == NATIVE or not key.startswith("EVENQ_")}
        with open_private(self.log_path, "ab") as log:
            self._process = subprocess.Popen(  # own interpreter and own module
                [sys.executable, "-m", self.module],
                env={**inherited, **self.environment, PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent, which stops it in order
            )

    def wait_ready(self, *, timeout_ms: int = 60_000) -> None:
        """Waits until `/readyz` reports ready. Raises ConnectionFailed if the process ended, RequestTimeout."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        assert self._process is not None, "start it first"
        while not self._ready():
            if self._clock.monotonic_ms() > deadline_ms:
                raise RequestTimeout(f"{self.name} is not ready after {timeout_ms} ms. {self._tail()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=0.02)
                raise ConnectionFailed(f"{self.name} ended with exit code {code} before it was ready. {self._tail()}")

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self._signal(signal.SIGKILL)
        self._wait(60_000)

    def stop(self, *, timeout_ms: int = 60_000) -> int:
        """Sends SIGTERM and waits; returns the exit code. Raises RequestTimeout, after a SIGKILL, if it hangs."""
        self._signal(signal.SIGTERM)
        try:
            return self._wait(timeout_ms)
        except RequestTimeout:
            self.kill()
            raise

    def pause(self, *, without: Sequence[Path] = ()) -> None:
        """Sends SIGSTOP: the process keeps its connections and does nothing. `without`: files whose locks (flock) it
        must not have meanwhile, because others would wait for them. Raises RequestTimeout if they stay locked.
        """
        for _ in range(_PAUSES_MAX):
            self._signal(signal.SIGSTOP)
            if not without:
                return
            self._wait_stopped()
            if not any(_is_locked(one) for one in without):
                return
            self._signal(signal.SIGCONT)
            self._let_run()
        raise RequestTimeout(f"{self.name} is not paused: {', '.join(map(str, without))} stay locked")

    def resume(self) -> None:
        """Sends SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def restart(self, *, timeout_ms: int = 60_000) -> None:
        """Starts it again (stops it first while it runs), and waits until it is ready."""
        if self.alive:
            self.stop()
        self.start()
        self.wait_ready(timeout_ms=timeout_ms)

    def log_text(self) -> str:
        """Returns its whole log, over all its starts."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def _ready(self) -> bool:
        try:
            if self.metrics_port < 0:
                with socket.create_connection((self.host, self.peer_port or self.port), timeout=1):
                    return True
            address = f"http://{self.host}:{self.metrics_port}/readyz"
            with urllib.request.urlopen(address, timeout=1) as response:  # own page on loopback  # nosec B310
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait_stopped(self) -> None:
        """Waits until the signal is delivered; before that, the process may still take a lock."""
        for _ in range(_PAUSES_MAX):
            if self.pid is None or os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG):
                return
            self._let_run()

    def _let_run(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_BETWEEN_S)

    def _wait(self, timeout_ms: int) -> int:
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout=timeout_ms / 1000)
        except subprocess.TimeoutExpired as error:
            raise RequestTimeout(
                f"{self.name} has not ended {timeout_ms} ms after its signal. {self._tail()}"
            ) from error

    def _tail(self) -> str:
        lines = self.log_text().splitlines()[-_TAIL_LINES:]
        return f"End of {self.log_path}:\n" + "\n".join(lines) if lines else f"{self.log_path} is empty."


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
