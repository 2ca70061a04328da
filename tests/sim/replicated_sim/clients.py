"""The clients of a simulated group: those of the fault campaigns, at every copy at once, in virtual time.

Each call is an operation of the history. Besides what those do, they send delayed messages and messages of groups.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from evenq_proofs.group_faults.clients import ClientsAtBroker, GroupAnswers, GroupPuller
from evenq_proofs.kill_loop.clients import TOPIC, V2, Clients
from evenq_proofs.sim import ProcessClock, ProcessNet, SimNet, SimProcess, VirtualLoop

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.testing.history import Event, Op, Recorder
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from replicated_sim.repeating import GroupReader, RepeatingSender
from replicated_sim.transacting import Transacted, TransactingMember, transacting_clients

DELAY_MS_MAX = 4_000
PACE_MS = 250


class MemoryRecorder(Recorder):
    """Keeps the history."""

    def __init__(self, clock: Clock) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._next_id = 1

    def invoke(self, op: Op, **fields: Any) -> int:
        """See Recorder."""
        number = self._next_id
        self._next_id += 1
        self._keep("invoke", id=number, op=str(op), **fields)
        return number

    def fault(self, name: str, *, target: str = "") -> None:
        """See Recorder."""
        self._keep("fault", op=name, target=target)

    def heal(self, name: str, *, target: str = "") -> None:
        """See Recorder."""
        self._keep("heal", op=name, target=target)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def _end(self, kind: str, number: int, fields: dict[str, Any]) -> None:
        self._keep(kind, id=number, **fields)

    def _keep(self, kind: str, **fields: Any) -> None:
        self.events.append(Event(kind=kind, at_ms=self._clock.monotonic_ms(), **fields))


class _Calmly(ClientsAtBroker):
    """With pauses between calls: a world has few messages and many faults."""

    async def _quietly(self, story: Any) -> None:
        while not self._stopping:
            try:
                await story()
                await self._clock.sleep_ms(self._rng.uniform(1, PACE_MS))
            except Error as error:
                self._answers.failed[type(error).__name__] += 1
                await self._clock.sleep_ms(self._rng.uniform(50, 300))
                await self._failed()

    async def _failed(self) -> None:
        """Go on at the same broker."""


class _SimPuller(_Calmly, GroupPuller):
    """At the next broker after each error."""

    turns_to: int | None = None
    """The broker where its next pull is, with a look at its progress first; None: where the last one was."""

    async def _pull(self) -> None:
        if self.turns_to is not None:
            self._broker, self.turns_to = self.turns_to - 1, None
            self.go_on()
        await super()._pull()

    async def _failed(self) -> None:
        self.go_on()

    @property
    def reads_at(self) -> int | None:
        """The broker that told it its progress; None: it has to ask."""
        return self._broker if self._offsets else None


class _SimAtBroker(_Calmly):
    """Delays count by the world's clock, so only worlds whose clocks are right have them."""

    delays = False

    def _stories(self) -> list[Any]:
        more = [self._send_delayed] if self.delays else []
        return [self._send_v2, self._publish, self._send_of_group, self._receive, *more]

    def _made(self) -> tuple[str, definition_pb2.Message]:
        body, made = super()._made()
        made.body = made.body[: self._rng.choice((60, 60, 60, 3_000))]
        return body, made

    async def _send_of_group(self) -> None:
        body, made = self._made()
        made.system_properties.message_type = definition_pb2.FIFO
        made.system_properties.message_group = f"{self._name}-{self._rng.randrange(3)}"
        number = self._recorder.invoke(Op.SEND, process="sender", topic=TOPIC, body=body)
        await self._sent(made, number)

    async def _send_delayed(self) -> None:
        body, made = self._made()
        now_ms = self._clock.now_ms()
        delay_ms = self._rng.randint(1, DELAY_MS_MAX)
        made.system_properties.message_type = definition_pb2.DELAY
        made.system_properties.delivery_timestamp.FromMilliseconds(now_ms + delay_ms)
        number = self._recorder.invoke(
            Op.SEND, process="sender", topic=TOPIC, body=body, delivery_ms=self._clock.monotonic_ms() + delay_ms
        )
        await self._sent(made, number)

    async def _sent(self, made: definition_pb2.Message, number: int) -> None:
        request = service_pb2.SendMessageRequest(messages=[made])
        answer = await self._call(V2 + "SendMessage", request, service_pb2.SendMessageResponse, settles=True)
        if answer.entries and answer.entries[0].status.code == 20000:
            self._recorder.ok(number)
        else:
            self._recorder.info(number, error=str(answer.status.code))


class _SimDelaysAtBroker(_SimAtBroker):
    delays = True


class SimClients:
    """All of one world, until `stop`."""

    def __init__(
        self, loop: VirtualLoop, net: SimNet, addresses: list[str], recorder: Recorder, seed: int, *, delays: bool,
        repeats: bool = False, transacts: bool = False,
    ) -> None:  # fmt: skip
        self.answers = GroupAnswers()
        kind = _SimDelaysAtBroker if delays else _SimAtBroker

        def edges(name: str) -> dict[str, Any]:
            return {"net": ProcessNet(net, SimProcess(name, loop)), "clock": ProcessClock(loop)}

        self._clients: list[ClientsAtBroker] = [
            kind(number, address, recorder, random.Random(f"{seed} {address}"), self.answers, **edges(f"c{number}"))
            for number, address in enumerate(addresses)
        ]
        rng = random.Random(f"{seed} puller")
        self.puller = _SimPuller(addresses, recorder, rng, self.answers, **edges("puller"))
        self._clients.append(self.puller)
        self._reader: GroupReader | None = None
        if repeats:
            rng = random.Random(f"{seed} repeating")
            sender = RepeatingSender(addresses, recorder, rng, self.answers, **edges("again"))
            sender.delays = delays
            self._reader = GroupReader(
                addresses, recorder, random.Random(f"{seed} reader"), self.answers, **edges("reader")
            )
            self._clients += [sender, self._reader]
        self._transacting: TransactingMember | None = None
        self.transacted: Transacted | None = None
        """What came of transactions; None: there are none."""
        if transacts:
            self.transacted, more, self._transacting = transacting_clients(
                seed, addresses, recorder, self.answers, edges
            )
            self._clients += more
        self._tasks: list[list[asyncio.Task[None]]] = []

    def start(self) -> None:
        """Everybody begins."""
        self._tasks = [client.start() for client in self._clients]

    def check(self) -> None:
        """Raises what ended a story: a fault of its own."""
        for task in (task for tasks in self._tasks for task in tasks if task.done()):
            task.result()

    async def stop(self) -> None:
        """Each ends with what it is at; who waits for an answer that never comes is ended."""
        for client in self._clients:
            client._stopping = True
        tasks = [task for of_one in self._tasks for task in of_one]
        clock = ProcessClock(tasks[0].get_loop())  # type: ignore[arg-type]
        limit = asyncio.ensure_future(clock.sleep_ms(12_000))
        ending = asyncio.ensure_future(asyncio.wait(tasks))
        await asyncio.wait([limit, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in (limit, ending, *(task for task in tasks if not task.done())):
            task.cancel()
        self.check_all(tasks)

    async def drain(self) -> None:
        """What the reader of message groups and the member that transacts have left to read, with the connections that
        they have. Raises Error.
        """
        if self._reader is not None:
            await self._reader.drain()
        if self._transacting is not None:
            await self._transacting.drain()
            await self._transacting.read()

    @staticmethod
    def check_all(tasks: list[asyncio.Task[None]]) -> None:
        """Raises what ended a story."""
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()


async def drain(address: str, net: SimNet, loop: VirtualLoop, recorder: Recorder) -> None:
    """Everything is received, pulled and scanned there. Raises Error, AssertionError if a queue is not dense."""
    process = SimProcess("drain", loop)
    clients = Clients(
        address, recorder, random.Random(0), name="drain", net=ProcessNet(net, process), clock=ProcessClock(loop)
    )
    await clients.drain()
