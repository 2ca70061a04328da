"""The keys of every command's JSON: programs rely on them, so a change must be seen.

`docs/reference/cli_json.txt` has them, and the reference shows them. A new key is fine. A key that is renamed or removed
breaks scripts: that needs a new major version. EVENQ_TEST_WRITE_KEYS=1 writes the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.every_command import COMMANDS, Hurried, Net, line

from evenq.cli import output
from evenq.cli.__main__ import main
from evenq.client.wiring import ClientContext
from evenq.wire.stubs.evenq.v1 import admin_pb2, dead_letters_pb2

FILE = Path(__file__).parents[4] / "docs" / "reference" / "cli_json.txt"
NOT_DONE = {("broker", "replace"), ("broker", "grow"), ("message", "check"), ("asyncapi",)}
"""Two wait for copies, and their result is that of `add-replica`; one needs a transaction that was given up; the last
one prints a document of a form that others define.
"""


class Filled(Net):
    """Has one broker, message, dead letter and client, so that commands about one of them have something to show."""

    def __init__(self, *, broker: bool) -> None:
        super().__init__()
        self.broker = broker

    async def unary(self, address: str, method: str, request: bytes, **more: Any) -> bytes:
        encoded = await super().unary(address, method, request, **more)
        response: Any = None
        match method.rpartition("/")[2]:
            case "ListBrokers" if self.broker:
                response = admin_pb2.ListBrokersResponse.FromString(encoded)
                response.brokers.add(answered=True).broker.name = "x"
            case "FindMessages" | "TraceMessage" as name:
                response = getattr(admin_pb2, f"{name}Response").FromString(encoded)
                one = response.messages.add() if name == "FindMessages" else response.traces.add().message
                one.message.body = b"x"
            case "ListClients":
                response = admin_pb2.ListClientsResponse.FromString(encoded)
                response.clients.add(client_id="x")
            case "ListSchedules":
                response = admin_pb2.ListSchedulesResponse.FromString(encoded)
                response.schedules.add(broker_name="x")
            case "List":
                response = dead_letters_pb2.ListDeadLettersResponse.FromString(encoded)
                response.letters.add(message_id="x")
        return encoded if response is None else bytes(response.SerializeToString())


def shape(value: Any, *, inner: bool = False) -> str:
    """The keys of a value, those of its tables in brackets."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{shape(value[0], inner=True)}]"
    if not isinstance(value, dict):
        return ""
    keys = []
    for key, below in value.items():
        keys.append(f"{key}: {text}" if (text := shape(below)) else str(key))
    return ", ".join(keys) if inner else f"{{{', '.join(keys)}}}"


def keys_of(words: tuple[str, ...], parser: Any, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    main([*line(words, parser), "-o", "json"])
    out = capsys.readouterr()
    assert out.out, f"{' '.join(words)} printed nothing: {out.err}"
    return shape(json.loads(out.out.splitlines()[0]))


def test_the_keys_of_every_command_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output.Listing, "as_rows", lambda self: [dict.fromkeys(column.key for column in self.columns)])
    for module in ("evenq.client.wiring", "evenq.cli.admin"):
        monkeypatch.setattr(f"{module}.SystemClock", Hurried)
    commands = [(words, parser) for words, parser in COMMANDS if words not in NOT_DONE]
    found = ""
    for words, parser in commands:
        net = Filled(broker=words != ("backup", "create"))  # it would read an empty log of it
        monkeypatch.setattr(ClientContext, "open_net", lambda _, net=net: net)
        found += f"{' '.join(words)}: {keys_of(words, parser, capsys)}\n"
    if os.environ.get("EVENQ_TEST_WRITE_KEYS"):
        FILE.write_text(found)
    assert found == FILE.read_text()
