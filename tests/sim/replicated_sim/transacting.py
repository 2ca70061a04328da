"""Clients of the seeds from `TRANSACTING` on, beside all else: consumers whose transactions turn each input into a result.

A sender stores inputs, each until one broker says OK. Members receive some, and transact: one result for each, and its
ack. A result has the place and the body of its input, so it shows what it was made of. Members are killed before or
within a call, lose its answer and repeat it with the same bytes, compute the same results anew with other message ids,
or take longer than the invisible time, so that another member has the messages.

At the end each input has exactly one result, no result is without its input, and what was answered with OK is there.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from evenq_proofs.kill_loop.clients import BROKER, DATA, INVISIBLE_MS, TIMEOUT_MS, V2
from evenq_proofs.v2_requests import messages_of, receive_frames, receive_request

from evenq.errors import Error, InvalidReceiptHandle
from evenq.runtime.tasks import spawn
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
from replicated_sim.repeating import NOTHING_THERE, OK, InTurn

INPUTS: Final = "inputs"
OUTPUTS: Final = "outputs"
TRANSACT_GROUP: Final = "transacting"
TRANSACT_QUEUES: Final = 2
MEMBERS: Final = 3
FATES: Final = ("well", "well", "well", "slow", "dead", "killed", "silent", "anew")
"""Fates of a member that has messages; the module explains them."""
PACE_MS: Final = 150
PAUSE_MS: Final = 150
TRIES: Final = 40
WAITS_MS: Final = (20, 200, 1_500)
CALL_MS: Final = 60
"""A member is killed, or stops waiting for the answer, within this time after its call began."""


@dataclass(slots=True)
class Transacted:
    """Results known to the clients, and messages of the brokers at the end."""

    made: int = 0
    answered: set[str] = field(default_factory=set)
    """Message ids of results whose transaction was answered with OK."""
    fates: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    """Transactions that were refused because a delivery had ended."""
    inputs: list[str] = field(default_factory=list)
    """At the end: place and body of each."""
    outputs: list[tuple[str, str]] = field(default_factory=list)
    """At the end: message id and body of each result."""

    def problems(self) -> list[str]:
        """Returns a sentence for each violation."""
        results = Counter(body for _, body in self.outputs)
        missing = [one for one in self.inputs if not results[one]]
        twice = [one for one in self.inputs if results[one] > 1]
        strangers = sorted(results.keys() - set(self.inputs))
        lost = sorted(self.answered - {message_id for message_id, _ in self.outputs})
        found = [
            f"{len(missing)} of {len(self.inputs)} inputs have no result, the first is {missing[0]}" if missing else "",
            f"{len(twice)} inputs have several results, the first is {twice[0]}" if twice else "",
            f"{len(strangers)} results have no input, the first is {strangers[0]}" if strangers else "",
            f"{len(lost)} results of answered transactions are not there, the first is {lost[0]}" if lost else "",
        ]
        return [f"transactions: {text}" for text in found if text]


class _Transactor(InTurn):
    def __init__(self, *args: Any, known: Transacted, **edges: Any) -> None:
        super().__init__(*args, **edges)
        self.known = known

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            try:
                await story()
                await self._clock.sleep_ms(self._rng.uniform(1, PACE_MS))
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
                self._go_on()
                await self._clock.sleep_ms(self._rng.uniform(1, PAUSE_MS))

    def _message_id(self) -> str:
        return f"01{self._rng.getrandbits(128):032X}"


class InputSender(_Transactor):
    """Sends one input until a broker says OK, then the next one."""

    def _stories(self) -> list[Any]:
        return [self._send]

    async def _send(self) -> None:
        self.known.made += 1
        made = definition_pb2.Message(body=b"input %d" % self.known.made)
        made.topic.name, made.system_properties.message_id = INPUTS, self._message_id()
        request = service_pb2.SendMessageRequest(messages=[made])
        for _ in range(TRIES):
            try:
                answer = await self._call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
            else:
                if answer.entries and answer.entries[0].status.code == OK:
                    return
            if self._stopping:
                return
            self._go_on()
            await self._clock.sleep_ms(self._rng.uniform(1, PAUSE_MS))


class TransactingMember(_Transactor):
    """A simple consumer that receives inputs, and stores a result of each with its ack."""

    def __init__(self, *args: Any, name: str, **edges: Any) -> None:
        super().__init__(*args, **edges)
        self._name = name

    def _stories(self) -> list[Any]:
        return [self._work]

    async def _work(self) -> None:
        messages = await self._received(self._rng.choice(WAITS_MS))
        if not messages:
            return
        some = self._rng.randint(1, len(messages))
        # The rest is another transaction, or is left for redelivery.
        await self._finish(messages[:some], self._rng.choice(FATES))
        if some < len(messages):
            await self._finish(messages[some:], self._rng.choice(FATES))

    async def drain(self) -> None:
        """Transacts until two receives found nothing, each for longer than an invisible time. Raises Error; the
        caller's next try is at the next broker then.
        """
        empty = 0
        while empty < 2:
            try:
                messages = await self._received(INVISIBLE_MS + 500)
                empty = 0 if messages else empty + 1
                if messages:
                    await self._finish(messages, "well")
            except Error:
                self._go_on()
                raise

    async def read(self) -> None:
        """Reads all inputs and results at this broker. Raises Error."""
        try:
            self.known.inputs = [_result_of(message) for message in await self._all(INPUTS)]
            self.known.outputs = [
                (message.system_properties.message_id, message.body.decode()) for message in await self._all(OUTPUTS)
            ]
        except Error:
            self._go_on()
            raise

    async def _all(self, topic: str) -> list[definition_pb2.Message]:
        found: list[definition_pb2.Message] = []
        for queue_id in range(TRANSACT_QUEUES):
            queue, offset = common_pb2.Queue(topic=topic, broker_name=BROKER, queue_id=queue_id), 0
            while True:
                request = data_pb2.PullRequest(queue=queue, offset=offset, batch_max=1_000, committed=-1)
                answer = await self._call(DATA + "Pull", request, data_pb2.PullResponse)
                if answer.status.code != OK:
                    if answer.status.code == definition_pb2.MESSAGE_NOT_FOUND:
                        break
                    check(answer.status)
                found += answer.messages
                offset = answer.next_offset
        return found

    async def _received(self, wait_ms: int) -> Sequence[definition_pb2.Message]:
        request = receive_request(
            TRANSACT_GROUP,
            INPUTS,
            queue=-1,
            poll_ms=wait_ms,
            invisible_ms=INVISIBLE_MS,
            tags="*",
            batch_size=self._rng.choice((1, 4, 16)),
        )
        frames = await receive_frames(
            self._net, self._address, request, timeout_ms=TIMEOUT_MS, metadata={"x-mq-client-id": self._name}
        )
        messages = messages_of(frames)
        codes = [frame.status.code for frame in frames if frame.HasField("status")]
        if not messages and codes and codes[-1] not in NOTHING_THERE:
            raise Error(f"code {codes[-1]}")
        return messages

    async def _finish(self, messages: Sequence[definition_pb2.Message], fate: str) -> None:
        self.known.fates[fate] += 1
        request = self._request(messages)
        match fate:
            case "dead":
                return
            case "slow":
                await self._clock.sleep_ms(self._rng.uniform(0.9, 1.5) * INVISIBLE_MS)
            case "killed" | "silent" | "anew":
                calling = spawn(self._once(request), name="transact")
                await self._clock.sleep_ms(self._rng.uniform(0, CALL_MS))
                if fate == "anew":  # both calls may be under way
                    await self._until_known(self._request(messages))
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                if fate != "silent":
                    return
            case _:
                pass
        await self._until_known(request)

    def _request(self, messages: Sequence[definition_pb2.Message]) -> data_pb2.TransactRequest:
        request = data_pb2.TransactRequest(group=TRANSACT_GROUP)
        for message in messages:
            request.acks.add(topic=INPUTS, receipt_handle=message.system_properties.receipt_handle)
            result = request.messages.add(body=_result_of(message).encode())
            result.topic.name, result.system_properties.message_id = OUTPUTS, self._message_id()
        return request

    async def _until_known(self, request: data_pb2.TransactRequest) -> None:
        """Repeats the call, at one broker after the other, until its outcome is known; as the SDK does."""
        for _ in range(TRIES):
            try:
                await self._once(request)
            except InvalidReceiptHandle:
                self.known.fenced += 1
                return
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
            else:
                return
            if self._stopping:
                return
            self._go_on()
            await self._clock.sleep_ms(self._rng.uniform(1, PAUSE_MS))

    async def _once(self, request: data_pb2.TransactRequest) -> None:
        answer = await self._call(DATA + "Transact", request, data_pb2.TransactResponse)
        check(answer.status)
        self.known.answered.update(message.system_properties.message_id for message in request.messages)


def _result_of(message: definition_pb2.Message) -> str:
    """Returns the body of the result: a function of the input, with its place."""
    properties = message.system_properties
    return f"{properties.queue_id}@{properties.queue_offset} {message.body.decode()}"


def transacting_clients(
    seed: int, addresses: Sequence[str], recorder: Any, answers: Any, edges: Any
) -> tuple[Transacted, list[_Transactor], TransactingMember]:
    """Returns what they know, all of them, and the member that drains. `edges(name)`: net and clock of a process."""
    known = Transacted()

    def rng(name: str) -> random.Random:
        return random.Random(f"{seed} {name}")

    sender = InputSender(addresses, recorder, rng("inputs"), answers, known=known, **edges("inputs"))
    members = [
        TransactingMember(addresses, recorder, rng(name), answers, known=known, name=name, **edges(name))
        for name in (f"t{number}" for number in range(MEMBERS))
    ]
    return known, [sender, *members], members[0]
