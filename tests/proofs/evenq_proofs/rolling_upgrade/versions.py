"""Versions of the programs as trees of sources: this one, and any commit. They run on the packages of this interpreter."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[4]
SOURCES: Final = ("src", "services/broker", "services/nameserver", "services/rebalancer")


@dataclass(frozen=True, slots=True)
class Version:
    """One of them."""

    name: str
    tree: Path

    def environment(self) -> dict[str, str]:
        """What makes a Python process run it: the folders of its packages, in front of those that are installed."""
        return {"PYTHONPATH": os.pathsep.join(str(self.tree / part) for part in SOURCES)}


def this_version() -> Version:
    """What lies in this checkout, changes that are not committed included."""
    return Version("this tree", ROOT)


def version_of(commit: str, folder: Path) -> Version:
    """A commit, unpacked into a folder of its own below `folder`. Raises CalledProcessError if git has no such commit."""
    short = _git("rev-parse", "--short", f"{commit}^{{commit}}")
    tree = folder / short
    if not tree.exists():
        archive = subprocess.run(
            ["git", "archive", short, *SOURCES], cwd=ROOT, check=True, stdout=subprocess.PIPE
        ).stdout
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    return Version(short, tree)


def commit_before() -> str:
    """The version before this one: the newest tag, or else where this branch left main, or else the parent."""
    for command in (("describe", "--tags", "--abbrev=0"), ("merge-base", "HEAD", "main"), ("rev-parse", "HEAD~1")):
        try:
            return _git(*command)
        except subprocess.CalledProcessError:
            continue
    raise LookupError("git knows no version before this one: name a commit by --from")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
