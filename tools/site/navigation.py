"""The navigation of the site, read from docs/README.md: its headings are the sections, its lists the pages.

A page is in the navigation where docs/README.md lists it first, apart from items that begin with "See also". A link to
a folder adds all pages of that folder. The title of an entry is the text of its link up to a colon. A page that no list
has is reported by MkDocs as an orphan, and a strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

import api
import pages
from mkdocs.exceptions import ConfigurationError

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
BULLET = re.compile(r"^- (?!See also).*(?:\n[ ]+.*)*", re.MULTILINE)

Entry = dict[str, "str | list[Entry | str]"]
"""A title, with the source path of a page or the entries of a section."""


def read(known: Sequence[str]) -> list[Entry]:
    """Returns the navigation for MkDocs; `known` are the source paths of all pages."""
    text = (pages.ROOT / pages.INDEX).read_text(encoding="utf-8")
    placed = {"README.md", pages.INDEX}
    sections: list[Entry] = [{"Home": ["README.md", {"All pages": pages.INDEX}]}]
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        entries = [
            entry
            for bullet in BULLET.findall(body)
            for name, target in LINK.findall(bullet)
            if "://" not in target
            for entry in _entries(name, posixpath.normpath(posixpath.join("docs", target)), known, placed)
        ]
        if not entries:
            raise ConfigurationError(f"{pages.INDEX}: the section {heading!r} lists no page that is not listed above")
        sections.append({heading.strip(): entries})
    return sections


def _entries(name: str, target: str, known: Sequence[str], placed: set[str]) -> list[Entry | str]:
    short = name.partition(": ")[0].replace("`", "")
    if target in pages.FOLDERS:
        inside = [path for path in pages.pages_in(target) if path not in placed]
        placed.update(inside)
        return [{short: [pages.folder_page(target), *inside]}] if inside else []
    if target not in known or target in placed:
        return []  # a source file; or a page that has its place above
    placed.add(target)
    if target == api.TABLE:
        return [{short: [target, *({module: page} for module, page in api.modules().items())]}]
    return [{short if short.startswith("evenq") else short[:1].upper() + short[1:]: target}]
