"""One implementation of each call: what a command asks of servers, `evenq.Admin` can ask, and no command calls by itself.

Every command of the grammar and every method of the admin runs once over a net that answers everything and writes down
what it was asked.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import evenq
import evenq.cli
from evenq import aio
from evenq.cli.__main__ import main
from evenq.cli.parser import make_parser
from evenq.client.wiring import ClientContext
from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, dead_letters_pb2

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (admin_pb2, "Admin"),
        (dead_letters_pb2, "DeadLetters"),
        (assignment_pb2, "Assignment"),
        (service_pb2, "MessagingService"),
        (v2_admin, "Admin"),
    )
]
RESPONSES = {
    f"/{service.full_name}/{method.name}": method.output_type for service in SERVICES for method in service.methods
}
ADMIN_RPCS = {name for name in RESPONSES if name.startswith(("/evenq.v1.Admin/", "/evenq.v1.DeadLetters/"))} | {
    "/evenq.v1.Assignment/Explain",
    "/evenq.v1.Assignment/Simulate",
    "/apache.rocketmq.v2.MessagingService/RecallMessage",
    "/apache.rocketmq.v2.Admin/PrintThreadStackTrace",
}
OTHER_CLIENTS = {"produce", "consume", "verify", "up"}
"""Commands that send and receive, by the clients of the SDK."""
OK = definition_pb2.Status(code=definition_pb2.OK)


class Hurried(SystemClock):
    """Waits for nothing, and says that the time has passed: an answer that never changes is not worth it."""

    def __init__(self) -> None:
        self._ahead_ms = 0.0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + int(self._ahead_ms)

    async def sleep_ms(self, duration_ms: float) -> None:
        self._ahead_ms += duration_ms
        await super().sleep_ms(0)


class Net:
    """Says OK to everything, with one queue where a decision is wanted."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    async def unary(self, _address: str, method: str, _request: bytes, **_: Any) -> bytes:
        self.called.add(method)
        response: Any = RESPONSES[method]._concrete_class(status=OK)
        if method.endswith("Explain"):
            response.queues.add(owner="m").queue.topic = "t"
        if method.endswith("DrainBroker"):
            response.empty = True
        encoded: bytes = response.SerializeToString()
        return encoded

    async def stream(self, _address: str, method: str, _request: bytes, **_: Any) -> AsyncIterator[bytes]:
        self.called.add(method)
        yield dead_letters_pb2.ReplayProgress(status=OK, broker_name="b", done=True).SerializeToString()

    async def close(self) -> None:
        """Nothing to end."""


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for group in groups:
        for name, below in group.choices.items():
            yield from leaves(below, (*words, name))
    if not groups:
        yield words, parser


def line(words: tuple[str, ...], parser: argparse.ArgumentParser) -> list[str]:
    """The shortest line that the command takes, and does."""
    found = list(words)
    for action in parser._actions:
        if action.option_strings:
            wanted = action.required or action.dest == "yes"
            if wanted and action.nargs == 0:
                found.append(action.option_strings[-1])
            elif wanted and words != ("broker", "grow"):  # its members are no number
                found += [action.option_strings[0], "1"]
        else:
            found.append(next(iter(action.choices)) if action.choices else "x" if action.type is None else "1")
    special: dict[tuple[str, ...], list[str]] = {
        ("offset", "reset"): ["--to", "latest"],
        ("group", "simulate"): ["--members", "2"],
        ("broker", "grow"): ["--members", "0=h:1,1=h:2", "--wait", "0"],
        ("broker", "replace"): ["--by", "2", "--wait", "0"],
        ("message", "get"): [],
        ("topic", "list"): ["--lite"],
    }
    return found + special.get(words, [])


COMMANDS = [
    (words, parser)
    for words, parser in leaves(make_parser())
    if any("--endpoint" in action.option_strings for action in parser._actions) and words[0] not in OTHER_CLIENTS
]


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
        "accept_data_loss": True,
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


def test_no_command_speaks_to_servers_by_itself() -> None:
    folder = Path(evenq.cli.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.name.startswith("store"):
            continue  # they read files, whose records are protobuf
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("evenq.wire.stubs") for name in names), str(path)
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"unary", "at_access_point"}, f"{path} line {node.lineno}"
