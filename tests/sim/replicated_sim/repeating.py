"""Clients of one seed in four, beside all else: a sender that repeats what is in doubt, and a reader of message groups.

The sender asks one broker after the other with the same message id until one says OK, as SDKs do, so each of its messages
is to be stored once: plain, delayed and FIFO ones. The reader is a simple consumer of an ordered group that stays at a
broker until a call fails there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from evenq_proofs.group_faults.clients import ClientsAtBroker, GroupAnswers
from evenq_proofs.kill_loop.clients import BROKER, INVISIBLE_MS, TIMEOUT_MS, TOPIC, V2
from evenq_proofs.v2_requests import ack_request, messages_of, receive_frames, receive_request

from evenq.errors import Error
from evenq.testing.history import Delivery, HistoryAction, Op, Recorder
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

LANES: Final = "lanes"
"""The topic of message groups."""
ORDERED_GROUP: Final = "ordered"
DELAYS_MS: Final = (1, 300, 2_000, 6_000)
"""The longest one is a timer still when its sender asks the next leader."""
TRIES: Final = 80
PAUSE_MS: Final = 150
PACE_MS: Final = 120
WAITS_MS: Final = (20, 200, 1_500)
OK: Final = 20000
NOTHING_THERE: Final = (OK, definition_pb2.MESSAGE_NOT_FOUND)


class InTurn(ClientsAtBroker):
    """At one broker after the other."""

    def __init__(
        self, addresses: Sequence[str], recorder: Recorder, rng: random.Random, answers: GroupAnswers, **edges: Any
    ) -> None:
        super().__init__(0, addresses[0], recorder, rng, answers, **edges)
        self._addresses = addresses

    def _go_on(self) -> None:
        self._broker = (self._broker + 1) % len(self._addresses)
        self._address = self._addresses[self._broker]


class RepeatingSender(InTurn):
    """Sends one message until a broker says OK, then the next one."""

    delays = True

    def _stories(self) -> list[Any]:
        return [self._send, self._send, self._send]

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            await story()
            await self._clock.sleep_ms(self._rng.uniform(1, PACE_MS))

    async def _send(self) -> None:
        self._count += 1
        body = f"again-{self._count}"
        made = definition_pb2.Message(body=f"{body}|".encode())
        system = made.system_properties
        system.message_id = f"01{self._rng.getrandbits(128):032X}"
        kind = self._rng.choice(("plain", "group", "delayed", "delayed") if self.delays else ("plain", "group"))
        topic, fields = TOPIC, {}
        if kind == "delayed":
            delay_ms = self._rng.choice(DELAYS_MS)
            system.delivery_timestamp.FromMilliseconds(self._clock.now_ms() + delay_ms)
            fields["delivery_ms"] = self._clock.monotonic_ms() + delay_ms
        elif kind == "group":
            topic = LANES
            system.message_group = fields["message_group"] = f"lane-{self._rng.randrange(3)}"
        made.topic.name = topic
        number = self._recorder.invoke(Op.SEND, process="sender", topic=topic, body=body, **fields)
        await self._repeated(service_pb2.SendMessageRequest(messages=[made]), number)

    async def _repeated(self, request: service_pb2.SendMessageRequest, number: int) -> None:
        for _ in range(TRIES):
            try:
                # Promises nothing new: who was deposed may say what it had said of this id when it led.
                answer = await self._call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
            else:
                if answer.entries and answer.entries[0].status.code == OK:
                    self._recorder.ok(number)
                    return
            if self._stopping:
                break
            self._go_on()
            await self._clock.sleep_ms(self._rng.uniform(1, PAUSE_MS))
        self._recorder.info(number, error="no broker said OK")


class GroupReader(InTurn):
    """Receives a few messages of message groups at a time, and acknowledges them."""

    def _stories(self) -> list[Any]:
        return [self._read, self._read]

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            try:
                await story()
                await self._clock.sleep_ms(self._rng.uniform(1, PACE_MS))
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
                self._go_on()
                await self._clock.sleep_ms(self._rng.uniform(1, PAUSE_MS))

    async def drain(self) -> None:
        """Receive until two receives found nothing, each for longer than an invisible time. Raises Error; the caller's
        next try is at the next broker then.
        """
        empty = 0
        while empty < 2:
            try:
                empty = 0 if await self._read_once(INVISIBLE_MS + 500) else empty + 1
            except Error:
                self._go_on()
                raise
        number = self._recorder.invoke(Op.ADMIN, action=HistoryAction.DRAIN, group=ORDERED_GROUP, topic=LANES)
        self._recorder.ok(number)

    async def _read(self) -> None:
        await self._read_once(self._rng.choice(WAITS_MS))

    async def _read_once(self, wait_ms: int) -> bool:
        request = receive_request(
            ORDERED_GROUP,
            LANES,
            queue=-1,
            poll_ms=wait_ms,
            invisible_ms=INVISIBLE_MS,
            tags="*",
            batch_size=self._rng.choice((1, 4, 16)),
        )
        number = self._recorder.invoke(
            Op.RECEIVE, process="reader", group=ORDERED_GROUP, topic=LANES, invisible_ms=INVISIBLE_MS
        )
        frames = await receive_frames(
            self._net, self._address, request, timeout_ms=TIMEOUT_MS, metadata={"x-mq-client-id": "reader"}
        )
        messages = messages_of(frames)
        if not messages:
            self._recorder.fail(number)
            codes = [frame.status.code for frame in frames if frame.HasField("status")]
            if codes and codes[-1] not in NOTHING_THERE:
                raise Error(f"code {codes[-1]}")
            return False
        self._recorder.ok(number, messages=[_delivery(message) for message in messages])
        await self._finish(messages)
        return True

    async def _finish(self, messages: Sequence[definition_pb2.Message]) -> None:
        places = [_delivery(message) for message in messages]
        numbers = [
            self._recorder.invoke(
                Op.ACK, process="reader", group=ORDERED_GROUP, queue=one.queue, offset=one.offset, body=one.body
            )
            for one in places
        ]
        request = ack_request(ORDERED_GROUP, LANES)
        for message in messages:
            properties = message.system_properties
            request.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        # The other story may have gone on to the next broker by the answer, so it says nothing of who led.
        answer = await self._call(V2 + "AckMessage", request, service_pb2.AckMessageResponse)
        for number, entry in zip(numbers, answer.entries, strict=True):
            if entry.status.code == OK:
                self._recorder.ok(number)
            else:
                self._recorder.info(number, error=str(entry.status.code))


def _delivery(message: definition_pb2.Message) -> Delivery:
    properties = message.system_properties
    queue = f"{LANES}/{BROKER}/{properties.queue_id}"
    body = message.body.partition(b"|")[0].decode()
    return Delivery(queue, properties.queue_offset, body, max(1, properties.delivery_attempt))
