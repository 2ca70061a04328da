"""What the audit says of advisories: found ones fail, accepted ones do not, and those that cannot be had are named."""

from __future__ import annotations

import json

import pytest

from tests.unit.tools.conftest import load_tool

audit = load_tool("audit")


def report(*vulns: dict[str, object], skipped: int = 0) -> str:
    packages: list[dict[str, object]] = [{"name": "lark", "version": "1.3.1", "vulns": list(vulns)}]
    packages += [{"name": f"gone{number}", "skip_reason": "not found"} for number in range(skipped)]
    return json.dumps({"dependencies": packages})


ADVISORY = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": ["1.3.2"], "description": ""}


def test_an_advisory_fails_and_names_package_and_fix() -> None:
    passed, sentence = audit.verdict(audit.advisories_of(report(ADVISORY)))
    assert not passed
    assert "lark 1.3.1: PYSEC-2026-1 (fixed in 1.3.2)" in sentence


def test_an_accepted_advisory_passes_by_any_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        audit, "ACCEPTED", {"CVE-2026-1": "the parser is never given input of others; looked at 2026-11"}
    )
    passed, sentence = audit.verdict(audit.advisories_of(report(ADVISORY)))
    assert passed
    assert sentence == "advisories: none for 1 packages"


def test_packages_that_cannot_be_asked_about_are_counted() -> None:
    assert audit.verdict(audit.advisories_of(report(skipped=3))) == (
        True,
        "advisories: none for 1 packages; not checked: 3",
    )


def test_without_any_answer_it_says_that_nothing_was_checked() -> None:
    nothing = audit.Advisories(judged=0, unjudged=129, open=[])
    assert audit.verdict(nothing) == (
        True,
        "advisories: NOT CHECKED, none of 129 packages could be looked up from here",
    )
    assert audit.verdict("no answer in 240 s") == (True, "advisories: NOT CHECKED, no answer in 240 s")
