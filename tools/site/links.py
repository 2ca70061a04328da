"""Links of pages to files that are not pages of the site: folders, source files, tests.

A code host shows any file of the repository. In the site, a link to a folder that has a page goes to that page. Other
links go to the address of the source files if there is one (EVENQ_SITE_SOURCE), otherwise only their text stays. A link
to a file that does not exist is left as it is, so that MkDocs reports it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Set as AbstractSet
from xml.etree.ElementTree import Element

import pages
from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

_now: tuple[str, AbstractSet[str]] = ("", frozenset())
"""The page that is converted, and the source paths of all files of the site. MkDocs converts one page after another."""


def enter(page: str, files: AbstractSet[str]) -> None:
    """Sets the page that is converted next."""
    global _now  # noqa: PLW0603 - the extension is made once, and MkDocs passes no page to it
    _now = (page, files)


class Links(Extension):
    """Markdown extension that resolves links to files outside the site."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name is Markdown's
        """Registers the processor before that of MkDocs, which reports unknown targets."""
        md.treeprocessors.register(_Resolver(self._source), "evenq_links", priority=15)


class _Resolver(Treeprocessor):
    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def run(self, root: Element) -> None:
        for element in root.iter("a"):
            target = element.get("href", "")
            if target and not target.startswith(("#", "/")) and "://" not in target and "@" not in target:
                self._resolve(element, target)

    def _resolve(self, element: Element, target: str) -> None:
        page, files = _now
        path, _, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if wanted in files or not (pages.ROOT / wanted).exists():
            return
        if pages.folder_page(wanted) in files:
            element.set("href", f"{path.rstrip('/')}/index.md")
        elif self._source:
            element.set("href", self._source.rstrip("/") + "/" + wanted + (f"#{anchor}" if anchor else ""))
        else:
            element.tag = "span"
            element.attrib.clear()
