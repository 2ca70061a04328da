"""`evenq console`: what its options mean, and which are refused. tests/integration/test_quick_start.py runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq.cli.console import settings_of
from evenq.cli.parser import make_parser
from evenq.console.settings import ConsoleSettings
from evenq.errors import SettingsError


def settings(*words: str) -> ConsoleSettings:
    return settings_of(make_parser().parse_args(["console", "--endpoint", "h:1", *words]))


def test_by_default_it_only_shows_and_only_to_this_machine() -> None:
    plain = settings()
    assert plain == ConsoleSettings(endpoint="h:1", host="127.0.0.1", port=8080)
    assert (plain.allow_changes, plain.https) == (False, False)


def test_names_prefix_and_https_are_taken(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.touch()
    key.touch()
    files = ("--https-certificate", str(certificate), "--https-key", str(key))
    assert settings("--prefix", "/a/b/", "--name", "x", "--name", "y", "--allow-changes", *files) == ConsoleSettings(
        endpoint="h:1",
        prefix="/a/b",
        names=("x", "y"),
        allow_changes=True,
        certificate=certificate,
        key=key,
        https=True,
    )
    assert settings("--behind-https").https


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--prefix", "evenq"), "--prefix evenq is not a path such as /evenq"),
        (("--prefix", "//other"), "--prefix //other is not a path"),
        (("--prefix", "/a b"), "is not a path"),
        (("--https-key", "k.pem"), "give both --https-certificate and --https-key"),
        (("--https-certificate", "none.pem", "--https-key", "k.pem"), "--https-certificate none.pem is not a file"),
    ],
)
def test_a_wrong_option_is_named(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        settings(*words)
