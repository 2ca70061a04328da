"""A package's version is its git tag's where there is one, and else what the code says."""

import subprocess

import pytest

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


def test_changelog_chart_and_code_tell_one_version():
    said = tool.re.search(r'__version__ = "(.+)"', (ROOT / "src/evenq/runtime/version.py").read_text())[1]
    assert f"## [{said}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"appVersion: {said}\n" in (ROOT / "helm/evenq/Chart.yaml").read_text()
