"""Security audit: bandit over the shipped code, and published advisories of every pinned package through pip-audit.

`make audit` runs it. It exits 1 if bandit has a finding of medium severity or more, or a pinned package has an advisory
that is not in `ACCEPTED`. If advisories are not reachable (no internet, a package mirror without them), it reports how
many packages were not checked and continues: a check that cannot run is reported, never counted as passed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("src", "services", "spark")
ACCEPTED: Mapping[str, str] = {}
"""Advisory id -> why it does not affect us, and the date until which that was checked."""
ANSWER_SECONDS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisories:
    """Result of pip-audit."""

    judged: int
    """Packages whose advisories could be read."""
    unjudged: int
    """Packages whose advisories could not be read."""
    open: Sequence[str]
    """`package version: id (fixed in ...)` of each advisory that is not accepted."""


def advisories_of(report: str) -> Advisories:
    """Reads pip-audit's JSON. Raises ValueError for anything else."""
    packages = json.loads(report)["dependencies"]
    found = []
    for package in packages:
        for advisory in package.get("vulns", ()):
            names = {advisory["id"], *advisory.get("aliases", ())}
            if not names & ACCEPTED.keys():
                fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
                found.append(f"{package['name']} {package['version']}: {advisory['id']} (fixed in {fixed})")
    unjudged = sum(1 for package in packages if "skip_reason" in package)
    return Advisories(judged=len(packages) - unjudged, unjudged=unjudged, open=found)


def run_bandit() -> bool:
    """True without findings; bandit prints its own."""
    command = [sys.executable, "-m", "bandit", "-q", "-r", "-ll", "-ii", *SHIPPED]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def ask_advisories() -> Advisories | str:
    """Returns the advisories of all pinned packages, or why they could not be read."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--format", "json", "-r", "constraints.txt"]
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer in {ANSWER_SECONDS} s"
    try:
        return advisories_of(done.stdout)
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines()
        return lines[-1][:300] if lines else f"pip-audit ended with {done.returncode}"


def verdict(answer: Advisories | str) -> tuple[bool, str]:
    """Returns whether the audit passes, and the sentence to print."""
    if isinstance(answer, str):
        return True, f"advisories: NOT CHECKED, {answer}"
    if answer.open:
        return False, "advisories of pinned packages:\n  " + "\n  ".join(answer.open)
    if not answer.judged:
        return True, f"advisories: NOT CHECKED, none of {answer.unjudged} packages could be looked up from here"
    rest = f"; not checked: {answer.unjudged}" if answer.unjudged else ""
    return True, f"advisories: none for {answer.judged} packages{rest}"


def main() -> int:
    clean = run_bandit()
    print("bandit: clean" if clean else "bandit: see above; fix it, or mark the line `# nosec BXXX` with a reason")
    passed, sentence = verdict(ask_advisories())
    print(sentence)
    return 0 if clean and passed else 1


if __name__ == "__main__":
    sys.exit(main())
