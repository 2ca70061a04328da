"""Cost of OpenTelemetry for the clients of the SDK, compared with clients that are not instrumented.

    python benchmarks/micro/tracing.py [--seconds 1] [--rounds 5] [--only WORD ...]

Each work takes turns with itself in five modes, round by round in one process: `off`; `no SDK`: instrumented, with the
providers of the API alone; `not sampled`: the SDK with a sampler that drops all traces; `recorded`: the SDK with a
processor that drops the ended spans; `and metrics`: the same with metrics. `send`, `send_async` (a flush after each
thousand) and `send_batch` (a thousand) go to a broker in its own process: messages of 1 KiB, eight queues, default
settings. Without a broker: `of a send` is the observation of a send alone, and `listener` calls an empty listener with
one message and with 32 of one batch.

`CPU` is user and system time of the client's process for each message. It is valid on a machine with other work, the
time on the clock is not. Ratios are medians of the rounds' ratios to `off`. A goal is at most 1.05 for `recorded` in
the time of a `send`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider, TracerProvider

import evenq
from evenq.client.core.clients.observer import ClientIdentity, observed_send
from evenq.client.faces import observed_listener
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.testing import LocalCluster

BODY = bytes(range(256)) * 4
BATCH = 1_000
QUEUE = MessageQueue("bench", "a", 0)
MESSAGE = evenq.Message(topic="bench", body=BODY, tag="new", properties={"region": "eu"})
CLIENT = ClientIdentity(client_id="bench", endpoint="127.0.0.1:8081", group="g")

Work = Callable[[float], int]
"""Works for this number of seconds and returns the number of messages."""


def modes() -> dict[str, tuple[TracerProvider, MeterProvider] | None]:
    """Returns the providers of each mode; None: not instrumented."""
    recording = SdkTracerProvider()
    recording.add_span_processor(SpanProcessor())
    return {
        "off": None,
        "no SDK": (NoOpTracerProvider(), NoOpMeterProvider()),
        "not sampled": (SdkTracerProvider(sampler=ALWAYS_OFF), NoOpMeterProvider()),
        "recorded": (recording, NoOpMeterProvider()),
        "and metrics": (recording, SdkMeterProvider([InMemoryMetricReader()])),
    }


def repeated(step: Callable[[], int]) -> Work:
    def work(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            count += step()
        return count

    return work


def message() -> evenq.Message:
    return evenq.Message(topic="bench", body=BODY, tag="new", properties={"region": "eu"})


def send(producer: evenq.Producer) -> int:
    producer.send(message())
    return 1


def send_async(producer: evenq.Producer) -> int:
    for _ in range(BATCH):
        producer.send_async(message())
    producer.flush()
    return BATCH


def send_batch(producer: evenq.Producer) -> int:
    producer.send_batch(message() for _ in range(BATCH))
    return BATCH


def received(count: int) -> list[ReceivedMessage]:
    return [
        ReceivedMessage(
            topic="bench", body=BODY, message_id=f"id{number}", tag="new", keys=(),
            properties={"region": "eu", "traceparent": f"00-{1:032x}-{2:016x}-01"}, message_group=None, queue=QUEUE,
            queue_offset=QueueOffset(number), born_ms=0, store_ms=0,
        )
        for number in range(count)
    ]  # fmt: skip


def listen(messages: list[ReceivedMessage]) -> int:
    observed_listener(CLIENT, lambda _: None)(messages)
    return len(messages)


def of_a_send() -> int:
    with observed_send(CLIENT, MESSAGE) as sending:
        sending.stored("01" + "A" * 32, QUEUE)
    return 1


def measure(work: Work, seconds: float) -> tuple[float, float]:
    """Returns time and client CPU for each message, us."""
    before, began = time.process_time(), time.perf_counter()
    count = work(seconds)
    took, busy = time.perf_counter() - began, time.process_time() - before
    return took / count * 1e6, busy / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    one, several = received(1), received(32)
    with (
        LocalCluster(brokers=1, nameservers=1, rebalancer=False) as cluster,
        evenq.Producer(endpoint=cluster.endpoint) as producer,
    ):
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("bench", queues=8)
        works = {
            "send": repeated(lambda: send(producer)),
            "send_async": repeated(lambda: send_async(producer)),
            "send_batch": repeated(lambda: send_batch(producer)),
            "of a send": repeated(of_a_send),
            "listener, 1": repeated(lambda: listen(one)),
            "listener, 32": repeated(lambda: listen(several)),
        }
        chosen = {
            name: work for name, work in works.items() if not options.only or any(w in name for w in options.only)
        }
        compare(chosen, options.seconds, options.rounds)


def compare(works: dict[str, Work], seconds: float, rounds: int) -> None:
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    providers = modes()
    for number in range(rounds + 1):
        for name, work in works.items():
            for mode, given in providers.items():
                evenq.otel.uninstrument()
                if given is not None:
                    evenq.otel.instrument(tracer_provider=given[0], meter_provider=given[1])
                figure = measure(work, seconds)
                if number:  # the first round warms up
                    figures.setdefault((name, mode), []).append(figure)
    evenq.otel.uninstrument()
    print(f"{'':14} {'':12} {'time, us':>10} {'CPU, us':>10} {'time : off':>11} {'CPU : off':>10}")
    for (name, mode), rows in figures.items():
        off = figures[name, "off"]
        times, cpu = (statistics.median(row[at] for row in rows) for at in (0, 1))
        ratios = [statistics.median(row[at] / base[at] for row, base in zip(rows, off, strict=True)) for at in (0, 1)]
        print(f"{name:14} {mode:12} {times:10.1f} {cpu:10.1f} {ratios[0]:11.2f} {ratios[1]:10.2f}")


if __name__ == "__main__":
    main()
