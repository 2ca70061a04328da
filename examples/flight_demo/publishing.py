"""The producer of the demo: sends every flight once and records each acknowledgement in the history.

It runs in the demo's process, in its own process (`python -m flight_demo publish`), or in a pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path

import evenq
from evenq.client.options import ProducerOptions
from evenq.errors import RequestTimeout
from evenq.runtime.clock import Clock
from evenq.testing.history import Op, Recorder
from flight_demo.flights import Flight

PATIENCE_MS = 120_000
"""Longest time for the retries of flights: it outlasts the restart of a killed broker."""


class Published:
    """Counts of one run, written by the producer's thread and read by the progress display."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.retried = 0
        self.failed = 0
        self.first_error = ""


def publish(
    flights: Iterable[Flight],
    *,
    endpoint: str,
    topic: str,
    history: Path,
    clock: Clock,
    published: Published | None = None,
    pause: Callable[[int], None] = lambda _: None,
) -> Published:
    """Sends every flight until all are acknowledged; calls `pause(number)` before each send. Raises RequestTimeout.

    A failed send is repeated as a new operation of the history; the retries of the producer itself are one operation.
    """
    published = published or Published()
    options = ProducerOptions(max_attempts=10, timeout_ms=5_000, retry_max_ms=1_000, pending_messages=8_000)
    again: list[Flight] = []
    lock = threading.Lock()
    with Recorder(history, clock=clock) as recorder, evenq.Producer(endpoint=endpoint, options=options) as producer:

        def send(flight: Flight) -> None:
            operation = recorder.invoke(
                Op.SEND, process="producer", topic=topic, body=str(flight.number), tag=flight.carrier
            )
            message = evenq.Message(
                topic=topic,
                body=flight.body,
                tag=flight.carrier,
                keys=(flight.date,),
                properties={"flight": str(flight.number)},
            )

            def answered(future: Future[evenq.SendResult]) -> None:
                error = future.exception()
                if error is None:
                    result = future.result()
                    recorder.ok(operation, queue=queue_text(result.queue), offset=int(result.offset))
                    published.acknowledged += 1
                    return
                recorder.info(operation, error=type(error).__name__)
                published.first_error = published.first_error or str(error)
                with lock:
                    again.append(flight)

            producer.send_async(message).add_done_callback(answered)

        for flight in flights:
            pause(flight.number)
            send(flight)
        producer.flush()
        deadline_ms = clock.monotonic_ms() + PATIENCE_MS
        while again:
            if clock.monotonic_ms() > deadline_ms:
                published.failed = len(again)
                missing = f"{len(again)} flights have no acknowledgement after {PATIENCE_MS // 1000} s"
                raise RequestTimeout(f"{missing}: {published.first_error}")
            with lock:
                batch, again = again, []
            published.retried += len(batch)
            for flight in batch:
                send(flight)
            producer.flush()
    return published


def queue_text(queue: evenq.MessageQueue) -> str:
    """Returns `topic/broker/queue id`, the name of a queue in histories."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
