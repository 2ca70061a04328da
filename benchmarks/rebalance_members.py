"""Members of one group for `benchmarks/rebalance.py`: many push consumers in one process, which read what to do from
stdin.

    python benchmarks/rebalance_members.py --endpoint HOST:PORT --topic T --group G --name w1

Commands are lines: `join N`, `leave N` (the last that joined), `calm`, `seen`, `end`. Answers are JSON lines with
`at`, the machine's monotonic clock in seconds, which all processes of a machine share: queues gained (just before their
first pull) and lost (after the last message, before the lock is released), and at `seen` the delivered offsets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import evenq.aio
from evenq.client.options import PushOptions
from evenq.model import MessageQueue, ReceivedMessage


class Members:
    """The consumers of this process."""

    def __init__(self, endpoint: str, topic: str, group: str, name: str) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._group = group
        self._name = name
        self._count = 0
        self._members: list[evenq.aio.PushConsumer] = []
        self._seen: dict[str, list[int]] = {}

    async def join(self, number: int) -> None:
        """Starts `number` more members, one after the other."""
        for _ in range(number):
            self._count += 1
            client_id = f"{self._name}-{self._count:03}"
            member = self._member(client_id)
            tell("joining", member=client_id)
            await member.start()
            self._members.append(member)

    async def leave(self, number: int) -> None:
        """Closes the members that joined last, all at the same time."""
        going, self._members = self._members[-number:], self._members[:-number]
        for member in going:
            tell("leaving", member=member.client_id)
        await asyncio.gather(*(member.close() for member in going))
        tell("left")

    def seen(self) -> None:
        """Sends the delivered offsets, repeated ones repeatedly."""
        tell("seen", offsets=self._seen)

    def _member(self, client_id: str) -> evenq.aio.PushConsumer:
        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                self._seen.setdefault(names([message.queue])[0], []).append(message.queue_offset)

        async def moved(gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
            tell("moved", member=client_id, gained=names(gained), lost=names(lost))

        return evenq.aio.PushConsumer(
            group=self._group,
            listener=listen,
            subscriptions={self._topic: "*"},
            endpoint=self._endpoint,
            assignment="server",
            consume_threads=2,
            on_rebalance=moved,
            options=PushOptions(pull_batch=32),
            client_id=client_id,
        )


def names(queues: Sequence[MessageQueue]) -> list[str]:
    """`broker/number` of each."""
    return [f"{queue.broker_name}/{queue.queue_id}" for queue in queues]


def tell(event: str, **facts: Any) -> None:
    """Sends one line to the benchmark."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n")
    sys.stdout.flush()


async def serve(members: Members) -> None:
    """Carries out the commands of stdin until `end`."""
    loop = asyncio.get_running_loop()
    tell("ready")
    while True:
        line = (await loop.run_in_executor(None, sys.stdin.readline)).split()
        match line:
            case ["join", number]:
                await members.join(int(number))
                tell("joined")
            case ["leave", number]:
                await members.leave(int(number))
            case ["calm"]:
                gc.collect()
                gc.freeze()
                tell("calm")
            case ["seen"]:
                members.seen()
            case _:
                return


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("endpoint", "topic", "group", "name"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    asyncio.run(serve(Members(options.endpoint, options.topic, options.group, options.name)))


if __name__ == "__main__":
    main()
