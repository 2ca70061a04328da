"""The pinned lists cover what pyproject.toml asks for, with a hash for every file, and the images install parts of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.tools.conftest import ROOT, load_tool

lock = load_tool("lock")


LISTS = [ROOT / "constraints.txt", *(ROOT / "docker" / name for name in lock.IMAGE_LISTS)]


def versions(path: Path) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in lock.PIN.findall(path.read_text())}


@pytest.mark.parametrize(
    "name",
    [
        "constraints.txt",
        "requirements-server.txt",
        "requirements-kubernetes.txt",
        "requirements-console.txt",
        "requirements-tables.txt",
        "requirements-spark.txt",
    ],
)
def test_a_requirement_that_no_pin_satisfies_is_noticed(name: str) -> None:
    expected = lock.direct(tomllib.loads((ROOT / "pyproject.toml").read_text()))[name]
    pinned = versions(ROOT / name if name == "constraints.txt" else ROOT / "docker" / name)
    assert expected
    for text in expected:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), f"run `make lock`: {text}"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_pin_has_hashes_so_that_pip_checks_each_file(path: Path) -> None:
    blocks = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).strip())
    assert len(blocks) == len(versions(path)) > 0
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]


@pytest.mark.parametrize("name", lock.IMAGE_LISTS)
def test_images_install_the_versions_that_were_tested(name: str) -> None:
    tested = versions(ROOT / "constraints.txt")
    for package, version in versions(ROOT / "docker" / name).items():
        assert tested[package] == version


def test_no_list_names_where_packages_come_from() -> None:
    for path in LISTS:
        assert "://" not in path.read_text()


def test_an_extra_that_names_another_one_has_its_requirements() -> None:
    project = {"project": {"optional-dependencies": {"cli": ["rich>=13"], "server": ["evenq[cli]", "lark"]}}}
    assert lock.extra_of(project, "server") == ["rich>=13", "lark"]


def test_the_lines_of_one_package_end_where_the_next_begins() -> None:
    text = "alpha==1 \\\n    --hash=sha256:aa\nbeta==2 \\\n    --hash=sha256:bb\n"
    assert lock.only("alpha", text) == "alpha==1 \\\n    --hash=sha256:aa\n"
    assert lock.only("beta", text) == "beta==2 \\\n    --hash=sha256:bb\n"


def test_images_take_their_base_by_digest_and_packages_only_by_hash() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+) AS (\S+)$", dockerfile, re.MULTILINE)
    stages = {name for _, name in bases}
    assert {base for base, _ in bases} - stages == {"${PYTHON_IMAGE}"}
    for command in re.findall(r"pip (?:install|wheel) ([^&\n]*)", dockerfile):
        assert "--require-hashes" in command or "--no-build-isolation" in command or "--no-index" in command, command


def test_the_oldest_versions_that_make_tests_are_the_lower_bounds_of_the_project() -> None:
    makefile = (ROOT / "tools" / "campaigns.mk").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [Requirement(one) for one in project["project"]["dependencies"] + lock.extra_of(project, "spark")]
    expected = {one.name: one for one in asked}
    listed = re.search(r"^OLDEST := (\S+)$", makefile, re.MULTILINE)
    assert listed is not None
    oldest = dict(one.split("_") for one in listed[1].split("+")) | {"pyspark": "4.2.0"}
    assert "build/pyspark_4.2.0/" in makefile
    assert oldest.keys() == expected.keys()
    for name, version in oldest.items():
        (bound,) = expected[name].specifier
        assert bound.operator == ">="
        assert bound.contains(version)
        assert version.startswith(bound.version), f"{name}: {bound} is the bound, {version} is tested"
