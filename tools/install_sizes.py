"""What each extra adds to an installation: packages and MB, as a table of docs/start/install.md.

`make sizes` writes the table; `python tools/install_sizes.py` prints it. It reads the packages that are installed
beside it (`make dev` installs all extras, pinned), so the figures are those of this Python and platform.
Bytecode is not counted: pip compiles it after the download.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/start/install.md"
TABLE = re.compile(r"(?<=<!-- sizes: make sizes -->\n).*?(?=<!-- end of sizes -->)", re.DOTALL)
OWN = ("src/evenq", "services/broker/evenq_broker", "services/nameserver/evenq_nameserver")
OWN += ("services/rebalancer/evenq_rebalancer", "spark/pyspark_evenq")
LARGEST = 3
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Added:
    """The packages that an extra installs beyond the base, with their bytes."""

    extra: str
    packages: Mapping[str, int]

    def row(self) -> str:
        """Returns the row of the table."""
        largest = sorted(self.packages.items(), key=lambda item: (-item[1], item[0]))[:LARGEST]
        names = ", ".join(f"{name} {size / MB:.1f}" for name, size in largest)
        total = sum(self.packages.values()) / MB
        return f"| `{self.extra}` | {len(self.packages)} | {total:.1f} | {names} |"


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Returns the installed packages that these requirements need, by name. Raises PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    wanted = [(Requirement(text), "") for text in requirements]
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        package = found.setdefault(name, distribution(name))
        for one in ("", *sorted(requirement.extras)):
            if (name, one) not in seen:
                seen.add((name, one))
                wanted += [(Requirement(text), one) for text in package.requires or ()]
    return found


def size_of(package: Distribution) -> int:
    """Returns the bytes of a package's files, without bytecode."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def own_size() -> int:
    """Returns the bytes of evenq's own files; it is installed as a link to the sources."""
    paths = [path for folder in OWN for path in (ROOT / folder).rglob("*")]
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


def table() -> str:
    """Returns the table, the base first, then extras by size."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = closure(project["dependencies"])
    of_base = {"evenq": own_size(), **{name: size_of(package) for name, package in base.items()}}
    rows = [
        Added(
            extra,
            {
                name: size_of(package)
                for name, package in closure([*project["dependencies"], *requirements]).items()
                if name not in base
            },
        )
        for extra, requirements in project["optional-dependencies"].items()
    ]
    rows.sort(key=lambda added: (sum(added.packages.values()), added.extra))
    head = ["| extra | packages | MB | largest packages, MB |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, Added("evenq", of_base).row(), *(added.row() for added in rows)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE}")
    found = table()
    if not parser.parse_args().write:
        print(found, end="")
        return 0
    page = ROOT / PAGE
    text = page.read_text(encoding="utf-8")
    if not TABLE.search(text):
        print(f"{PAGE} has no lines <!-- sizes: make sizes --> and <!-- end of sizes -->", file=sys.stderr)
        return 1
    page.write_text(TABLE.sub(lambda _: found, text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
