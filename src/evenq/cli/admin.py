"""Calls of `evenq.v1.Admin` from commands: one short-lived loop and net per command, errors raised as `evenq.errors`.

Also the few lookups that several commands share: names of message types, the sentence when nobody answers.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from evenq.cli.output import progress_console
from evenq.client.core.access_points import access_points
from evenq.client.wiring import Ground
from evenq.errors import ConnectionFailed, Error, GroupNotFound, TlsFailed, TopicNotFound
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.net import Net
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

__all__ = ["Admin", "message_type_name", "message_type_number", "no_server", "on_every_broker", "with_admin"]

Answer = TypeVar("Answer")

NEWCOMER_MS_MAX = 45_000
"""How long a broker may be alive before its name can be looked up: cluster DNS keeps a "no such name" for 30 s."""
AGAIN_MS = 1_000


class NoServer(ConnectionFailed):
    """The access point itself does not answer: waiting for it is not this command's business."""


class Admin:
    """The admin service behind one access point."""

    def __init__(self, net: Net, endpoint: str, *, timeout_ms: int = 10_000) -> None:
        self.endpoint = endpoint
        self._addresses = access_points(endpoint).addresses
        self._net = net
        self._timeout_ms = timeout_ms

    async def call(
        self, method: str, request: Any, answer_type: type[Answer], *, service: str = "evenq.v1.Admin"
    ) -> Answer:
        """Call one method. Raises the error of the answer's status, ConnectionFailed, RequestTimeout."""
        path, content = f"/{service}/{method}", request.SerializeToString()
        while True:
            try:
                raw = await self._net.unary(self._addresses[0], path, content, timeout_ms=self._timeout_ms)
                break
            except ConnectionFailed as error:
                if len(self._addresses) == 1:
                    raise no_server(self.endpoint, error) from error
                self._addresses.pop(0)
        answer: Any = answer_type.FromString(raw)  # type: ignore[attr-defined]  # generated classes share no typed base here
        check(answer.status)
        return answer  # type: ignore[no-any-return]  # the class above


def no_server(endpoint: str, error: ConnectionFailed) -> ConnectionFailed:
    """What to tell when no access point answers; trouble with TLS says itself what to change."""
    if isinstance(error, TlsFailed):
        return error
    return NoServer(
        f"no server answers at {endpoint}; start one with `evenq up`, or name another with --endpoint HOST:PORT"
    )


async def on_every_broker(work: Callable[[], Awaitable[Answer]], *, clock: Clock | None = None) -> Answer:
    """Do `work`, which may be done twice, until no live broker was out of reach; NEWCOMER_MS_MAX at most.

    Raises what the last attempt raised.
    """
    clock = clock or SystemClock()
    deadline_ms = clock.monotonic_ms() + NEWCOMER_MS_MAX
    told = ""
    while True:
        try:
            return await work()
        except NoServer:
            raise
        except ConnectionFailed as error:
            if clock.monotonic_ms() >= deadline_ms:
                raise
            if str(error) != told:
                told = str(error)
                progress_console().print(f"{told}; trying again", markup=False)
        await clock.sleep_ms(AGAIN_MS)


def with_admin(options: argparse.Namespace, work: Callable[[Admin], Awaitable[None]]) -> None:
    """Run one command's `work` with an `Admin` for its options."""
    asyncio.run(_with_admin(options, work))


async def _with_admin(options: argparse.Namespace, work: Callable[[Admin], Awaitable[None]]) -> None:
    net = Ground.of(None, None, endpoint=options.endpoint).open_net()
    try:
        await work(Admin(net, options.endpoint, timeout_ms=options.timeout * 1000))
    except TopicNotFound as error:
        raise TopicNotFound(_with_hint(error, "evenq topic list")) from error
    except GroupNotFound as error:
        raise GroupNotFound(_with_hint(error, "evenq group list")) from error
    finally:
        await net.close()


def _with_hint(error: Error, command: str) -> str:
    return str(error) if command in str(error) else f"{error}; `{command}` shows what exists"


def message_type_name(number: int) -> str:
    """`NORMAL`, `FIFO` ...; `ANY` for a topic without a type."""
    return "ANY" if number == 0 else definition_pb2.MessageType.Name(number)  # type: ignore[arg-type]  # any int of the wire


def message_type_number(name: str) -> definition_pb2.MessageType.ValueType:
    """Number of a type named on the command line."""
    return definition_pb2.MessageType.Value(name)
