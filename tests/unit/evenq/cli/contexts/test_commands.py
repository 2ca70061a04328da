"""`evenq context`: what is stored, what is printed, and that no output has a secret."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

SECRET = "a-long-secret-key"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text(f"{SECRET}\nnot this line\n")
    path.chmod(0o600)
    return path


def add(run: Any, name: str, more: str = "") -> None:
    code, _, err, _ = run(f"context add {name} --endpoint {name}:1 {more}")
    assert code == 0, err


def test_no_output_has_the_secret_key(run: Any, secret_file: Path, config_of_its_own: Path) -> None:
    printed = ""
    lines = [f"context add prod --endpoint prod:1 --access-key shop --secret {secret_file} --use"]
    lines += [f"context {action} -o {form}" for action in ("list", "show", "show prod") for form in ("table", "json")]
    lines += ["context use prod", "context remove prod"]
    for line in lines:
        if line == "context remove prod":
            assert SECRET in (config_of_its_own / "evenq" / "contexts.json").read_text()
        code, out, err, _ = run(line)
        assert code == 0, err
        printed += out + err
    assert SECRET not in printed
    assert "shop" in printed


def test_the_secret_key_comes_from_a_pipe_or_the_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    add(run, "piped", "--access-key shop --secret -")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda text: SECRET if "shop" in text else "")
    add(run, "typed", "--access-key shop")
    for name in ("piped", "typed"):
        assert json.loads(run(f"context show {name} -o json")[1])["secret_key_is_set"] is True


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--access-key shop", "the secret key is missing: give --secret FILE"),
        ("--secret -", "--secret is the secret key of --access-key; give both"),
        ("--access-key shop --secret - --credentials x", "give --credentials or --access-key, not both"),
        ("--access-key shop --secret -", "the secret key of shop is empty"),
        ("--namespace a%b", "the namespace 'a%b' is not 1 to 64 letters"),
        ("--credentials nowhere.toml", "the credentials file cannot be read"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_stored(
    run: Any, monkeypatch: pytest.MonkeyPatch, config_of_its_own: Path, more: str, text: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err, _ = run(f"context add prod --endpoint prod:1 {more}")
    assert (code, text in err) == (2, True), err
    assert not config_of_its_own.exists()


def test_an_existing_context_is_replaced_only_on_request(run: Any) -> None:
    add(run, "prod", "--namespace team")
    code, _, err, _ = run("context add prod --endpoint other:1")
    assert (code, "add --replace" in err) == (2, True)
    add(run, "prod", "--replace")
    assert json.loads(run("context show prod -o json")[1]) == {
        "context": "prod",
        "current": False,
        "endpoint": "prod:1",
    }


def test_paths_are_stored_absolute_so_that_every_folder_may_use_them(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys.toml").write_text('access_key = "a"\nsecret_key = "b"\n')
    (tmp_path / "keys.toml").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    add(run, "prod", "--credentials keys.toml --tls-ca ca.pem")
    shown = json.loads(run("context show prod -o json")[1])
    assert (shown["credentials"], shown["tls_ca"]) == (str(tmp_path / "keys.toml"), str(tmp_path / "ca.pem"))


def test_use_sets_the_context_of_later_commands(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run, "a")
    add(run, "b")
    assert run("context use b")[0] == 0
    listed = json.loads(run("context list -o json")[1])
    assert [(row["context"], row["current"]) for row in listed] == [("a", False), ("b", True)]
    assert run("context show -o name")[1] == "b\n"
    monkeypatch.setenv("EVENQ_CONTEXT", "a")
    assert run("context show -o name")[1] == "a\n"
    assert "EVENQ_CONTEXT is set" in run("context use b")[1]
    monkeypatch.setenv("EVENQ_ENDPOINT", "x:1")
    assert "No context is used: EVENQ_ENDPOINT is set" in " ".join(run("context show")[1].split())
    assert run("context use --none")[0] == 0
    assert not any(row["current"] for row in json.loads(run("context list -o json")[1]))


@pytest.mark.parametrize("line", ["context use other", "context show other", "context remove other"])
def test_a_context_that_does_not_exist_is_code_3(run: Any, line: str) -> None:
    code, _, err, _ = run(line)
    assert (code, "evenq context list" in err) == (3, True)


def test_nothing_to_use_is_a_mistake_of_the_command_line(run: Any) -> None:
    for line in ("context use", "context use a --none"):
        code, _, err, _ = run(line)
        assert (code, "evenq context list" in err) == (2, True)


def test_the_error_of_a_silent_cluster_names_the_context(run: Any) -> None:
    from evenq.client.rpc.transport import AccessPointSilent

    add(run, "prod", "--use")
    code, _, err, _ = run("topic list", ListTopics=AccessPointSilent("silent"))
    assert code == 5
    assert "no server answers at prod:1 (context prod)" in err
