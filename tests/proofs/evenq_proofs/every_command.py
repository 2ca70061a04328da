"""Every command of `evenq` that calls a cluster, the shortest line that each takes, and a net that answers every call.

For tests that look at all commands: which calls they make, with which code they end, which keys their JSON has.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
from typing import Any

from evenq.cli.parser import make_parser
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
OTHER_CLIENTS = {"console", "produce", "consume", "verify", "up", "bench", "context", "table", "query"}
"""Commands that send and receive, by the clients of the SDK or beside files, and one that only has an option of this
name.
"""
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


SPELLED = {("broker", "grow"), ("message", "check")}
"""Their required options are no number."""


def line(words: tuple[str, ...], parser: argparse.ArgumentParser) -> list[str]:
    """The shortest line that the command takes, and does."""
    found = list(words)
    for action in parser._actions:
        if action.option_strings:
            wanted = action.required or action.dest == "yes"
            if wanted and action.nargs == 0:
                found.append(action.option_strings[-1])
            elif wanted and words not in SPELLED:
                found += [action.option_strings[0], "1"]
        else:
            found.append(next(iter(action.choices)) if action.choices else "x" if action.type is None else "1")
    special: dict[tuple[str, ...], list[str]] = {
        ("offset", "reset"): ["--to", "latest"],
        ("group", "simulate"): ["--members", "2"],
        ("broker", "grow"): ["--members", "0=h:1,1=h:2", "--wait", "0"],
        ("broker", "replace"): ["--by", "2", "--wait", "0"],
        ("message", "get"): [],
        ("message", "check"): ["--queue", "b/0", "--offset", "1"],
        ("topic", "list"): ["--lite"],
        ("schedule", "create"): ["--every", "10m", "--body", "x"],
        ("top",): ["--once", "--interval", "0.2"],
    }
    return found + special.get(words, [])


COMMANDS = [
    (words, parser)
    for words, parser in leaves(make_parser())
    if any("--endpoint" in action.option_strings for action in parser._actions) and words[0] not in OTHER_CLIENTS
]
