"""Jobs of `jetstream.py` for evenq's SDK, its sync face with default options, run by `turns`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial

from turns import Timer, serve

import evenq

BATCH = 1_000
WAIT_MS = 5_000
QUIET_S = 60.0


def send_async(endpoint: str, timer: Timer, *, topic: str, count: int, size: int) -> int:
    """Sends as many as the options let wait, all acknowledged at the end."""
    body = bytes(size)
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send(evenq.Message(topic=topic, body=body))
        with timer:
            sent = [producer.send_async(evenq.Message(topic=topic, body=body)) for _ in range(count)]
            producer.flush()
        for one in sent:
            one.result()
    return count


def send_batch(endpoint: str, timer: Timer, *, topic: str, count: int, size: int) -> int:
    """Sends blocks of a thousand, each acknowledged before the next."""
    body = bytes(size)
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send(evenq.Message(topic=topic, body=body))
        with timer:
            for first in range(0, count, BATCH):
                producer.send_batch(evenq.Message(topic=topic, body=body) for _ in range(min(BATCH, count - first)))
    return count


def send(endpoint: str, timer: Timer, *, topic: str, count: int, size: int) -> int:
    """Sends one by one, each acknowledged."""
    body = bytes(size)
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send(evenq.Message(topic=topic, body=body))
        with timer:
            for _ in range(count):
                producer.send(evenq.Message(topic=topic, body=body))
    return count


def pull(endpoint: str, timer: Timer, *, topic: str, count: int, group: str) -> int:
    """Reads from the start by `poll` in a new group; the time includes the join and the last commit."""
    got = 0
    with timer:
        consumer = evenq.PullConsumer(
            group=group, endpoint=endpoint, subscriptions={topic: "*"}, start_from="FIRST"
        ).start()
        while got < count:
            messages = consumer.poll(BATCH, wait_ms=WAIT_MS)
            if not messages:
                raise SystemExit(f"{got} of {count} messages came, then none for {WAIT_MS} ms")
            got += len(messages)
        consumer.commit()
    consumer.close()
    return got


def push(endpoint: str, timer: Timer, *, topic: str, count: int, group: str) -> int:
    """Reads the same by a listener that only counts."""
    got, lock, done = [0], threading.Lock(), threading.Event()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        with lock:
            got[0] += len(messages)
            if got[0] >= count:
                done.set()

    with timer:
        consumer = evenq.PushConsumer(
            group=group, endpoint=endpoint, listener=listen, subscriptions={topic: "*"}, start_from="FIRST"
        ).start()
        if not done.wait(QUIET_S):
            raise SystemExit(f"{got[0]} of {count} messages came in {QUIET_S:.0f} s")
    consumer.close()
    return got[0]


def main() -> None:
    """Runs a job with its own client."""
    serve({work.__name__: partial(work, sys.argv[1]) for work in (send_async, send_batch, send, pull, push)})


if __name__ == "__main__":
    main()
