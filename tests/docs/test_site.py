"""The site builds strict, its links and anchors lead somewhere, it asks no other host, and it shows what a code host
shows.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("EVENQ_SITE_REPOSITORY", "EVENQ_SITE_SOURCE", "EVENQ_SITE_URL")
LIMIT_S = 600
pytestmark = pytest.mark.timeout(2 * LIMIT_S)  # a build is 10 s of a calm processor, and minutes of a busy one
COMPARED = {"li", "ul", "ol", "table", "tr", "td", "th", "pre", "h1", "h2", "h3", "h4", "strong", "em", "img"}
RESOURCES = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


def build(root: Path, target: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"NO_MKDOCS_2_WARNING": "1", **variables}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, cwd=root, check=False
    )


class Parsed(HTMLParser):
    """What the tests look at in one page."""

    def __init__(self, text: str, *, whole: bool) -> None:
        """`whole`: the text is the content alone; otherwise the content is in the element `article`."""
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.counts: Counter[str] = Counter()
        self.codes: list[str] = []
        self._content = whole
        self._code: list[str] | None = None
        self._pre = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in RESOURCES and not (tag == "link" and given.get("rel") in {"canonical", "next", "prev"}):
            self.resources.append(given.get(RESOURCES[tag], ""))
        self._content = self._content or tag == "article"
        self._pre = self._pre or tag == "pre"
        if self._content:
            self.counts[tag] += tag in COMPARED
            if tag == "code" and not self._pre:
                self._code = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._content = False
        if tag == "pre":
            self._pre = False
        if tag == "code" and self._code is not None:
            self.codes.append(" ".join("".join(self._code).split()))
            self._code = None

    def handle_data(self, data: str) -> None:
        if self._code is not None:
            self._code.append(data)


class Site:
    """The built site, and the pages of the repository that it was made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = {
            path.relative_to(folder).as_posix(): Parsed(path.read_text(encoding="utf-8"), whole=False)
            for path in sorted(folder.rglob("*.html"))
        }

    def broken(self, page: str) -> list[str]:
        """Links of a page to files or anchors that are not in the site."""
        wrong = []
        for link in self.pages[page].links + self.pages[page].resources:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not link:
                continue
            path = (self.folder / page).parent / unquote(parts.path) if parts.path else self.folder / page
            path = path.resolve()
            target = path.relative_to(self.folder.resolve()).as_posix()
            if target in self.pages:
                if parts.fragment and parts.fragment not in self.pages[target].ids | {"__skip", "__codelineno"}:
                    wrong.append(f"{page}: no anchor {link}")
            elif not path.is_file():
                wrong.append(f"{page}: no file {link}")
        return wrong


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return Site(folder)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Addresses in the site by the path of a page, as tools/site/pages.py defines them."""
    program = "import json, pages; print(json.dumps({path: pages.address(path) for path in pages.all_pages()}))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT / "tools" / "site", check=True
    )
    return json.loads(done.stdout)


def test_every_link_and_anchor_of_the_site_leads_somewhere(site):
    assert len(site.pages) > 200
    assert [wrong for page in site.pages if page != "404.html" for wrong in site.broken(page)] == []


def test_no_page_loads_anything_from_another_host(site):
    loaded = {resource for page in site.pages.values() for resource in page.resources}
    assert {resource for resource in loaded if urlsplit(resource).netloc} == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.folder.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []


def test_every_page_of_the_documentation_is_reached_from_the_home_page(site, sources, all_pages):
    reached, waiting = {"index.html"}, ["index.html"]
    while waiting:
        page = waiting.pop()
        for link in site.pages[page].links:
            target = os.path.normpath(os.path.join(os.path.dirname(page), unquote(urlsplit(link).path)))
            if not urlsplit(link).netloc and target in site.pages and target not in reached:
                reached.add(target)
                waiting.append(target)
    assert set(all_pages) <= set(sources)
    assert [path for path, address in sources.items() if address not in reached] == []


def test_the_site_shows_lists_tables_and_code_as_a_code_host_does(site, sources):
    commonmark = MarkdownIt("commonmark").enable("table")
    different = []
    for path, address in sources.items():
        there = Parsed(commonmark.render((ROOT / path).read_text(encoding="utf-8")), whole=True)
        here = site.pages[address]
        if there.counts != here.counts:
            different.append(f"{path}: {there.counts - here.counts} missing, {here.counts - there.counts} too many")
        elif there.codes != here.codes:
            first = next((pair for pair in zip(there.codes, here.codes, strict=False) if pair[0] != pair[1]), "")
            different.append(f"{path}: code {first}")
    assert different == []


def test_the_navigation_has_the_sections_of_the_index_and_a_page_of_each_module(site):
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    home = (site.folder / "index.html").read_text(encoding="utf-8")
    tabs = [tab.strip() for tab in re.findall(r'class="md-tabs__link">\s*([^<]+?)\s*<', home)]
    assert tabs == ["Home", *headings]
    for module, name in (
        ("evenq", "evenq.Producer.send"),
        ("evenq", "evenq.Admin.create_topic"),
        ("evenq", "evenq.ProducerOptions.linger_ms"),
        ("evenq.aio", "evenq.aio.PushConsumer.run"),
        ("evenq.errors", "evenq.errors.TopicNotFound"),
        ("evenq.testing", "evenq.testing.LocalCluster.endpoint"),
        ("evenq.allocation", "evenq.allocation.by_name"),
        ("evenq.otel", "evenq.otel.instrument"),
        ("pyspark_evenq", "pyspark_evenq.to_dlq"),
    ):
        assert name in site.pages[f"reference/api/{module}.html"].ids, f"{name} is not documented"


# ------------------------------------------------------------------------------------------ what a strict build refuses


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with two pages and the hooks."""
    root = tmp_path / "repository"
    shutil.copytree(ROOT / "tools" / "site", root / "tools" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "pictures", root / "docs" / "pictures")
    shutil.copy(ROOT / "mkdocs.yml", root / "mkdocs.yml")
    for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (root / name).write_text(f"# {name}\n")
    (root / "README.md").write_text("# Home\n\n[All pages](docs/README.md)\n")
    (root / "src").mkdir()
    (root / "src" / "code.py").write_text("pass\n")
    (root / "docs" / "README.md").write_text(
        "# Index\n\n## One\n\n- [A page: with a text](page.md)\n- [Architecture](../ARCHITECTURE.md)\n"
        "- [Changes](../CHANGELOG.md), [contributing](../CONTRIBUTING.md), [API](reference/api/README.md)\n"
    )
    (root / "docs" / "reference" / "api").mkdir(parents=True)
    (root / "docs" / "reference" / "api" / "README.md").write_text("# API\n")
    (root / "docs" / "page.md").write_text("# Page\n\n[the code](../src/code.py#L1) and [home](../README.md)\n")
    return root


def test_a_link_to_a_source_file_goes_to_the_repository_or_becomes_text(small, tmp_path):
    built = build(small, tmp_path / "text")
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "text" / "page.html").read_text(encoding="utf-8")
    assert "<span>the code</span>" in page
    assert "A page\n" in page, "the title in the navigation ends at the colon"
    assert "with a text" not in page

    repository = "https://code.example.org/evenq"
    built = build(small, tmp_path / "linked", EVENQ_SITE_REPOSITORY=repository)
    assert built.returncode == 0, built.stdout + built.stderr
    linked = Parsed((tmp_path / "linked" / "page.html").read_text(encoding="utf-8"), whole=False)
    assert f"{repository}/blob/main/src/code.py#L1" in linked.links
    small_site = Site(tmp_path / "text")
    assert [wrong for name in small_site.pages if name != "404.html" for wrong in small_site.broken(name)] == []


def test_a_broken_link_a_broken_anchor_and_an_orphan_fail_the_build(small, tmp_path):
    (small / "docs" / "page.md").write_text(
        "# Page\n\n[gone](gone.md) [nowhere](../README.md#nowhere) [src](../src/no.py)\n"
    )
    (small / "docs" / "orphan.md").write_text("# Nobody lists me\n")
    built = build(small, tmp_path / "site")
    assert built.returncode == 1
    for part in ("link 'gone.md'", "'../README.md#nowhere'", "link '../src/no.py'", "- docs/orphan.md"):
        assert part in built.stdout + built.stderr


def test_an_address_that_is_not_one_is_refused(small, tmp_path):
    built = build(small, tmp_path / "site", EVENQ_SITE_SOURCE="code.example.org")
    assert built.returncode == 1
    assert "EVENQ_SITE_SOURCE is 'code.example.org'; it must begin with https://" in built.stdout + built.stderr


# -------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name is the library's
            pass

    handler = functools.partial(Quiet, directory=str(site.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_search_finds_a_page_and_dark_mode_follows_the_system(address):
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("EVENQ_TEST_ALL"):
            pytest.fail("Chromium is not installed; on Debian: apt-get install chromium")
        pytest.skip("Chromium is not installed")
    hosts: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(color_scheme="dark").new_page()
        page.set_default_timeout(120_000)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(f"{address}/start/terms.html")
        assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
        page.get_by_role("textbox", name="Search").fill("replay dead letters")
        page.locator(".md-search-result__link").first.wait_for()
        assert "dead letter" in page.locator(".md-search-result__list").inner_text().lower()
        browser.close()
    assert hosts == {urlsplit(address).netloc}
