"""The broker's calls that store messages, with the planned faults.

A producer sends with `Publish` (evenq) or `SendMessage` (every SDK). While faults are planned, a request is divided:
each message is stored by a call of its own, or meets its fault, and the answers are joined. Without a plan, and for a
message that no earlier attempt gave a fault, the broker's handler gets the request as it came.

Invariants: all attempts of one message, which have one message id, meet the same fault. A message is stored once for
all its attempts, twice if it is to be duplicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from evenq.in_memory.faults import FaultKind, SendFault, SendFaults
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import Rpc, RpcContext, Unary
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

PUBLISH = "/evenq.v1.Data/Publish"
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
KNOWN_MAX = 100_000
"""Messages with a fault that are recognised when they are sent again; above, the oldest one is forgotten."""


@dataclass(slots=True)
class _Met:
    fault: SendFault
    attempts: int = 0
    answer: Any = None
    """The first answer of the broker, for a message that is stored already: another one of its request may be refused,
    and the producer then sends both again.
    """


class FaultySends:
    """Handlers around those of the broker."""

    def __init__(self, faults: SendFaults, clock: Clock) -> None:
        self._faults = faults
        self._clock = clock
        self._met: dict[str, _Met] = {}
        self._later: set[asyncio.Task[None]] = set()

    def around(self, rpcs: Sequence[Rpc]) -> list[Rpc]:
        """Returns the calls of a broker with faults."""
        return [
            replace(rpc, handler=self._handler(rpc), plain=None) if rpc.method in {PUBLISH, SEND} else rpc
            for rpc in rpcs
        ]

    async def close(self) -> None:
        """Forgets delayed messages that are not due."""
        for task in list(self._later):
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)

    def _handler(self, rpc: Rpc) -> Unary:
        store = cast("Unary", rpc.handler)
        kind: Any = data_pb2.PublishRequest if rpc.method == PUBLISH else service_pb2.SendMessageRequest

        async def handle(data: bytes, context: RpcContext) -> bytes:
            if not self._faults.pending and not self._met:
                return await store(data, context)
            request = kind.FromString(data)
            if rpc.method == PUBLISH:
                topic = request.queue.topic
            else:
                topic = request.messages[0].topic.name if request.messages else ""
            answers = []
            for message in request.messages:
                one = kind.FromString(data)
                del one.messages[:]
                one.messages.append(message)
                answers.append(await self._one(store, one, rpc, context, topic))
            answer: bytes = _joined(answers, rpc).SerializeToString()
            return answer

        return handle

    async def _one(self, store: Unary, request: Any, rpc: Rpc, context: RpcContext, topic: str) -> Any:
        data = request.SerializeToString()

        async def stored() -> Any:
            return rpc.response.FromString(await store(data, context))

        message_id = request.messages[0].system_properties.message_id
        met = self._met.get(message_id)
        if met is None:
            fault = self._faults.take(topic)
            if fault is None:
                return await stored()
            while len(self._met) >= KNOWN_MAX:
                self._met.pop(next(iter(self._met)))
            met = self._met[message_id] = _Met(fault)
        met.attempts += 1
        fault = met.fault
        if fault.kind is FaultKind.REFUSED and (fault.attempts is None or met.attempts <= fault.attempts):
            assert fault.error is not None
            raise fault.error
        if met.answer is None:
            if fault.kind is FaultKind.DELAYED:
                task = spawn(self._store_later(store, data, context, fault.delay_ms), name="delayed delivery")
                self._later.add(task)
                task.add_done_callback(self._later.discard)
            answer = await self._answer(fault, stored, request, rpc)
            if answer.status.code != definition_pb2.OK:
                return answer
            met.answer = answer
        if fault.kind is FaultKind.ANSWER_LOST and (fault.attempts is None or met.attempts <= fault.attempts):
            assert fault.error is not None
            raise fault.error
        return met.answer

    async def _answer(self, fault: SendFault, stored: Any, request: Any, rpc: Rpc) -> Any:
        match fault.kind:
            case FaultKind.DROPPED | FaultKind.DELAYED:
                return _accepted(request, rpc)
            case FaultKind.DUPLICATED:
                answer = await stored()
                await stored()
                return answer
            case _:
                return await stored()

    async def _store_later(self, store: Unary, data: bytes, context: RpcContext, delay_ms: int) -> None:
        await self._clock.sleep_ms(delay_ms)
        await store(data, context)


def _accepted(request: Any, rpc: Rpc) -> Any:
    """Returns the answer for a message that is not stored (yet): OK, at the offset -1."""
    status = definition_pb2.Status(code=definition_pb2.OK)
    if rpc.method == PUBLISH:
        queue = request.queue
        return data_pb2.PublishResponse(status=status, queue=queue, first_offset=-1)
    entry = service_pb2.SendResultEntry(
        status=status, message_id=request.messages[0].system_properties.message_id, offset=-1
    )
    return service_pb2.SendMessageResponse(status=status, entries=[entry])


def _joined(answers: list[Any], rpc: Rpc) -> Any:
    """Returns one answer for the whole request. The first answer that is not OK decides."""
    if len(answers) == 1:
        return answers[0]
    status = next((answer.status for answer in answers if answer.status.code != definition_pb2.OK), answers[0].status)
    if rpc.method == PUBLISH:
        return data_pb2.PublishResponse(
            status=status,
            queue=answers[0].queue,
            first_offset=answers[0].first_offset,
            offsets=[answer.offsets[0] if answer.offsets else answer.first_offset for answer in answers],
            queue_ids=[answer.queue.queue_id for answer in answers],
        )
    return service_pb2.SendMessageResponse(status=status, entries=[entry for one in answers for entry in one.entries])
