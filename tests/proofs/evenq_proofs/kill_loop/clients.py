"""Clients of the broker rounds: they know only the two protocols, and write down what they asked and were answered."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final

from evenq.errors import Error, InternalError
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.testing.history import Delivery, HistoryAction, Op, Recorder
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2
from evenq_proofs.v2_requests import ack_request, messages_of, receive_frames, receive_request, v2_message

BROKER: Final = "broker-a"
TOPIC: Final = "flights"
GROUPS: Final = ("pop", "pull")
QUEUES: Final = 8  # a topic that its first message makes (DEFAULT_QUEUES)
INVISIBLE_MS: Final = 1_000
TIMEOUT_MS: Final = 5_000
OK: Final = 20000
NOTHING_THERE: Final = (OK, definition_pb2.MESSAGE_NOT_FOUND)
V2: Final = "/apache.rocketmq.v2.MessagingService/"
DATA: Final = "/evenq.v1.Data/"


class Clients:
    """Senders, receivers and a puller of one life of the broker."""

    def __init__(
        self, address: str, recorder: Recorder, rng: random.Random, *, name: str, net: Net | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self._address = address
        self._recorder = recorder
        self._rng = rng
        self._name = name
        self._net: Net = net or GrpcNet()
        self._clock = clock or SystemClock()
        self._count = 0
        self._stopping = False
        self._offsets: list[int] = []
        self._refusal = ""
        """Status of the last receive or pull that got neither messages nor the word that there are none."""

    def start(self) -> list[asyncio.Task[None]]:
        """Everybody begins."""
        return [spawn(self._quietly(story), name=story.__name__) for story in self._stories()]

    async def stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Each ends with what it is at. Raises what is no error of the wire."""
        self._stopping = True
        await asyncio.gather(*tasks)

    async def close(self) -> None:
        """Hang up."""
        await self._net.close()

    async def drain(self) -> None:
        """Receive and pull everything, then scan all queues. Raises InternalError if the broker refuses something. That
        there is no topic is an answer: every life of the broker may have ended before its first message, and the
        checker knows of each one that was acknowledged.
        """
        empty, self._refusal = 0, ""
        while empty < 2:
            empty = 0 if await self._receive_once(wait_ms=INVISIBLE_MS + 500) else empty + 1
        code = await self._fetch()
        while self._offsets and await self._pull_once():
            pass
        if code == definition_pb2.TOPIC_NOT_FOUND:
            self._refusal = ""
        elif code != OK:
            self._refusal = f"code {code} of QueryOffsets"
        if self._refusal:
            raise InternalError(f"the broker does not let its queues be drained: {self._refusal}")
        for group in GROUPS:
            number = self._recorder.invoke(Op.ADMIN, action=HistoryAction.DRAIN, group=group, topic=TOPIC)
            self._recorder.ok(number)
        for queue_id in range(len(self._offsets)):
            await self._scan(queue_id)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _call(self, method: str, request: Any, response: Any, *, settles: bool = False) -> Any:
        """`settles`: an OK is a promise, which `_promised` is given."""
        headers = {"x-mq-client-id": "kills", "x-mq-language": "JAVA"}
        data = request.SerializeToString()
        asked_ms = self._clock.monotonic_ms()
        answer = response.FromString(
            await self._net.unary(self._address, method, data, timeout_ms=TIMEOUT_MS, metadata=headers)
        )
        if settles and answer.status.code == OK:
            self._promised(asked_ms)
        return answer

    def _promised(self, asked_ms: int) -> None:
        """A send, an ack or a commit of an offset that began at `asked_ms` was answered OK just now."""

    def _stories(self) -> list[Any]:
        """What they do, over and over, side by side."""
        return [self._send_v2, self._send_v2, self._publish, self._receive, self._receive, self._pull]

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            try:
                await story()
            except Error:  # the broker is dead, and that is what we are here for
                return

    def _made(self) -> tuple[str, definition_pb2.Message]:
        self._count += 1
        body = f"{self._name}-{self._count}"
        made = v2_message(
            TOPIC,
            f"01{self._rng.getrandbits(128):032X}",
            f"{body}|{'x' * self._rng.choice((0, 10, 500, 8_000))}".encode(),
            message_type=definition_pb2.NORMAL,
        )
        return body, made

    def _sending(self, bodies: list[str]) -> list[int]:
        return [self._recorder.invoke(Op.SEND, process="sender", topic=TOPIC, body=body) for body in bodies]

    async def _send_v2(self) -> None:
        made = [self._made() for _ in range(self._rng.choice((1, 1, 4)))]
        numbers = self._sending([body for body, _ in made])
        request = service_pb2.SendMessageRequest(messages=[message for _, message in made])
        answer = await self._call(V2 + "SendMessage", request, service_pb2.SendMessageResponse, settles=True)
        entries = answer.entries or [answer] * len(numbers)  # a call that fails as a whole has none
        for number, entry in zip(numbers, entries, strict=True):
            if entry.status.code == OK:
                self._recorder.ok(number)
            else:
                self._recorder.info(number, error=str(entry.status.code))

    async def _publish(self) -> None:
        made = [self._made() for _ in range(self._rng.choice((1, 3, 8)))]
        numbers = self._sending([body for body, _ in made])
        request = data_pb2.PublishRequest(messages=[message for _, message in made])
        request.queue.topic, request.queue.queue_id = TOPIC, self._rng.randrange(QUEUES)
        answer = await self._call(DATA + "Publish", request, data_pb2.PublishResponse, settles=True)
        for place, number in enumerate(numbers):
            if answer.status.code == OK:
                queue = _queue(answer.queue.queue_id)
                self._recorder.ok(number, queue=queue, offset=answer.first_offset + place)
            else:
                self._recorder.info(number, error=str(answer.status.code))

    # -- a group that acknowledges ------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        await self._receive_once(wait_ms=20)

    async def _receive_once(self, *, wait_ms: int) -> bool:
        request = receive_request(
            "pop", TOPIC, queue=-1, poll_ms=wait_ms, invisible_ms=INVISIBLE_MS, tags="*", batch_size=16
        )
        number = self._recorder.invoke(Op.RECEIVE, process="pop", group="pop", topic=TOPIC, invisible_ms=INVISIBLE_MS)
        frames = await receive_frames(
            self._net, self._address, request, timeout_ms=TIMEOUT_MS, metadata={"x-mq-client-id": "kills"}
        )
        messages = messages_of(frames)
        if messages:
            self._recorder.ok(number, messages=[_delivery(message) for message in messages])
            await self._ack(messages)
        else:
            codes = [frame.status for frame in frames if frame.HasField("status")]
            if codes and codes[-1].code not in NOTHING_THERE:
                self._refusal = str(codes[-1])
            self._recorder.fail(number)
        return bool(messages)

    async def _ack(self, messages: list[Any]) -> None:
        numbers = [
            self._recorder.invoke(Op.ACK, process="pop", group="pop", queue=one.queue, offset=one.offset, body=one.body)
            for one in map(_delivery, messages)
        ]
        request = ack_request("pop", TOPIC)
        for message in messages:
            properties = message.system_properties
            request.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        answer = await self._call(V2 + "AckMessage", request, service_pb2.AckMessageResponse, settles=True)
        for number, entry in zip(numbers, answer.entries, strict=True):
            if entry.status.code == OK:
                self._recorder.ok(number)
            else:
                self._recorder.info(number, error=str(entry.status.code))

    # -- a group that keeps offsets -----------------------------------------------------------------------------------

    async def _pull(self) -> None:
        if not self._offsets:
            await self._fetch()
        if not self._offsets or not await self._pull_once():
            await self._clock.sleep_ms(10)

    async def _fetch(self) -> int:
        """Where the group is, in `_offsets`. The status of the answer."""
        request = data_pb2.QueryOffsetsRequest(group="pull", topic=TOPIC)
        numbers = [
            self._recorder.invoke(Op.OFFSET, action=HistoryAction.FETCH, group="pull", queue=_queue(queue_id))
            for queue_id in range(QUEUES)
        ]
        answer = await self._call(DATA + "QueryOffsets", request, data_pb2.QueryOffsetsResponse)
        if answer.status.code != OK:
            for number in numbers:
                self._recorder.fail(number, error=str(answer.status.code))
            return int(answer.status.code)
        found = {one.queue.queue_id: one for one in answer.offsets}
        for queue_id, number in enumerate(numbers):
            committed = found[queue_id].committed if queue_id in found else -1
            self._recorder.ok(number, offset=committed)
        self._offsets = [max(0, found[n].committed) if n in found else 0 for n in range(QUEUES)]
        return OK

    async def _pull_once(self) -> bool:
        """One page of each queue; whether there was any."""
        some = False
        for queue_id in range(QUEUES):
            request = data_pb2.PullRequest(group="pull", offset=self._offsets[queue_id], batch_max=16, committed=-1)
            request.queue.topic, request.queue.queue_id = TOPIC, queue_id
            number = self._recorder.invoke(Op.RECEIVE, process="pull", group="pull", topic=TOPIC)
            answer = await self._call(DATA + "Pull", request, data_pb2.PullResponse)
            if answer.status.code != OK:
                self._refusal = "" if answer.status.code in NOTHING_THERE else str(answer.status)
                self._recorder.fail(number, error=str(answer.status.code))
                continue
            self._recorder.ok(number, messages=[_delivery(message, queue_id) for message in answer.messages])
            if answer.messages:
                await self._commit(queue_id, answer.next_offset)
                some = True
        return some

    async def _commit(self, queue_id: int, offset: int) -> None:
        request = data_pb2.CommitOffsetsRequest(group="pull")
        result = request.offsets.add(offset=offset)
        result.queue.topic, result.queue.queue_id = TOPIC, queue_id
        number = self._recorder.invoke(
            Op.OFFSET, action=HistoryAction.COMMIT, group="pull", queue=_queue(queue_id), offset=offset
        )
        answer = await self._call(DATA + "CommitOffsets", request, data_pb2.CommitOffsetsResponse, settles=True)
        if answer.status.code != OK:
            self._recorder.info(number, error=str(answer.status.code))
            return
        self._recorder.ok(number)
        self._offsets[queue_id] = offset

    async def _scan(self, queue_id: int) -> None:
        request = data_pb2.PullRequest(batch_max=1, committed=-1)
        request.queue.topic, request.queue.queue_id = TOPIC, queue_id
        first = (await self._call(DATA + "Pull", request, data_pb2.PullResponse)).min_offset
        number = self._recorder.invoke(Op.ADMIN, action=HistoryAction.SCAN, queue=_queue(queue_id), offset=0)
        scan = data_pb2.ScanRequest(start=first, end=1 << 40)
        scan.queue.topic, scan.queue.queue_id = TOPIC, queue_id
        found: list[Delivery] = []
        async for frame in self._net.stream(self._address, DATA + "Scan", scan.SerializeToString(), timeout_ms=60_000):
            block = data_pb2.ScanBlock.FromString(frame)
            if block.status.code not in (0, OK):
                raise InternalError(f"the broker does not let {_queue(queue_id)} be scanned: {block.status}")
            found += [_delivery(message, queue_id) for message in block.messages]
        offsets = [one.offset for one in found]
        assert offsets == list(range(first, first + len(found))), f"{_queue(queue_id)} is not dense"
        self._recorder.ok(number, messages=found, offset=first)


def _queue(queue_id: int) -> str:
    return f"{TOPIC}/{BROKER}/{queue_id}"


def _delivery(message: Any, queue_id: int | None = None) -> Delivery:
    properties = message.system_properties
    queue = _queue(properties.queue_id if queue_id is None else queue_id)
    body = message.body.partition(b"|")[0].decode()
    return Delivery(queue, properties.queue_offset, body, max(1, properties.delivery_attempt))
