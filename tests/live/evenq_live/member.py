"""`python -m evenq_live.member ...`: one push consumer in a process of its own, as in production.

It writes a history (`evenq.testing.history`) line by line, so that SIGKILL loses nothing that was reported, and one JSON
line to stdout for each change of its queues. SIGTERM: it leaves the group as a good member does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evenq
from evenq.client.options import PushOptions
from evenq.runtime.clock import SystemClock
from evenq.serving.program.logs import setup_logs
from evenq.testing.history import HistoryAction, Op, Recorder

COUNT_S = 0.5
PULL_BATCH = 64
PULL_THRESHOLD = 256


def text_of(queue: evenq.MessageQueue) -> str:
    """`topic/broker/queue id`, as histories name a queue."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def consume(asked: argparse.Namespace) -> None:
    """Read until SIGTERM."""
    stop, clock, spoken = threading.Event(), SystemClock(), threading.Lock()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    process = asked.name

    def say(**fields: Any) -> None:
        with spoken:
            sys.stdout.write(json.dumps({"at_ms": clock.monotonic_ms(), **fields}) + "\n")
            sys.stdout.flush()

    with Recorder(Path(asked.history), clock=clock, buffer_events_max=1) as recorder:
        counted = 0

        def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
            nonlocal counted
            operation = recorder.invoke(Op.RECEIVE, process=process, group=asked.group)
            seen = [
                (text_of(m.queue), int(m.queue_offset), m.properties["number"], m.delivery_attempt) for m in messages
            ]
            recorder.ok(operation, messages=seen)
            counted += len(seen)  # about: it only shows that something comes

        def moved(gained: Sequence[evenq.MessageQueue], lost: Sequence[evenq.MessageQueue]) -> None:
            for queues, action in ((lost, HistoryAction.UNLOCK), (gained, HistoryAction.LOCK)):
                for queue in queues:
                    operation = recorder.invoke(
                        Op.ADMIN, process=process, group=asked.group, action=action, queue=text_of(queue)
                    )
                    recorder.ok(operation)
            say(gained=[text_of(queue) for queue in gained], lost=[text_of(queue) for queue in lost])

        consumer = evenq.PushConsumer(
            group=asked.group,
            endpoint=asked.endpoint,
            listener=listen,
            subscriptions={asked.topic: "*"},
            assignment="server",
            start_from="FIRST",
            ordered=asked.ordered,
            consume_threads=4,
            on_rebalance=moved,
            options=PushOptions(pull_batch=PULL_BATCH, pull_threshold_queue=PULL_THRESHOLD),
            client_id=process,
        )
        say(ready=True)
        consumer.start()
        result = 0
        while not stop.wait(COUNT_S):
            if counted != result:
                result = counted
                say(count=result)
        say(leaving=True)
        consumer.close()
    say(closed=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    for name in ("endpoint", "topic", "group", "name", "history"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ordered", action="store_true")
    setup_logs(stream=sys.stderr)
    consume(parser.parse_args())


if __name__ == "__main__":
    main()
