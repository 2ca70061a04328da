"""The version of a package that is built here, for hatchling (`[tool.hatch.version]` in pyproject.toml).

- at a git tag vX.Y.Z: X.Y.Z, and `evenq.__version__` must be equal;
- N commits after a tag: X.Y.(Z+1).devN+gHASH;
- without a tag, without git, or in an unpacked archive: `evenq.__version__`.

It uses only the standard library, because it runs where only hatchling is installed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PATH = "src/evenq/runtime/version.py"
ROOT = Path(__file__).resolve().parents[1]
DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)-(\d+)-g([0-9a-f]+)")


def version(root: Path = ROOT) -> str:
    """Returns the version by PEP 440. Raises ValueError if the tag and the code differ."""
    code = (root / PATH).read_text(encoding="utf-8")
    said = re.search(r'^__version__ = "(.+)"$', code, re.MULTILINE)
    if said is None:
        raise ValueError(f'{PATH} has no line __version__ = "X.Y.Z"')
    found = DESCRIBED.fullmatch(described(root))
    if found is None:
        return said[1]
    major, minor, patch, commits = map(int, found.groups()[:4])
    if commits:
        return f"{major}.{minor}.{patch + 1}.dev{commits}+g{found[5]}"
    tagged = f"{major}.{minor}.{patch}"
    if tagged != said[1]:
        raise ValueError(
            f"the tag is {tagged}, but src/evenq/runtime/version.py has {said[1]}: change the file, then tag again"
        )
    return tagged


def described(root: Path) -> str:
    """Returns the description by git of the checkout at `root`; empty without a checkout or tag."""
    if not (root / ".git").exists():  # a parent folder may be another project's checkout
        return ""
    command = ["git", "-C", str(root), "describe", "--tags", "--long", "--match", "v[0-9]*"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip()
