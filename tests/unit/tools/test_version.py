"""A package's version is its git tag's where there is one, and else what the code says."""

import datetime as dt
import re
import subprocess

import pytest

import evenq
from tests.unit.tools.conftest import ROOT, load_tool

tool = load_tool("version")


def git(folder, *words):
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src/evenq/runtime").mkdir(parents=True)
    (tmp_path / "src/evenq/runtime/version.py").write_text('"""Doc."""\n__version__ = "1.4.2"\n')
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def test_without_a_tag_it_is_what_the_code_says(checkout):
    assert tool.version(checkout) == "1.4.2"


def test_at_a_tag_it_is_the_tag(checkout):
    git(checkout, "tag", "v1.4.2")
    assert tool.version(checkout) == "1.4.2"


def test_a_tag_that_disagrees_with_the_code_builds_nothing(checkout):
    git(checkout, "tag", "v1.5.0")
    with pytest.raises(ValueError, match=r"the tag is 1\.5\.0, but .* 1\.4\.2: change the file"):
        tool.version(checkout)


def test_behind_a_tag_it_is_a_build_of_the_next_version(checkout):
    git(checkout, "tag", "v1.4.2")
    git(checkout, "commit", "--allow-empty", "-m", "two")
    assert tool.version(checkout).startswith("1.4.3.dev1+g")


def test_an_unpacked_archive_inside_of_another_checkout_is_not_taken_for_it(checkout):
    git(checkout, "tag", "v9.9.9")
    inner = checkout / "inner"
    (inner / "src/evenq/runtime").mkdir(parents=True)
    (inner / "src/evenq/runtime/version.py").write_text('__version__ = "1.4.2"\n')
    assert tool.version(inner) == "1.4.2"


def test_every_file_that_names_the_version_names_the_same_one():
    said = evenq.__version__
    assert tool.named() == {path: {said} for path in tool.PLACES}
    [date] = re.findall(rf"^## \[{said}\] - (\d{{4}}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"\ndate-released: {date}\n" in (ROOT / "CITATION.cff").read_text()


def test_no_other_file_names_an_image_with_a_version():
    """Results of benchmarks keep the version that was measured."""
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("*/*/README.md"), *ROOT.glob("docker/*")]
    pages += [*ROOT.glob("spark/examples/**/*.yaml"), *ROOT.glob("helm/**/*.yaml")]
    found = {
        page.relative_to(ROOT).as_posix()
        for page in pages
        if page.is_file() and re.search(tool.IMAGE, page.read_text(encoding="utf-8"))
    }
    assert found == {path for path, form in tool.PLACES.items() if form == tool.IMAGE}


@pytest.fixture
def project(tmp_path):
    """A copy of the files that name the version."""
    for path in [*tool.PLACES, "CHANGELOG.md"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((ROOT / path).read_bytes())
    return tmp_path


def test_a_release_is_begun_in_every_file(project):
    changed = tool.begin_release("7.8.9", dt.date(2031, 2, 3), project)
    assert set(changed) == {*tool.PLACES, "CHANGELOG.md"}
    assert tool.named(project) == {path: {"7.8.9"} for path in tool.PLACES}
    assert "\n## [Unreleased]\n\n## [7.8.9] - 2031-02-03\n" in (project / "CHANGELOG.md").read_text()
    assert "\ndate-released: 2031-02-03\n" in (project / "CITATION.cff").read_text()
    assert "evenq/broker:7.8.9 ." in (project / "docker/README.md").read_text()


@pytest.mark.parametrize(
    ("wanted", "text"), [("7.8", "must be MAJOR.MINOR.PATCH"), (evenq.__version__, "already has a section of")]
)
def test_a_release_that_cannot_begin_changes_nothing(project, wanted, text):
    before = {path: (project / path).read_bytes() for path in [*tool.PLACES, "CHANGELOG.md"]}
    with pytest.raises(ValueError, match=text):
        tool.begin_release(wanted, dt.date(2031, 2, 3), project)
    assert {path: (project / path).read_bytes() for path in before} == before
