"""The hooks of the documentation's site: MkDocs calls them, see mkdocs.yml.

Pages stay where a code host shows them, and links between them are relative. So the site's source folder is the root of
the repository, restricted to the pages for readers (`pages.py`). The navigation is the list of docs/README.md
(`navigation.py`). Links to other files go to EVENQ_SITE_SOURCE, or become plain text (`links.py`). The reference of the
Python API is generated (`api.py`), from the table in docs/reference/api/README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import api
import links
import markup
import navigation
import pages
from mkdocs.exceptions import ConfigurationError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets navigation and links of the site."""
    repository = (config.repo_url or "").rstrip("/")
    source = config.extra["source"] or (f"{repository}/blob/main/" if repository else "")
    if source and not source.startswith(("https://", "http://")):
        raise ConfigurationError(
            f"EVENQ_SITE_SOURCE is {source!r}; it must begin with https:// or http://, or be empty"
        )
    config.repo_url = repository or None
    config.nav = navigation.read(pages.all_pages())
    config.markdown_extensions.append(links.Links(source))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Replaces the files of docs/ by those of the repository, under the same paths."""
    theirs = [file for file in files if file.src_dir != config.docs_dir]  # of the theme and of plugins
    ours = [
        File(path, str(pages.ROOT), config.site_dir, config.use_directory_urls, dest_uri=pages.address(path))
        for path in [*pages.all_pages(), *pages.assets()]
    ]
    made = [
        File.generated(config, path, content=text) for path, text in {**api.pages(), **pages.folder_pages()}.items()
    ]
    for file in made:
        file.dest_uri = pages.address(file.src_uri)
    return Files([*theirs, *ours, *made])


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: object) -> str:
    """Prepares a page: what Python-Markdown reads in another way than code hosts, and links to folders and sources."""
    links.enter(page.file.src_uri, {file.src_uri for file in files})
    if page.file.src_uri == api.TABLE:
        markdown = api.with_links(markdown)
    return markup.prepared(markdown)
