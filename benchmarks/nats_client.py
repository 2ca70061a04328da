"""Jobs of `jetstream.py` for nats-py, run by `turns` in the environment of `nats_peer.python`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import nats
from nats.js import api
from turns import Timer, serve

QUEUES = 8
WINDOW = 4_000
"""Most publishes without an ack: the client's default."""
FETCH = 500
PENDING_MAX = 20_000

Work = Callable[..., Awaitable[int]]


async def _stream(js: Any, name: str) -> None:
    # Creating an equal stream again is not an error.
    await js.add_stream(name=name, subjects=[f"{name}.*"], storage=api.StorageType.FILE)


async def publish_async(js: Any, timer: Timer, *, topic: str, count: int, size: int) -> int:
    """Publishes with a full window, all acknowledged at the end."""
    await _stream(js, topic)
    body, subjects = bytes(size), [f"{topic}.{number}" for number in range(QUEUES)]
    await js.publish(subjects[0], body)
    with timer:
        acks = [await js.publish_async(subjects[number % QUEUES], body) for number in range(count)]
        await js.publish_async_completed()
    for ack in acks:
        ack.result()
    return count


async def publish(js: Any, timer: Timer, *, topic: str, count: int, size: int) -> int:
    """Publishes one by one, each acknowledged."""
    await _stream(js, topic)
    body = bytes(size)
    await js.publish(f"{topic}.0", body)
    with timer:
        for number in range(count):
            await js.publish(f"{topic}.{number % QUEUES}", body)
    return count


async def fetch(js: Any, timer: Timer, *, topic: str, count: int, group: str) -> int:
    """Reads from the start by a new durable consumer, and acknowledges each message."""
    config = api.ConsumerConfig(ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=PENDING_MAX)
    got = 0
    with timer:
        reader = await js.pull_subscribe(f"{topic}.*", durable=group, stream=topic, config=config)
        while got < count:
            for message in await reader.fetch(FETCH, timeout=5):
                await message.ack()
                got += 1
        await js._nc.flush()  # noqa: SLF001
    return got


def main() -> None:
    """Runs a job on its own connection, opened before its time begins."""
    address = f"nats://{sys.argv[1]}"

    async def connected(work: Work, timer: Timer, arguments: dict[str, Any]) -> int:
        connection = await nats.connect(address)
        try:
            return await work(connection.jetstream(publish_async_max_pending=WINDOW), timer, **arguments)
        finally:
            await connection.close()

    def run(work: Work, timer: Timer, **arguments: Any) -> int:
        return asyncio.run(connected(work, timer, arguments))

    serve({work.__name__: partial(run, work) for work in (publish_async, publish, fetch)})


if __name__ == "__main__":
    main()
