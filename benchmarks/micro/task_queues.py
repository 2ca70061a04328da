"""Tasks a second through the adapters for taskiq and Celery, beside other transports in the same run.

    python benchmarks/micro/task_queues.py [--tasks 500] [--rounds 3] [--redis redis://127.0.0.1:6379/0]

Each line takes turns with the others, round by round in one process; evenq is a broker in its own process with default
settings. `send` waits for each task to be stored before the next one; `run` is the time from the first receive to the
last acknowledgement of the same tasks, which do nothing.

- `taskiq`: `taskiq.receiver.Receiver` with 100 slots, with the default prefetch and with `prefetch=1`. With `--redis`
  and the package taskiq-redis also its stream broker, which acknowledges too.
- `celery`: kombu's `SimpleQueue`, which is what a Celery client and worker use, with an acknowledgement for each
  message. The floor is kombu's transport in memory: the cost of kombu without any broker. With `--redis` also Redis.

Ratios of evenq to a peer are valid only within one run; the machine's other work changes all lines.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from kombu import Connection
from taskiq import AsyncBroker
from taskiq.receiver import Receiver

import evenq.celery  # noqa: F401 - registers the transport
from evenq.taskiq import EvenqBroker
from evenq.testing import LocalCluster

_NUMBERS = count(1)
Speeds = tuple[float, float]
"""Tasks a second of `send` and `run`."""


async def taskiq_speeds(broker: AsyncBroker, tasks: int) -> Speeds:
    ended, done = asyncio.Event(), count(1)

    async def nothing() -> None:
        if next(done) == tasks:
            ended.set()

    task = broker.register_task(nothing, task_name="nothing")
    broker.is_worker_process = True
    await broker.startup()
    try:
        began = time.perf_counter()
        for _ in range(tasks):
            await task.kiq()
        sent = time.perf_counter()
        stop = asyncio.Event()
        with ThreadPoolExecutor(1) as pool:
            receiver = Receiver(broker, pool, max_async_tasks=100, run_startup=False)
            listening = asyncio.ensure_future(receiver.listen(stop))
            await ended.wait()
            took = time.perf_counter() - sent
            stop.set()
            await listening
    finally:
        await broker.shutdown()
    return tasks / (sent - began), tasks / took


def kombu_speeds(url: str, tasks: int) -> Speeds:
    with Connection(url) as connection, connection.SimpleQueue(f"bench-{next(_NUMBERS)}") as queue:
        began = time.perf_counter()
        for number in range(tasks):
            queue.put({"number": number})
        sent = time.perf_counter()
        for _ in range(tasks):
            queue.get(block=True, timeout=60).ack()
        return tasks / (sent - began), tasks / (time.perf_counter() - sent)


def lines(endpoint: str, redis: str, tasks: int) -> dict[str, Callable[[], Speeds]]:
    """Returns what takes turns."""

    def taskiq(**arguments: Any) -> Speeds:
        name = f"bench-taskiq-{next(_NUMBERS)}"
        return asyncio.run(_run(lambda: taskiq_speeds(EvenqBroker(name, name, endpoint=endpoint, **arguments), tasks)))

    found: dict[str, Callable[[], Speeds]] = {
        "taskiq, evenq": taskiq,
        "taskiq, evenq, prefetch=1": lambda: taskiq(prefetch=1),
        "celery, evenq": lambda: kombu_speeds(f"evenq://{endpoint}", tasks),
        "celery, in memory (floor)": lambda: kombu_speeds("memory://", tasks),
    }
    if redis:
        found["celery, redis"] = lambda: kombu_speeds(redis, tasks)
        found["taskiq, redis stream"] = lambda: asyncio.run(_run(lambda: _redis_stream(redis, tasks)))
    return found


async def _run(work: Callable[[], Awaitable[Speeds]]) -> Speeds:
    return await work()  # broker objects are made inside their loop


async def _redis_stream(url: str, tasks: int) -> Speeds:
    from taskiq_redis import RedisStreamBroker  # not a dependency of the tools

    name = f"bench-{next(_NUMBERS)}"
    return await taskiq_speeds(RedisStreamBroker(url, queue_name=name, consumer_group_name=name), tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--redis", default="")
    arguments = parser.parse_args()
    with LocalCluster() as cluster:
        turns = lines(cluster.endpoint, arguments.redis, arguments.tasks)
        speeds: dict[str, list[Speeds]] = {name: [] for name in turns}
        for number in range(arguments.rounds):
            names = list(turns)
            for name in names if number % 2 == 0 else reversed(names):
                speeds[name].append(turns[name]())
    print(f"{'':30}{'send/s':>10}{'run/s':>10}")
    for name, rounds in speeds.items():
        sent, ran = (statistics.median(one) for one in zip(*rounds, strict=True))
        print(f"{name:30}{sent:>10,.0f}{ran:>10,.0f}")


if __name__ == "__main__":
    main()
