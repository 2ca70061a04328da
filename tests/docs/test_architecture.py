"""ARCHITECTURE.md and the page of promises say what is there: every path exists, and a message really goes that way."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
from pathlib import Path
from typing import Any

from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings, StoreSettings

from evenq.runtime.clock import SystemClock
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {name: f"services/{name}/evenq_{name}" for name in ("broker", "nameserver", "rebalancer")}
PATH = re.compile(r"`([\w./*-]+)`")
V2 = "/apache.rocketmq.v2.MessagingService/"


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def place(path: str) -> str:
    """Where a path of ARCHITECTURE.md lies."""
    first, _, rest = path.partition("/")
    return f"{PROGRAMS[first]}/{rest}" if first in PROGRAMS else f"src/evenq/{path}"


def journey(title: str) -> list[list[str]]:
    """The modules of each numbered step."""
    text = page("ARCHITECTURE.md").split(f"## {title}\n")[1].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", text.partition("\n\nIn the background")[0], flags=re.MULTILINE)[1:]
    return [[path for path in PATH.findall(step) if path.endswith(".py") and "/" in path] for step in steps]


def test_architecture_is_one_page() -> None:
    assert len(page("ARCHITECTURE.md").splitlines()) <= 75


def test_every_module_of_a_journey_exists() -> None:
    titles = ("The journey of a message", "The journey of a group")
    paths = [path for title in titles for step in journey(title) for path in step]
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / place(path)).is_file()] == []


def test_every_path_of_the_page_of_promises_exists() -> None:
    rows = [line for line in page("docs/internals/promises.md").splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 40
    missing = []
    for row in rows:
        promise, *cells = row.strip("| ").split(" | ")
        assert len(cells) == 2, row
        result = [paths_of(cell) for cell in cells]
        assert all(result), f"{promise}: names no path"
        missing += [f"{promise}: {path}" for paths in result for path, there in paths.items() if not there]
    assert missing == []


def paths_of(cell: str) -> dict[str, bool]:
    """Path to whether it is there: below a package, from the root, or beside a path that stands before it."""
    found: dict[str, bool] = {}
    folders = [ROOT, ROOT / "src/evenq", ROOT / "spark", *(ROOT / program for program in PROGRAMS.values())]
    for path in PATH.findall(cell):
        if "/" in path or path.endswith(".py"):
            places = [place for folder in folders for place in folder.glob(path.rstrip("/"))]
            found[path] = bool(places)
            folders = [*{place.parent for place in places}, *folders]
    return found | ({"": True} if "`make " in cell else {})


# -------------------------------------------------------------------------------------------------- a real message


class Calls:
    """The modules that were entered, in order, by any thread."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.on = False
        self._roots = {str(ROOT / folder) + "/": name for name, folder in PROGRAMS.items()}
        self._roots[str(ROOT / "src" / "evenq") + "/"] = ""

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if self.on and event == "call":
            name = frame.f_code.co_filename
            for root, program in self._roots.items():
                if name.startswith(root):
                    path = f"{program}/{name[len(root) :]}".lstrip("/")
                    if not self.passed or self.passed[-1] != path:
                        self.passed.append(path)

    def not_in_order(self, wanted: list[str]) -> str:
        """The first of `wanted` that was not entered behind the ones before it."""
        passed = iter(self.passed)
        return next((path for path in wanted if path not in passed), "")


async def played(folder: Path, calls: Calls) -> None:
    """A receive that waits, a send that wakes it, an ack."""
    net = GrpcNet()
    store = StoreSettings(path=folder, disk_free_min_bytes=0, disk_used_max_ratio=1)
    settings = BrokerSettings(broker_name="a", host="127.0.0.1", port=0, metrics_port=-1, store=store)
    app = BrokerApp(settings, clock=SystemClock(), rng=random.Random(1), net=net)
    await app.start()
    target, headers = f"127.0.0.1:{app.port}", {"x-mq-client-id": "c", "x-mq-language": "JAVA"}
    try:
        await app.broker.catalog.create_topic("t", queues=1)
        receive = service_pb2.ReceiveMessageRequest(batch_size=1)
        receive.group.name, receive.message_queue.topic.name, receive.message_queue.id = "g", "t", -1
        receive.message_queue.broker.name = "a"
        receive.invisible_duration.seconds, receive.long_polling_timeout.seconds = 60, 20
        receive.filter_expression.type, receive.filter_expression.expression = v2.TAG, "*"

        async def received() -> list[v2.Message]:
            stream = net.stream(
                target, V2 + "ReceiveMessage", receive.SerializeToString(), timeout_ms=60_000, metadata=headers
            )
            frames = [service_pb2.ReceiveMessageResponse.FromString(frame) async for frame in stream]
            return [frame.message for frame in frames if frame.HasField("message")]

        send = service_pb2.SendMessageRequest()
        message = send.messages.add(body=b"x")
        message.topic.name, message.system_properties.message_id = "t", f"01{1:030X}"
        message.system_properties.message_type, message.system_properties.born_host = v2.NORMAL, "h"
        message.system_properties.born_timestamp.GetCurrentTime()
        waiting = asyncio.ensure_future(received())
        while app.broker.long_polls.idle:  # noqa: ASYNC110 - nothing tells when a poll is parked
            await asyncio.sleep(0.01)
        calls.on = True
        await net.unary(target, V2 + "SendMessage", send.SerializeToString(), timeout_ms=60_000, metadata=headers)
        [got] = await waiting
        ack = service_pb2.AckMessageRequest()
        ack.group.name, ack.topic.name = "g", "t"
        ack.entries.add(
            message_id=got.system_properties.message_id, receipt_handle=got.system_properties.receipt_handle
        )
        await net.unary(target, V2 + "AckMessage", ack.SerializeToString(), timeout_ms=60_000, metadata=headers)
        calls.on = False
    finally:
        await app.close()
        await net.close()


ELSEWHERE = {
    "serving/auth/guard.py",
    "broker/core/sending/validation.py",
    "serving/http2/connection.py",
    "store/log/writer.py",
}
"""Not of a plain, unsigned message on an open connection; or entered before what they are named behind."""


def test_a_message_goes_through_the_modules_of_the_page_in_their_order(tmp_path: Path) -> None:
    steps = journey("The journey of a message")
    assert len(steps) == 12
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls)
    threading.setprofile(calls)
    try:
        asyncio.run(played(tmp_path, calls))
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # as it was
        sys.setprofile(before)
    expected = [path for step in steps for path in step if path not in ELSEWHERE]
    assert calls.not_in_order(expected) == ""
    assert calls.not_in_order(expected[::-1]) != ""  # the order is seen
    assert {*expected, *ELSEWHERE} - {"serving/auth/guard.py", "broker/core/sending/validation.py"} <= set(calls.passed)
