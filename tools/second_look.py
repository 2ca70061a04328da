"""Runs pytest, then repeats a few failed tests, one at a time.

    python tools/second_look.py .venv/bin/pytest -q -n 4 tests/integration

For suites with real processes, which CI runs in parallel on a small machine. A test that fails twice fails; one that
passes the second time is reported as unstable at the end, with the output of its failure above. More than `FAILED_MAX`
failures probably have one cause and are not repeated (decision 0075).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FAILED_MAX = 3
TESTS_FAILED = 1
"""pytest's exit code if tests ran and some of them failed."""
SIDE_BY_SIDE = {"-n", "--dist"}


def main(command: Sequence[str], *, caches: Path = Path(".pytest_cache", "second_look")) -> int:
    """Returns the exit code of the run that decides."""
    cache = caches / hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    shutil.rmtree(cache, ignore_errors=True)  # it may list failures of an earlier run
    with_cache = [*command, "-o", f"cache_dir={cache}"]
    code = subprocess.run(with_cache, check=False).returncode
    failed = failed_tests(cache)
    if code != TESTS_FAILED or not 0 < len(failed) <= FAILED_MAX:
        return code
    print(f"\n{len(failed)} failed; once more, one at a time: {', '.join(failed)}", flush=True)
    again = [*one_at_a_time(with_cache), "--last-failed", "--last-failed-no-failures=none"]
    code = subprocess.run(again, check=False).returncode
    if code == 0:
        print(f"\nUNSTABLE, failed and then passed (see above): {', '.join(failed)}", flush=True)
    return code


def failed_tests(cache: Path) -> list[str]:
    """Returns the failed tests of the last pytest run with this cache, by name."""
    noted = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def one_at_a_time(command: Sequence[str]) -> list[str]:
    """Returns the command without the options by which pytest-xdist runs tests in parallel."""
    words = iter(command)
    kept: list[str] = []
    for word in words:
        if word in SIDE_BY_SIDE:
            next(words, None)
        elif word != "--no-loadscope-reorder":
            kept.append(word)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
