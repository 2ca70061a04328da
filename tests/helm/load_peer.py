"""A process that loads a broker group with one SDK until it reads a line; answers in JSON lines.

SDK produce ENDPOINT TOPIC RATE: numbered messages, RATE of them a second, each sent once by the program whatever the SDK does with it.
SDK consume ENDPOINT TOPIC GROUP: receives and acknowledges one by one. The line is a list of numbers; it ends once it has acknowledged
all of them, or when nothing was acknowledged for 90 s: what it is behind by is not lost. Once it has received all of them that time is
35 s: what is missing then are acknowledgements whose answer was lost, and those messages do not come again.

SDK is `official` (the official Python SDK and nothing of ours) or `ours`. While it runs it says `{"count": N}`, at its end what became of
each message: `sent` and `acked` are pairs of number and time (seconds of one clock of the machine), `got` the same for each receipt.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

SENDERS, TAKERS = 8, 4
BATCH, INVISIBLE_S, WAIT_S = 32, 30, 2
FAILED_PAUSE_S = 0.05
END_S, COMES_AGAIN_S = 90, INVISIBLE_S + 5

Pairs = list[tuple[int, float]]


class Official:
    """The official Python SDK."""

    def __init__(self, endpoint: str, topic: str) -> None:
        from rocketmq import ClientConfiguration, Credentials

        keys = Credentials(os.environ["PEER_ACCESS_KEY"], os.environ["PEER_SECRET_KEY"])
        self._configuration, self._topic = ClientConfiguration(endpoint, keys), topic

    def sender(self) -> Callable[[str], object]:
        from rocketmq import Message, Producer

        producer = Producer(self._configuration, (self._topic,))
        producer.startup()

        def send(body: str) -> None:
            message = Message()
            message.topic, message.body = self._topic, body.encode()
            producer.send(message)

        return send

    def taker(self, group: str) -> tuple[Callable[[], list[Any]], Callable[[Any], object]]:
        from rocketmq import FilterExpression, SimpleConsumer

        consumer = SimpleConsumer(
            self._configuration, group, {self._topic: FilterExpression("*")}, await_duration=WAIT_S
        )
        consumer.startup()
        return lambda: consumer.receive(BATCH, INVISIBLE_S) or [], consumer.ack


class Ours:
    """Our SDK."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._endpoint, self._topic = endpoint, topic
        self._open = ExitStack()

    def sender(self) -> Callable[[str], object]:
        import evenq

        producer = self._open.enter_context(evenq.Producer(endpoint=self._endpoint))
        return lambda body: producer.send(evenq.Message(topic=self._topic, body=body.encode()))

    def taker(self, group: str) -> tuple[Callable[[], list[Any]], Callable[[Any], object]]:
        import evenq

        consumer = evenq.SimpleConsumer(group=group, subscriptions={self._topic: "*"}, endpoint=self._endpoint)
        self._open.enter_context(consumer)

        def receive() -> list[Any]:
            return list(consumer.receive(BATCH, invisible_ms=INVISIBLE_S * 1_000, wait_ms=WAIT_S * 1_000))

        return receive, consumer.ack


class Load:
    """What all threads of the process share."""

    def __init__(self) -> None:
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.sent: Pairs = []
        self.got: Pairs = []
        self.acked: Pairs = []
        self.errors: Counter[str] = Counter()
        self._number = 0
        self._due = time.monotonic()

    def next_number(self, rate: float) -> int:
        """Waits until the next message is due; what an outage has delayed is not made up for. -1: it is over."""
        with self.lock:
            self._number += 1
            number = self._number
            self._due = max(self._due + 1 / rate, time.monotonic() - 1 / rate)
            left = self._due - time.monotonic()
        return -1 if self.stop.wait(max(0.0, left)) else number

    def wait_for_the_end(self) -> None:
        """A thread that reads the line."""
        wanted, acked = set(json.loads(sys.stdin.readline() or "[]")), -1
        last, patience = time.monotonic(), END_S
        while time.monotonic() < last + patience:
            if len(self.acked) > acked:
                acked, last = len(self.acked), time.monotonic()
                if acked >= len(wanted) and wanted <= {number for number, _ in self.acked}:
                    break
            elif patience == END_S and wanted <= {number for number, _ in self.got}:
                patience = COMES_AGAIN_S
            time.sleep(0.25)
        self.stop.set()

    def failed(self, error: Exception) -> None:
        """Of a call, after all that the SDK tried."""
        text = f"{type(error).__name__}: {error}"[:160]
        with self.lock:
            self.errors[text] += 1
        self.stop.wait(FAILED_PAUSE_S)

    def send(self, send: Callable[[str], object], rate: float) -> None:
        """A thread that sends."""
        while (number := self.next_number(rate)) >= 0:
            try:
                send(str(number))
            except Exception as error:  # noqa: BLE001  the SDKs raise many kinds
                self.failed(error)
            else:
                self.sent.append((number, time.monotonic()))

    def take(self, receive: Callable[[], list[Any]], ack: Callable[[Any], object]) -> None:
        """A thread that receives."""
        while not self.stop.is_set():
            try:
                messages = receive()
            except Exception as error:  # noqa: BLE001
                self.failed(error)
                continue
            now = time.monotonic()
            self.got += [(int(message.body), now) for message in messages]
            for message in messages:
                try:
                    ack(message)
                except Exception as error:  # noqa: BLE001
                    self.failed(error)
                else:
                    self.acked.append((int(message.body), time.monotonic()))


def main(sdk: str, job: str, endpoint: str, topic: str, detail: str) -> None:
    load, client = Load(), {"official": Official, "ours": Ours}[sdk](endpoint, topic)
    if job == "produce":
        send = client.sender()
        works = [lambda: load.send(send, float(detail))] * SENDERS
    else:
        receive, ack = client.taker(detail)
        works = [lambda: load.take(receive, ack)] * TAKERS
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    threading.Thread(target=load.wait_for_the_end, daemon=True).start()
    while not load.stop.wait(0.5):
        print(json.dumps({"count": len(load.sent) + len(load.acked)}), flush=True)
    for thread in threads:
        thread.join(60)
    print(json.dumps({"sent": load.sent, "got": load.got, "acked": load.acked, "errors": load.errors}), flush=True)
    os._exit(0)  # a client's end waits for what the cluster may not answer any more; what was asked for is said


if __name__ == "__main__":
    main(*sys.argv[1:])
