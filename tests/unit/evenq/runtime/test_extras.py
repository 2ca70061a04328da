"""What is not installed is said with the extra that brings it, by every program; our own mistakes keep their traceback."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evenq.runtime.extras import EXTRA_OF, is_installed, missing, sentence

ROOT = Path(__file__).resolve().parents[4]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def names(extra: str) -> set[str]:
    """As they are imported."""
    imported = {
        "backports.zstd": "backports",
        "opentelemetry-api": "opentelemetry",
        "opentelemetry-exporter-otlp-proto-grpc": "opentelemetry.exporter.otlp.proto.grpc",
        "opentelemetry-sdk": "opentelemetry.sdk",
    }
    packages = [re.split(r"[>=; \[]", one)[0] for one in EXTRAS[extra]]
    return {imported.get(package, package.replace("-", "_")) for package in packages}


def test_the_table_is_that_of_the_package() -> None:
    assert all(package in names(extra) for package, extra in EXTRA_OF.items())
    assert set().union(*map(names, EXTRAS)) <= set(EXTRA_OF)
    assert names("cli") <= names("server"), "who runs servers has their commands, too"


def test_the_sentence_names_package_and_extra() -> None:
    assert sentence("evenq-broker", ModuleNotFoundError("x", name="pydantic.fields")).endswith(
        'the package pydantic, which is not installed: pip install "evenq[server]" (in a clone: pip install ".[server]")'
    )
    assert "evenq[cli]" in missing("the command line", "rich")
    ours = ModuleNotFoundError("x", name="evenq.typo")
    with pytest.raises(ModuleNotFoundError) as raised:
        sentence("evenq", ours)
    assert raised.value is ours
    assert is_installed("rich")
    assert not is_installed("no_such_package")


BLOCKED = """
import sys
for name in ({blocked}):
    sys.modules[name] = None
sys.argv = {argv!r}
from {module} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "argv", "blocked", "extra"),
    [
        ("evenq.cli.__main__", ["evenq", "topic", "create", "orders"], ["rich"], "cli"),
        ("evenq.cli.__main__", ["evenq", "up"], ["pydantic", "prometheus_client", "crc32c"], "server"),
        ("evenq.cli.__main__", ["evenq", "up"], ["rich", "pydantic"], "server"),
        ("evenq.cli.__main__", ["evenq", "console"], ["rich", "starlette"], "cli,console"),
        ("evenq.cli.__main__", ["evenq", "store", "inspect", "x"], ["crc32c"], "server"),
        ("evenq.cli.__main__", ["evenq", "store", "inspect", "x"], ["rich", "crc32c"], "server"),
        ("evenq.cli.__main__", ["evenq", "table", "list", "--to", "x"], ["rich"], "tables"),
        ("evenq.cli.__main__", ["evenq", "query", "select 1", "--tables", "x"], ["duckdb"], "query"),
        ("evenq.cli.__main__", ["evenq", "query", "select 1", "--tables", "x"], ["rich", "duckdb"], "query"),
        ("evenq_broker.__main__", ["evenq-broker"], ["pydantic"], "server"),
        ("evenq_nameserver.__main__", ["evenq-nameserver"], ["pydantic"], "server"),
        ("evenq_rebalancer.__main__", ["evenq-rebalancer"], ["pydantic"], "server"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_program_without_its_extra_says_one_sentence(
    module: str, argv: list[str], blocked: list[str], extra: str
) -> None:
    code = BLOCKED.format(module=module, argv=argv, blocked=", ".join(f"{name!r}" for name in blocked) + ",")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f'pip install "evenq[{extra}]"' in ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


def test_help_and_version_need_no_extra() -> None:
    for argv in (["evenq"], ["evenq", "--help"], ["evenq", "--version"], ["evenq", "topic", "--help"]):
        code = BLOCKED.format(module="evenq.cli.__main__", argv=argv, blocked="'rich', 'pydantic', 'crc32c',")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), argv
