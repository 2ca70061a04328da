"""The pages of the site: which files of the repository are pages, and where they are in the site.

A page keeps its path in the repository as the source path, so relative links are the same in both. Its address in the
site leaves out the folder `docs/`. The README of the repository is the home page.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"
PATTERNS = ("*.md", "docs/**/*.md", "*/README.md", "*/*/README.md", "benchmarks/results/*.md", "tests/*/*ledger.md")
ASSETS = ("docs/pictures/*.png", "docs/pictures/*.svg", "tools/site/*.css")
FOLDERS = ("docs/decisions", "docs/operating/runbooks", "benchmarks/results")
"""Folders to which pages link. A code host lists their files; the site gets a page with that list."""


@cache
def all_pages() -> tuple[str, ...]:
    """Returns the paths of all pages, from the root of the repository."""
    return tuple(_found(PATTERNS))


def assets() -> list[str]:
    """Returns the paths of pictures and style sheets."""
    return _found(ASSETS)


def _found(patterns: tuple[str, ...]) -> list[str]:
    paths = {path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path.as_posix() for path in paths if not _is_hidden(path))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in {"build", "dist", "node_modules"} for part in path.parts)


def address(path: str) -> str:
    """Returns the path of a file in the site."""
    if path == "README.md":
        return "index.html"
    if path == INDEX:
        return "contents.html"
    path = path.removeprefix("docs/")
    folder, _, name = path.rpartition("/")
    if name == "README.md":
        path = f"{folder}/index.md"
    return f"{path.removesuffix('.md')}.html" if path.endswith(".md") else path


def folder_page(folder: str) -> str:
    """Returns the source path of the page that lists a folder."""
    return f"{folder}/index.md"


def pages_in(folder: str) -> list[str]:
    """Returns the pages directly in a folder, without its README."""
    return [path for path in all_pages() if path.rpartition("/")[0] == folder and not path.endswith("/README.md")]


def title(path: str) -> str:
    """Returns the first heading of a page."""
    heading = re.search(r"^# (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1] if heading else path


def folder_pages() -> dict[str, str]:
    """Returns the text of each page that lists a folder, by its source path."""
    return {folder_page(folder): _list(folder) for folder in FOLDERS if pages_in(folder)}


def _list(folder: str) -> str:
    name = folder.rpartition("/")[2].capitalize()
    heading = {"Decisions": "Decisions", "Runbooks": "Runbooks of the alerts", "Results": "Results of the benchmarks"}
    lines = [f"- [{title(path)}]({path.rpartition('/')[2]})" for path in pages_in(folder)]
    return f"# {heading[name]}\n\n" + "\n".join(lines) + "\n"
