"""Cost of a broker's handlers on the public protocol: CPU per message, of the process and of its loop.

    python benchmarks/handlers.py [--rounds 5] [--messages 20000] [--front http2] [--only unary batch receive]
        [--profile FILE]

A real broker (data on disk, asynchronous flush, defaults) gets prepared requests from another process (`replay`):
SendMessage with 64 calls in flight; the same in batches of 32; ReceiveMessage of 32 and one AckMessage of them.
Messages have 1 KiB, a tag and two user properties. CPU time comes from /proc and is valid on a machine with other work;
the speed is not. `loop` is the thread of the event loop alone, without the threads of the store.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import load
import replay_requests as made
from servers import Server, broker, cpu_s

BATCH = 32
READERS = 8
PATIENT = ("-timeout", "10m")
"""Long, because a busy machine may need much time for little CPU."""
SPARE = 1_500
"""Messages beyond those that are read, so that the last polls do not wait for each other."""


@dataclass(frozen=True, slots=True)
class Cost:
    per_s: float
    all_us: float
    """CPU of the whole process for each message."""
    loop_us: float


class Meter:
    """CPU of a server since the object was made."""

    def __init__(self, server: Server) -> None:
        self._pid = server.pid
        self._all, self._loop = cpu_s(server.pid), cpu_s(server.pid, loop=True)

    def cost(self, messages: int, secs: float) -> Cost:
        """Returns the CPU per message."""
        whole, loop = cpu_s(self._pid) - self._all, cpu_s(self._pid, loop=True) - self._loop
        return Cost(messages / secs, whole / messages * 1e6, loop / messages * 1e6)


def send(server: Server, count: int, batch: int) -> Cost:
    """SendMessage, 64 calls in flight."""
    requests = made.sends("normal", f"send-{batch}", count, batch=batch, together=True)
    meter = Meter(server)
    done = load.replayed("call", server.address, requests, "-method", "SendMessage", "-c", "64", *PATIENT)
    cost = meter.cost(count, done.secs)
    made.must_be_ok("SendMessage", done.answers())
    return cost


def receive(server: Server, count: int, number: int) -> Cost:
    """ReceiveMessage of 32 and one AckMessage, eight readers, from a topic that was filled before."""
    topic = f"receive-{number}"
    filling = made.sends("normal", topic, count + SPARE, batch=BATCH)
    load.replayed("call", server.address, filling, "-method", "SendMessage", "-c", "16", *PATIENT)
    request = made.receive(topic, f"g-{topic}", "*", is_sql=False)
    meter = Meter(server)
    done = load.replayed(
        "consume",
        server.address,
        [request],
        "-c",
        str(READERS),
        "-n",
        str(count),
        "-id",
        made.CLIENT,
        *PATIENT,
    )
    return meter.cost(done.messages, done.secs)


def rounds(server: Server, name: str, count: int, number: int) -> list[Cost]:
    """Runs all rounds of one load after one that warms up."""
    results = []
    for turn in range(number + 1):
        if name == "receive":
            cost = receive(server, count, turn)
        else:
            cost = send(server, count * 4 if name == "batch" else count, BATCH if name == "batch" else 1)
        if turn or number == 0:
            results.append(cost)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU of a broker for each message.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="of unary sends and receives; batches send 4 x it")
    parser.add_argument("--front", default="http2", choices=("grpcio", "http2"))
    parser.add_argument("--only", nargs="+", choices=("unary", "batch", "receive"))
    parser.add_argument("--profile", default="", help="cProfile of the broker; the figures are not valid then")
    options = parser.parse_args()
    if options.profile:
        os.environ["EVENQ_BENCH_PROFILE"] = options.profile
    print("| load | messages/s | CPU us a message | of it on the loop |")
    print("|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory(prefix="evenq-bench-") as folder,
        broker(Path(folder), EVENQ_BROKER_FRONT=options.front) as server,
    ):
        for name in options.only or ("unary", "batch", "receive"):
            results = rounds(server, name, options.messages, options.rounds)
            all_us, loop_us = _spread([one.all_us for one in results]), _spread([one.loop_us for one in results])
            print(f"| {name} | {median(one.per_s for one in results):,.0f} | {all_us} | {loop_us} |", flush=True)
    return 0


def _spread(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    raise SystemExit(main())
