"""5,000 parked polls: their cost for a broker at rest, and the time until a message wakes one."""

from __future__ import annotations

import asyncio
import statistics
import time

import replay_requests as made
import servers
from run import Row

from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

POLLS, CONNECTIONS = 5_000, 50
RATE = 100
"""Messages a second that wake them."""
POLL_MS = 58_000
_SERVICE = "/apache.rocketmq.v2.MessagingService/"


class Pollers:
    """5,000 clients of one group on 50 connections, each with one poll; a woken client polls again."""

    def __init__(self, address: str) -> None:
        import grpc.aio

        alone = [("grpc.use_local_subchannel_pool", 1)]  # otherwise they share one connection
        self.channels = [grpc.aio.insecure_channel(address, options=alone) for _ in range(CONNECTIONS)]
        self.request = made.receive("parked", "g-parked", "*", is_sql=False, poll_ms=POLL_MS)
        self.sent: dict[str, float] = {}
        self.waits_ms: list[float] = []
        self.parked = 0
        self.tasks = [asyncio.ensure_future(self.poll(number)) for number in range(POLLS)]

    async def poll(self, number: int) -> None:
        receive = self.channels[number % CONNECTIONS].unary_stream(_SERVICE + "ReceiveMessage")
        while True:
            self.parked += 1
            call = receive(self.request, timeout=60, metadata=(("x-mq-client-id", f"client-{number}"),))
            frames = [frame async for frame in call]
            now = time.perf_counter()
            self.parked -= 1
            for frame in frames:
                response = service_pb2.ReceiveMessageResponse.FromString(frame)
                began = self.sent.pop(response.message.system_properties.message_id, None)
                if began is not None:
                    self.waits_ms.append((now - began) * 1000)

    async def send(self, seconds: float) -> None:
        """Sends RATE messages a second, evenly."""
        send = self.channels[0].unary_unary(_SERVICE + "SendMessage")
        requests = made.sends("normal", "parked", int(RATE * seconds))
        sending: list[asyncio.Task[None]] = []

        async def one(request: bytes) -> None:
            self.sent[service_pb2.SendMessageRequest.FromString(request).messages[0].system_properties.message_id] = (
                time.perf_counter()
            )
            made.must_be_ok("SendMessage", [await send(request)])

        began = time.perf_counter()
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            sending.append(asyncio.ensure_future(one(request)))
        await asyncio.gather(*sending)
        await asyncio.sleep(1)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self.channels))


async def _until_calm(broker: servers.Server) -> None:
    # On a busy machine the polls need long to arrive, and the broker is not at rest before.
    for _ in range(60):
        before = servers.cpu_s(broker.pid)
        await asyncio.sleep(1)
        if servers.cpu_s(broker.pid) - before <= 0.05:
            return


async def _measure(broker: servers.Server, *, seconds: float) -> list[Row]:
    rest = Row(f"CPU with {POLLS:,} parked polls", "% of a core", "<= 2 %")
    wake = Row("wake-up of one of them, p99", "ms", "<= 20 ms")
    pollers = Pollers(broker.address)
    await asyncio.sleep(2)
    await _until_calm(broker)
    for _ in range(2):
        before = servers.cpu_s(broker.pid)
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        rest.ours.append((servers.cpu_s(broker.pid) - before) / (time.perf_counter() - began) * 100)
    rest.note = f"{pollers.parked:,} polls on {CONNECTIONS} connections, {servers.memory(broker.pid).rss:.0f} MB RSS"
    await pollers.send(seconds)
    waits = sorted(pollers.waits_ms)
    lost = len(pollers.sent)
    await pollers.close()
    wake.ours.append(waits[len(waits) * 99 // 100])
    wake.note = f"p50 {statistics.median(waits):.1f} ms, longest {waits[-1]:.1f} ms, {len(waits)} messages, {lost} lost"
    rest.ok = statistics.median(rest.ours) <= 2 and pollers.parked <= POLLS
    wake.ok = wake.ours[0] <= 20 and not lost
    return [rest, wake]


def rows(broker: servers.Server, *, quick: bool) -> list[Row]:
    """Both lines."""
    return asyncio.run(_measure(broker, seconds=4 if quick else 10))
