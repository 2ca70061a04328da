"""One implementation of each call: what a command asks of servers, `evenq.Admin` can ask, and no command calls by itself.

Every command of the grammar and every method of the admin runs once over a net that answers everything and writes down
what it was asked.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.every_command import ADMIN_RPCS, COMMANDS, Hurried, Net, line

import evenq
import evenq.cli
from evenq import aio
from evenq.cli.__main__ import main
from evenq.client.rpc.transport import AccessPointSilent
from evenq.client.wiring import ClientContext
from evenq.errors import Error, Forbidden


def asked_by_a_command(words: tuple[str, ...], parser: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    net = Net()
    monkeypatch.setattr(ClientContext, "open_net", lambda _: net)
    for module in ("evenq.client.wiring", "evenq.cli.admin"):
        monkeypatch.setattr(f"{module}.SystemClock", Hurried)
    main(line(words, parser))
    return net.called


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some commands write to the folder they are given, and here each is given one by a relative name."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def asked_by_the_admin() -> set[str]:
    """Every public method once, with arguments by their names."""
    values: dict[str, Any] = {
        "topic": "t", "group": "g", "message_id": "m", "queues": 2, "broker": "b", "permission": "READ",
        "brokers": ("b",), "client_id": "c", "recall_handle": "h", "like_group": "o", "members": 2,
        "copy": 1, "new": 2, "address": "h:1", "copies": 2, "in_sync_min": 2,
        "name": "s", "message": evenq.Message(topic="t", body=b"x"), "accept_data_loss": True, "queue": evenq.MessageQueue("t", "b", 0), "offset": 1,
    }  # fmt: skip
    net = Net()

    async def run() -> None:
        context = ClientContext(clock=Hurried(), rng=random.Random(1), net=net)  # type: ignore[arg-type]  # a part of Net
        async with aio.Admin(endpoint="h:1", context=context) as admin:
            for name, method in inspect.getmembers(admin, inspect.iscoroutinefunction):
                if name.startswith("_") or name == "close":
                    continue
                wanted = inspect.signature(method).parameters.values()
                given = {one.name: values[one.name] for one in wanted if one.default is inspect.Parameter.empty}
                if name == "simulate_group":
                    given["members"] = 2
                if name in {"replace_copy", "grow_copies"}:
                    given["wait_ms"] = 0
                if name == "grow_copies":
                    given.update(members={0: "h:1", 1: "h:2"}, in_sync_min=2)
                with contextlib.suppress(Error):  # refused after it was asked
                    await method(**given)

    asyncio.run(run())
    return net.called


@pytest.mark.parametrize(("words", "parser"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_what_a_command_asks_the_admin_can_ask(
    words: tuple[str, ...],
    parser: Any,
    asked_by_the_admin: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = asked_by_a_command(words, parser, monkeypatch)
    assert asked, f"{' '.join(words)} asked nothing: {capsys.readouterr().err}"
    assert asked <= asked_by_the_admin


def test_commands_and_admin_reach_all_that_an_operator_may_ask(
    asked_by_the_admin: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_commands = set(
        itertools.chain.from_iterable(asked_by_a_command(words, parser, monkeypatch) for words, parser in COMMANDS)
    )
    assert by_commands == ADMIN_RPCS
    assert asked_by_the_admin == ADMIN_RPCS


class Refusing:
    """Answers every call with one error."""

    def __init__(self, error: Error) -> None:
        self.error = error

    async def unary(self, *_: Any, **__: Any) -> bytes:
        raise self.error

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        raise self.error
        yield b""

    async def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(("words", "parser"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_every_command_ends_with_the_code_of_the_table_if_it_is_refused_or_not_answered(
    words: tuple[str, ...], parser: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("evenq.client.wiring", "evenq.cli.admin"):
        monkeypatch.setattr(f"{module}.SystemClock", Hurried)
    for error, code in ((Forbidden("no grant"), 4), (AccessPointSilent("silent"), 5)):
        monkeypatch.setattr(ClientContext, "open_net", lambda _, error=error: Refusing(error))
        if words == ("broker", "grow") and code == 5:
            code = 1  # it waits for the group until its --wait is over
        assert main(line(words, parser)) == code, capsys.readouterr().err
        assert capsys.readouterr().err.startswith("evenq: ")


def test_no_command_speaks_to_servers_by_itself() -> None:
    folder = Path(evenq.cli.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.parent.name == "store":
            continue  # they read files, whose records are protobuf
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("evenq.wire.stubs") for name in names), str(path)
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"unary", "at_access_point"}, f"{path} line {node.lineno}"
