"""Writes a bill of materials (CycloneDX, JSON) for each image, from the hashed lists that the images install.

`make sbom` writes one file per image to dist/sbom/, with the same bytes for the same lists, so that two builds can be
compared. The base image is not included: its publisher describes it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dist" / "sbom"
LISTS = {
    "broker": ("requirements-server.txt", "requirements-kubernetes.txt"),
    "console": ("requirements-server.txt", "requirements-console.txt"),
    "nameserver": ("requirements-server.txt",),
    "rebalancer": ("requirements-server.txt", "requirements-kubernetes.txt"),
    "tables": ("requirements-server.txt", "requirements-tables.txt"),
    "spark": ("requirements-spark.txt",),
}
"""Image -> the lists below docker/ that it installs."""
PACKAGE = re.compile(r"^[A-Za-z0-9][^\n]*(?:\n[ \t][^\n]*)*", re.MULTILINE)
"""A package with its hashes and comments, which are indented."""


def merged(lists: Sequence[str]) -> str:
    """Returns one hashed list of all packages; a package that two lists have comes once."""
    blocks = {block.partition(" ")[0]: block for text in lists for block in PACKAGE.findall(text)}
    return "\n".join(blocks.values()) + "\n"


def write(image: str, folder: Path) -> Path:
    """Writes the bill of one image and returns its path. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"evenq-{image}.cdx.json"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as whole:
        whole.write(merged([(ROOT / "docker" / name).read_text() for name in LISTS[image]]))
        whole.flush()
        command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", "pyproject.toml"]
        command += ["--output-reproducible", "--of", "JSON", "-o", str(path), whole.name]
        # A flat list has no graph of dependencies, and the tool warns of that.
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    return path


def main() -> int:
    for image in LISTS:
        print(write(image, TARGET).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
