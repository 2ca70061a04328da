"""`evenq auth check`: exit codes, the table, and no secret in any output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILE = """
[users.evenq-internal]
secret = "internal-secret"
internal = true
[users.shop]
secret = "secret-of-shop"
allow = [{ resource = "topic:orders", actions = ["publish"] }]
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def test_the_exit_code_is_the_decision(run: Any, users: Path) -> None:
    code, out, err, calls = run(f"auth check shop SendMessage orders --users {users} -o json")
    assert (code, calls) == (0, [])
    assert json.loads(out) == {
        "user": "shop",
        "call": "MessagingService/SendMessage",
        "allowed": True,
        "note": "",
        "needs": [
            {"action": "publish", "resource": "topic:orders", "allowed": True, "grants": 'topic:orders ["publish"]'}
        ],
    }
    code, out, err, _ = run(f"auth check shop CreateTopic orders --users {users}")
    assert code == 1
    assert "User shop may NOT call Admin/CreateTopic." in out
    assert "no grant" in out
    assert "secret-of" not in out + err


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("auth check shop SendMessage orders", 2, "give --users FILE"),
        ("auth check ghost SendMessage orders --users {users}", 3, "no user ghost"),
        ("auth check shop SendMesage orders --users {users}", 2, "did you mean SendMessage"),
        ("auth check shop SendMessage orders --users nowhere.toml", 2, "users file nowhere.toml cannot be read"),
    ],
)
def test_a_mistake_names_what_to_do(run: Any, users: Path, line: str, code: int, text: str) -> None:
    got, _, err, _ = run(line.format(users=users))
    assert (got, text in err) == (code, True), err


def test_the_file_of_the_environment_is_the_default(run: Any, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENQ_BROKER_AUTH__USERS", str(users))
    assert run("auth check shop SendMessage orders")[0] == 0


def test_calls_of_servers_are_listed_on_request(run: Any) -> None:
    shown = run("auth calls -o name")[1].split()
    assert "MessagingService/SendMessage" in shown
    assert "Registry/Register" not in shown
    assert "Registry/Register" in run("auth calls --internal -o name")[1].split()
