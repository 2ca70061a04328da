"""A broker with the compiled accelerator and one without it: the same answers, and the same bytes on disk."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from evenq_broker.core.sending.native_sends import NativeSends
from evenq_broker.rpc.sending import publishing, send
from evenq_broker.store_settings import StoreSettings
from evenq_proofs.native_module import native_module

from evenq.runtime.accelerator import Accelerator
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "core" / "sending"))
import plain_requests as made


def requests() -> list[tuple[str, bytes]]:
    """Generated requests with their calls: plain ones, unusual ones, and those that are refused."""
    generated, calls = made.Requests(11), []
    for number in range(300):
        block = number % 3 == 0
        data = generated.block() if block else generated.request()
        calls.append(("/evenq.v1.Data/Publish" if block else "SendMessage", data))
    return calls


async def outcome(stage: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> list[Any]:
    """Returns the answers, how often the compiled reader took a request, and the files of the log."""
    choice, taken = Accelerator(module=module, state="1" if module else "off"), 0

    class Counted(NativeSends):
        def _read(self, data: bytes) -> Any:
            nonlocal taken
            plain = super()._read(data)
            taken += plain is not None
            return plain

    for handlers in (send, publishing):
        monkeypatch.setattr(handlers, "accelerator", lambda: choice)
    monkeypatch.setattr("evenq.store.log.appender.accelerator", lambda: choice)
    monkeypatch.setattr("evenq_broker.core.sending.native_sends.NativeSends", Counted)
    monkeypatch.setattr(stage.clock, "now_ms", lambda: made.NOW_MS)  # store times do not depend on the disk's speed
    broker = await stage.broker(
        store=StoreSettings(path=folder, flush="sync"), default_queues=4, duplicates_window_ms=60_000
    )
    answers: list[Any] = []
    for method, data in requests():
        response = service_pb2.SendMessageResponse if method == "SendMessage" else data_pb2.PublishResponse
        try:
            answers.append(await stage.ask(method, data, response))
        except Exception as error:  # noqa: BLE001  a refusal of the whole request is an answer, too
            answers.append(f"{type(error).__name__}: {error}")
    await stage.end(broker)
    files = {file.name: file.read_bytes() for file in sorted((folder / "commitlog").iterdir())}
    return [answers, taken, files]


async def test_the_same_requests_at_the_same_time_give_the_same_answers_and_the_same_bytes_on_disk(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = native_module()
    compiled = await outcome(stage, tmp_path / "native", monkeypatch, module)
    python = await outcome(type(stage)(), tmp_path / "python", monkeypatch, None)
    assert compiled[0] == python[0]
    assert (compiled[1] > 30, python[1]) == (True, 0), "the first broker used the module, the second one did not"
    assert compiled[2] == python[2]
    assert sum(map(len, python[2].values())) > 30_000
