"""Writes a bill of materials (CycloneDX, JSON) for each image, from the hashed lists that the images install.

`make sbom` puts them into dist/sbom/: one file per image, the same bytes for the same lists, so that two builds can be
compared. The base image is not in them: its own publisher describes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dist" / "sbom"
LISTS = {
    "broker": ("requirements-server.txt", "requirements-kubernetes.txt"),
    "nameserver": ("requirements-server.txt",),
    "rebalancer": ("requirements-server.txt", "requirements-kubernetes.txt"),
    "spark": ("requirements-spark.txt",),
}
"""Image -> the lists below docker/ that it installs."""


def write(image: str, folder: Path) -> Path:
    """Write the bill of one image; its path. Raises CalledProcessError with the tool's words."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"evenq-{image}.cdx.json"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as whole:
        whole.write("\n".join((ROOT / "docker" / name).read_text() for name in LISTS[image]))
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
