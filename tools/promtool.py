"""Finds Prometheus' `promtool`, which checks and tests alert rules: prints its path, or why there is none.

    python tools/promtool.py                 prints a path

In this order: $PROMTOOL, PATH, the cache, Debian's package `prometheus` (unpacked, not installed, so no rights are
needed), the Go module. The cache is ~/.cache/evenq, or $EVENQ_CACHE.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GO_MODULE = "github.com/prometheus/prometheus/cmd/promtool@v0.304.2"  # Prometheus 3.4
FETCH_S = 540


def main() -> int:
    found = promtool()
    if isinstance(found, Path):
        print(found)
        return 0
    print(f"no promtool: {found}; install Debian's package `prometheus`, or set PROMTOOL to one", file=sys.stderr)
    return 1


def promtool() -> Path | str:
    """Returns its path, or why there is none."""
    named = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if named:
        return Path(named)
    kept = cache() / "promtool"
    if _runs(kept):
        return kept
    reasons = []
    for fetch in (_from_debian, _from_go):
        reason = fetch(kept)
        if not reason:
            return kept
        reasons.append(reason)
    return "; ".join(reasons)


def cache() -> Path:
    """Returns the folder of fetched programs."""
    return Path(os.environ.get("EVENQ_CACHE") or Path.home() / ".cache" / "evenq")


def _from_debian(target: Path) -> str:
    """Returns the reason of a failure, otherwise empty."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return "this is not Debian"
    with tempfile.TemporaryDirectory(prefix="promtool-") as folder:
        error = _run(["apt-get", "download", "-qq", "prometheus"], folder)
        if error and os.geteuid() == 0:  # a fresh image has no lists of packages
            _run(["apt-get", "update", "-qq"], folder)
            error = _run(["apt-get", "download", "-qq", "prometheus"], folder)
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if error or not packages:
            return f"apt-get download prometheus: {error or 'no package'}"
        error = _run(["dpkg", "-x", packages[0].name, "."], folder)
        unpacked = Path(folder, "usr", "bin", "promtool")
        return error or _keep(unpacked, target)


def _from_go(target: Path) -> str:
    if not shutil.which("go"):
        return "there is no Go"
    with tempfile.TemporaryDirectory(prefix="promtool-") as folder:
        error = _run(["go", "install", GO_MODULE], folder, GOBIN=folder)
        return error or _keep(Path(folder, "promtool"), target)


def _keep(program: Path, target: Path) -> str:
    if not _runs(program):
        return f"{program.name} does not run here"
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.{os.getpid()}")  # two test runs may fetch it at the same time
    shutil.copy2(program, beside)
    beside.replace(target)
    return ""


def _runs(program: Path) -> bool:
    return program.is_file() and not _run([str(program), "--version"], str(program.parent))


def _run(command: list[str], folder: str, **environment: str) -> str:
    """Returns the last line of output of a failed command, otherwise empty."""
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=FETCH_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]


if __name__ == "__main__":
    sys.exit(main())
