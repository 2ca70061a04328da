"""The version of evenq: of a package that is built here, and in the files that name it.

hatchling calls `version()` (`[tool.hatch.version]` in pyproject.toml):

- at a git tag vX.Y.Z: X.Y.Z, and `evenq.__version__` must be equal;
- N commits after a tag: X.Y.(Z+1).devN+gHASH;
- without a tag, without git, or in an unpacked archive: `evenq.__version__`.

`python tools/version.py` prints the version; `python tools/version.py 0.3.0` begins that release: it writes the version
and today's date into all files of `PLACES`. It uses only the standard library, because it runs where only hatchling is
installed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
from pathlib import Path

PATH = "src/evenq/runtime/version.py"
ROOT = Path(__file__).resolve().parents[1]
DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)-(\d+)-g([0-9a-f]+)")
IMAGE = r"(?<=[ /]evenq/)(?P<image>[a-z]+):\d+\.\d+\.\d+"
PLACES = {
    PATH: r'(?<=^__version__ = ")[^"]+(?=")',
    "CITATION.cff": r"(?<=^version: ).+$",
    "native/Cargo.toml": r'(?<=^version = ")[^"]+(?=")',
    "native/Cargo.lock": r'(?<=^name = "evenq-native"\nversion = ")[^"]+(?=")',
    "helm/evenq/Chart.yaml": r"(?:(?<=^version: )|(?<=^appVersion: )).+$",
    "docker/Dockerfile": IMAGE,
    "docker/README.md": IMAGE,
    "docs/guides/tracing.md": IMAGE,
    "docs/guides/spark_places.md": IMAGE,
    "spark/examples/kubernetes/late_flights.yaml": IMAGE,
}
"""File -> what in it is the version, or an image with its version."""
RELEASED = r"(?<=^date-released: ).+$"
UNRELEASED = "## [Unreleased]\n"


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


def named(root: Path = ROOT) -> dict[str, set[str]]:
    """Returns the versions that each file of `PLACES` names."""
    return {
        path: {found[0].rpartition(":")[2] for found in re.finditer(form, read(root / path), re.MULTILINE)}
        for path, form in PLACES.items()
    }


def begin_release(wanted: str, today: dt.date, root: Path = ROOT) -> list[str]:
    """Writes a version into all files that name it; returns their paths. Raises ValueError, and then changes none."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise ValueError(f"{wanted!r} is not a version; it must be MAJOR.MINOR.PATCH, for example 0.3.0")
    changelog = read(root / "CHANGELOG.md")
    if f"## [{wanted}]" in changelog:
        raise ValueError(f"CHANGELOG.md already has a section of {wanted}")
    if UNRELEASED not in changelog:
        raise ValueError(f"CHANGELOG.md has no line {UNRELEASED.strip()!r}")
    texts = {
        path: re.sub(form, lambda found: written(found, wanted), read(root / path), flags=re.MULTILINE)
        for path, form in PLACES.items()
    }
    texts["CITATION.cff"] = re.sub(RELEASED, today.isoformat(), texts["CITATION.cff"], flags=re.MULTILINE)
    texts["CHANGELOG.md"] = changelog.replace(UNRELEASED, f"{UNRELEASED}\n## [{wanted}] - {today.isoformat()}\n", 1)
    for path, text in texts.items():
        (root / path).write_text(text, encoding="utf-8")
    return list(texts)


def written(found: re.Match[str], wanted: str) -> str:
    """Returns the new text of one place: the version, behind the image's name where there is one."""
    image = found.groupdict().get("image")
    return f"{image}:{wanted}" if image else wanted


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the version, or begin a release.")
    parser.add_argument("new", nargs="?", metavar="X.Y.Z", help="write this version into all files that name it")
    options = parser.parse_args()
    if options.new is None:
        print(version())
    else:
        print("\n".join(begin_release(options.new, dt.datetime.now(dt.UTC).date())))
