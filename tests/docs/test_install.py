"""The package: its files, its page on a package index, and installations of its wheel in fresh environments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from evenq_proofs.waiting import until
from packaging.metadata import Metadata

import evenq

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "evenq": ROOT / "src/evenq",
    "evenq_broker": ROOT / "services/broker/evenq_broker",
    "evenq_nameserver": ROOT / "services/nameserver/evenq_nameserver",
    "evenq_rebalancer": ROOT / "services/rebalancer/evenq_rebalancer",
    "pyspark_evenq": ROOT / "spark/pyspark_evenq",
}
REPOSITORY = "https://git.example.org/evenq/evenq"
PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")

pytestmark = [pytest.mark.docs, pytest.mark.timeout(900)]  # downloads, beside other suites


@dataclass(frozen=True, slots=True)
class Distributions:
    """A source archive, and the wheel that is built from it."""

    archive: Path
    wheel: Path

    def metadata(self) -> Metadata:
        """What a package index reads; raises ExceptionGroup if it is not valid."""
        with zipfile.ZipFile(self.wheel) as wheel:
            [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            return Metadata.from_email(wheel.read(path), validate=True)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The repository's address is known only while the archive is made, as it is for those who build from an archive."""
    folder = tmp_path_factory.mktemp("distributions")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_SITE_")}
    build = [sys.executable, "-m", "build", "--no-isolation"]
    known = {**environment, "EVENQ_SITE_REPOSITORY": REPOSITORY}
    subprocess.run([*build, "--sdist", "--outdir", folder, ROOT], check=True, capture_output=True, env=known)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder)  # made above
    source = folder / archive.name.removesuffix(".tar.gz")
    subprocess.run([*build, "--wheel", "--outdir", folder, source], check=True, capture_output=True, env=environment)
    [wheel] = folder.glob("*.whl")
    return Distributions(archive, wheel)


class Environment:
    """A fresh virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def install(self, wheel: Path, extras: str = "") -> None:
        subprocess.run(
            [self.folder / "bin/pip", *PIP, f"{wheel}{extras}"], check=True, cwd=self.folder, env=self.variables
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / words[0]), *words[1:]],
            capture_output=True, text=True, timeout=120, check=False, cwd=self.folder, env=self.variables,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.folder / "bin" / words[0]), *words[1:]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=self.variables,
        )  # fmt: skip


def test_the_wheel_has_the_five_packages_and_nothing_else(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        texts = {Path(name).name for name in wheel.namelist() if ".dist-info/" in name}
    expected = {
        f"{package}/{path.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
    assert {"METADATA", "entry_points.txt", "LICENSE", "NOTICE"} <= texts
    assert "evenq/py.typed" in names


def test_the_source_archive_has_what_a_build_needs_and_no_tests(distributions: Distributions) -> None:
    with tarfile.open(distributions.archive) as archive:
        names = {Path(name).relative_to(Path(name).parts[0]).as_posix() for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert top == {
        "src", "services", "spark", "protos", "tools", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "PKG-INFO",
        "pyproject.toml", ".gitignore",
    }  # fmt: skip
    assert {name for name in names if name.startswith("tools/")} == {"tools/version.py", "tools/package_metadata.py"}
    assert not [name for name in names if "/tests/" in name or name.endswith((".pyc", ".so"))]


def test_an_index_gets_addresses_and_a_page_without_relative_links(distributions: Distributions) -> None:
    metadata = distributions.metadata()
    assert metadata.project_urls is not None
    assert metadata.project_urls["Source"] == REPOSITORY
    assert set(metadata.project_urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues", "Security"}
    page = metadata.description
    assert page is not None
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    assert 'pip install "evenq[server,console]"' in page
    assert "pip install ." not in page
    assert "From a clone" not in page
    assert metadata.description_content_type == "text/markdown"


def test_an_installation_without_extras_says_what_to_install(distributions: Distributions, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install(distributions.wheel)
    program = "import evenq, evenq.aio, evenq.local; evenq.Producer; evenq.Admin"
    assert environment.run("python", "-c", program).returncode == 0
    version = environment.run("evenq", "--version")
    assert (version.returncode, version.stdout.split()[1]) == (0, distributions.wheel.name.split("-")[1])
    assert environment.run("evenq", "--help").stdout.startswith("usage: evenq")
    for words, extra in (
        (("evenq", "topic", "list"), "cli"),
        (("evenq", "up"), "server"),
        (("evenq-broker",), "server"),
        (("evenq-nameserver",), "server"),
        (("evenq-rebalancer",), "server"),
    ):
        ended = environment.run(*words)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1), ended.stderr
        assert f'pip install "evenq[{extra}]"' in ended.stderr


def test_a_message_is_in_the_console_of_an_installed_wheel(distributions: Distributions, tmp_path: Path) -> None:
    """The first minute of the README, without a clone."""
    environment = Environment(tmp_path)
    environment.install(distributions.wheel, "[server,console]")
    up = environment.start("evenq", "up", "--port", "0", "--console-port", "0")
    try:
        assert up.stdout is not None
        ready = up.stdout.readline()
        assert ready.startswith("ready "), ready or up.communicate(timeout=60)[1]
        environment.variables["EVENQ_ENDPOINT"] = ready.split()[1]
        console = ready.split()[-1].rstrip("/")
        produced = environment.run("evenq", "produce", "hello", "--body", "from a wheel")
        assert (produced.returncode, produced.stderr) == (0, "")

        def page() -> str:
            with urllib.request.urlopen(f"{console}/topics/hello", timeout=60) as answer:
                return str(answer.read().decode())

        until(lambda: "from a wheel" in page())
        up.terminate()
        assert (up.communicate(timeout=60)[1], up.returncode) == ("", 0)
    finally:
        up.kill()
        up.communicate()


def test_the_version_of_the_code_is_that_of_the_package(distributions: Distributions) -> None:
    """A build between two releases has a version of its own (`tools/version.py`)."""
    version = str(distributions.metadata().version)
    assert version == evenq.__version__ or ".dev" in version
