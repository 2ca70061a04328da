"""A bill of materials names every package that its image installs, with version and hash, and is the same each time."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def tool(name: str) -> ModuleType:
    """A program of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lock = tool("lock")
sbom = tool("sbom")


@pytest.mark.slow
def test_the_bill_of_an_image_lists_exactly_what_its_lists_install(tmp_path: Path) -> None:
    path = sbom.write("rebalancer", tmp_path / "one")
    bill = json.loads(path.read_text())
    listed = {(part["name"].lower().replace("_", "-"), part["version"]) for part in bill["components"]}
    texts = [(ROOT / "docker" / name).read_text() for name in sbom.LISTS["rebalancer"]]
    expected = {(name.lower().replace("_", "-"), version) for text in texts for name, version in lock.PIN.findall(text)}
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "evenq"
    assert listed == expected
    assert all(part["externalReferences"][0]["hashes"] for part in bill["components"])
    assert sbom.write("rebalancer", tmp_path / "two").read_bytes() == path.read_bytes()
