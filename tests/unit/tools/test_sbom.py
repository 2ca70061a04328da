"""A bill of materials names every package that its image installs, with version and hash, and is the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.tools.conftest import ROOT, load_tool

lock = load_tool("lock")
sbom = load_tool("sbom")


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


def test_a_package_of_two_lists_is_in_the_bill_once() -> None:
    shared = "rich==1.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    merged = sbom.merged([f"# One list.\n{shared}", f"# Another.\nclick==2 \\\n    --hash=sha256:02\n{shared}"])
    assert lock.PIN.findall(merged) == [("rich", "1.0"), ("click", "2")]
    assert merged.count("sha256:01") == 1
