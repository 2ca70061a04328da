"""Runs `evenq` as a process of its own, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

EVENQ = [sys.executable, "-m", "evenq.cli"]


def evenq_process(
    *words: object, endpoint: str = "", stdin: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Returns how the command ended. Of the variables of `evenq` it gets `variables` only. AssertionError: a traceback."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENQ_")}
    environment |= {"EVENQ_ENDPOINT": endpoint} if endpoint else {}
    done = subprocess.run(
        [*EVENQ, *map(str, words)],
        capture_output=True, text=True, timeout=240, input=stdin, env=environment | variables, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def run_evenq(*words: object, code: int | None = 0, **options: Any) -> str:
    """Returns what it printed, its errors if `code` is not 0. AssertionError: another exit code; None accepts any."""
    done = evenq_process(*words, **options)
    assert code in {done.returncode, None}, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def evenq_json(*words: object, code: int | None = 0, **options: Any) -> Any:
    """Returns what it printed with `--json`, parsed; its errors if it printed nothing."""
    done = evenq_process(*words, "--json", **options)
    assert code in {done.returncode, None}, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr
