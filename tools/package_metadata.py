"""README and addresses of a package, for hatchling (`[tool.hatch.metadata.hooks.custom]` in pyproject.toml).

A package index shows README.md without the files beside it, so links and pictures become absolute. The addresses are
those of the site: EVENQ_SITE_REPOSITORY is the repository, EVENQ_SITE_URL the site. Links of version X.Y.Z lead to its
tag, those of a build between two releases to `main`. Without a repository, links to files become plain text and
pictures are left out, so that no link of the page is dead. A wheel that is built from a source archive takes both from
the archive.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
CLONE = (("From a clone, with Python", "With Python"), ('pip install ".[', 'pip install "evenq['))
"""Text of a reader who has a clone, and of one who has a package index."""
RELEASE = re.compile(r"\d+\.\d+\.\d+")


class PackageMetadata(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling before it writes the metadata."""
        root = Path(self.root)
        if (root / "PKG-INFO").is_file():  # hatchling has read both from it
            return
        repository, site = address("EVENQ_SITE_REPOSITORY"), address("EVENQ_SITE_URL")
        text = (root / "README.md").read_text(encoding="utf-8")
        readme = rendered(text, repository=repository, reference=reference(version_of(root)))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        metadata["urls"] = urls(repository=repository, site=site)


def address(name: str) -> str:
    """Returns an address of the environment, without a slash at its end. Raises ValueError if it is not one."""
    value = os.environ.get(name, "").rstrip("/")
    if value and not value.startswith("https://"):
        raise ValueError(f"{name} is {value!r}; it must begin with https:// or be empty")
    return value


def version_of(root: Path) -> str:
    """Returns what `tools/version.py`, which is not in a package, says about a checkout."""
    spec = importlib.util.spec_from_file_location("evenq_tools_version", root / "tools" / "version.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.version(root))


def reference(version: str) -> str:
    """Returns the tag of a release; `main` for a build between two releases."""
    return f"v{version}" if RELEASE.fullmatch(version) else "main"


def urls(*, repository: str, site: str) -> dict[str, str]:
    """Returns the links that a package index shows beside the page; empty without addresses."""
    found = {}
    if site or repository:
        found["Homepage"] = site or repository
    if repository:
        found["Documentation"] = site or f"{repository}/blob/main/docs/README.md"
        found["Source"] = repository
        found["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
        found["Issues"] = f"{repository}/issues"
        found["Security"] = f"{repository}/blob/main/SECURITY.md"
    return found


def rendered(text: str, *, repository: str, reference: str) -> str:
    """Returns the README for a reader who has no clone. Programs stay as they are."""

    def resolved(found: re.Match[str]) -> str:
        if repository:
            form = "raw" if found["picture"] else "blob"
            return f"{found['picture']}[{found['text']}]({repository}/{form}/{reference}/{found['target']})"
        return "" if found["picture"] else found["text"]

    for here, there in CLONE:
        text = text.replace(here, there)
    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(resolved, part) for part in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))
