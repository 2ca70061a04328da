"""Commands over a net that is a script."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from evenq.cli.__main__ import main
from evenq.client.wiring import ClientContext
from evenq.wire.stubs.evenq.v1 import admin_pb2


class ScriptNet:
    """Answers methods from a table, a list in turn with its last one repeated; remembers the calls."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.calls = answers, []

    async def unary(self, _address: str, method: str, request: bytes, **_: Any) -> bytes:
        name = method.rpartition("/")[2]
        self.calls.append((name, request))
        answer = self.answers[name]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        answer.status.code = answer.status.code or 20000
        return answer.SerializeToString()

    async def stream(self, _address: str, method: str, request: bytes, **_: Any) -> AsyncIterator[bytes]:
        name = method.rpartition("/")[2]
        self.calls.append((name, request))
        for answer in self.answers[name]:
            if isinstance(answer, Exception):
                raise answer
            yield answer.SerializeToString()

    async def close(self) -> None:
        """Nothing to end."""


@pytest.fixture(autouse=True)
def config_of_its_own(tmp_path: Path) -> Iterator[Path]:
    """No test reads or changes the contexts of the person who runs it. Yields the folder of the configuration.

    Commands put keys and TLS files into the environment, which must not reach the tests after them.
    """
    folder = tmp_path / "config"
    with mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": str(folder)}):
        for variable in list(os.environ):
            if variable.startswith("EVENQ_") and not variable.startswith("EVENQ_TEST"):
                del os.environ[variable]
        yield folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, ...]]:
    """Runs a command against answers; gives exit code, output, errors and the calls that it made."""

    def go(line: str, **answers: Any) -> tuple[Any, ...]:
        net = ScriptNet({"ListBrokers": admin_pb2.ListBrokersResponse(), **answers})  # none is missing
        monkeypatch.setattr(ClientContext, "open_net", lambda _: net)
        code = main(shlex.split(line))
        out = capsys.readouterr()
        return code, out.out, out.err, net.calls

    return go
