"""Senders, push and simple consumers of the SDK beside a group that is replaced, and what became of each message.

A stream is one sender that sends one message after the other; those of the FIFO topic are a message group each. Every
message has a number in its stream. Consumers write down what reaches them, in its order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import evenq
from evenq.errors import BadRequest, Error
from evenq.model import ReceivedMessage
from evenq.runtime.closing import Closing
from evenq_proofs.rolling_upgrade.judging import (
    Acknowledged,
    Arrival,
    Outcome,
    longest_gap_ms,
    missing,
    reordered,
    repeated,
)

NORMAL, FIFO = "rolled", "rolled-fifo"
STREAMS: Final = {NORMAL: 3, FIFO: 4}
GROUPS: Final = {"push": NORMAL, "push-fifo": FIFO, "simple": NORMAL, "simple-fifo": FIFO}
MEMBERS: Final = {"simple": 4, "simple-fifo": 2}
"""Threads that receive; one acknowledges what it has before it receives again."""
BATCH: Final = 8
INVISIBLE_MS: Final = 30_000
"""Much longer than a batch takes on a busy machine: whatever comes a second time comes for another reason."""
REPEATS_S: Final = 4.0
"""Waited at the end for what should not come."""
PACE_S: Final = 0.025
"""Between two messages of a stream: the group is under load, and its machine is not full."""
IDLE_S: Final = 60.0
"""What has not come after so long without anything new is lost."""


class Load(Closing):
    """Runs from its making on until `finish`."""

    def __init__(self, endpoints: str) -> None:
        """Makes topics and groups, too."""
        self._endpoints = endpoints
        self._stopping, self._leaving = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._acknowledged: dict[str, list[Acknowledged]] = defaultdict(list)
        """By stream."""
        self._refused = 0
        self._arrived: dict[str, list[Arrival]] = defaultdict(list)
        """By group, in their order."""
        self.unfinished: list[str] = []
        """Acknowledgements that were refused, or not answered."""
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        with evenq.Admin(endpoint=endpoints) as admin:
            admin.create_topic(NORMAL, queues=4, message_type="NORMAL")
            admin.create_topic(FIFO, queues=4, message_type="FIFO")
            for group, topic in GROUPS.items():
                admin.create_group(group, ordered=topic == FIFO, start_from="FIRST", max_attempts=1_000)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        enter, endpoint = self._stack.enter_context, self._endpoints
        for group, topic in GROUPS.items():
            if group.startswith("push"):
                enter(
                    evenq.PushConsumer(
                        group=group, listener=self._listener(group), subscriptions={topic: "*"}, endpoint=endpoint,
                        start_from="FIRST", ordered=topic == FIFO,
                    )
                )  # fmt: skip
            else:
                consumer = evenq.SimpleConsumer(
                    group=group, subscriptions={topic: "*"}, endpoint=endpoint, start_from="FIRST"
                )
                enter(consumer)
                for member in range(MEMBERS[group]):
                    self._run(f"receive-{group}-{member}", self._receiver(group, consumer))
        for topic, streams in STREAMS.items():
            producer = enter(evenq.Producer(endpoint=endpoint))
            for number in range(streams):
                stream = f"{topic}-{number}"
                self._run(f"send-{stream}", self._sender(producer, topic, stream))

    def _run(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _sender(self, producer: evenq.Producer, topic: str, stream: str) -> Callable[[], None]:
        acknowledged = self._acknowledged[stream]

        def send() -> None:
            number = 0
            while not self._stopping.wait(PACE_S):  # the pace
                number += 1
                message = evenq.Message(
                    topic=topic, body=f"{stream}:{number}".encode(), message_group=stream if topic == FIFO else None
                )
                try:
                    producer.send(message)
                except Error:
                    with self._lock:
                        self._refused += 1
                else:
                    acknowledged.append(Acknowledged(number, _now_ms()))

        return send

    def _listener(self, group: str) -> Callable[[Sequence[ReceivedMessage]], None]:
        def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                self._came(group, message)

        return listen

    def _receiver(self, group: str, consumer: evenq.SimpleConsumer) -> Callable[[], None]:
        def receive() -> None:
            while not self._leaving.is_set():
                try:
                    messages = consumer.receive(BATCH, invisible_ms=INVISIBLE_MS, wait_ms=1_000)
                except Error:
                    self._leaving.wait(0.05)  # the next try
                    continue
                for message in messages:
                    self._came(group, message)
                    self._ack(consumer, message)

        return receive

    def _ack(self, consumer: evenq.SimpleConsumer, message: ReceivedMessage) -> None:
        end = time.monotonic() + INVISIBLE_MS / 1_000
        while time.monotonic() < end:
            try:
                consumer.ack(message)
            except BadRequest as error:  # it was given to somebody else: the message comes again, and is counted then
                self._unfinished(message, error)
                return
            except Error:
                time.sleep(0.05)
            else:
                return
        self._unfinished(message, f"no answer within {INVISIBLE_MS} ms")

    def _unfinished(self, message: ReceivedMessage, why: object) -> None:
        with self._lock:
            self.unfinished.append(f"{message.body.decode()}: {why}")

    def _came(self, group: str, message: ReceivedMessage) -> None:
        stream, _, number = message.body.decode().rpartition(":")
        place = f"{message.queue.queue_id}:{message.queue_offset}"
        with self._lock:
            self._arrived[group].append(Arrival(stream, int(number), place, _now_ms()))

    @property
    def acknowledged(self) -> int:
        """Messages so far."""
        return sum(len(of_stream) for of_stream in list(self._acknowledged.values()))

    def wait_for(self, count: int, *, within_s: float = 60.0) -> None:
        """Until so many more are acknowledged. Raises AssertionError."""
        goal, end = self.acknowledged + count, time.monotonic() + within_s
        while self.acknowledged < goal:
            assert time.monotonic() < end, f"{self.acknowledged} of {goal} messages acknowledged within {within_s} s"
            time.sleep(0.02)

    def stalls_ms(self, begin_ms: int, end_ms: int) -> tuple[int, int]:
        """The longest time without an acknowledgement that reaches into the given time: of all streams together, and of
        one stream.
        """
        streams = [[at_ms for _, at_ms in list(of_stream)] for of_stream in list(self._acknowledged.values())]
        together = sorted(at_ms for stream in streams for at_ms in stream)
        return longest_gap_ms(together, begin_ms, end_ms), max(longest_gap_ms(one, begin_ms, end_ms) for one in streams)

    def finish(self) -> Outcome:
        """Stop sending, wait until everything came, end the consumers, compare."""
        self._stopping.set()
        for thread in self._threads:
            if thread.name.startswith("send-"):
                thread.join(120)
                assert not thread.is_alive(), f"{thread.name} does not end"
        missing, since = len(self._missing()), time.monotonic()
        while missing and time.monotonic() - since < IDLE_S:
            time.sleep(0.2)
            if (left := len(self._missing())) < missing:
                missing, since = left, time.monotonic()
        self._leaving.wait(REPEATS_S)
        self.close()
        return self._outcome()

    def close(self) -> None:
        """End everything. Idempotent."""
        self._stopping.set()
        self._leaving.set()
        for thread in self._threads:
            thread.join(60)
        self._stack.close()

    def _missing(self) -> list[str]:
        with self._lock:
            arrived = {group: list(self._arrived[group]) for group in GROUPS}
        return [text for group in GROUPS for text in missing(group, self._sent_to(group), arrived[group])]

    def _sent_to(self, group: str) -> dict[str, list[Acknowledged]]:
        sent = list(self._acknowledged.items())
        return {stream: messages for stream, messages in sent if stream.rpartition("-")[0] == GROUPS[group]}

    def _outcome(self) -> Outcome:
        outcome = Outcome(acknowledged=self.acknowledged, refused=self._refused, lost=self._missing())
        for group, arrivals in self._arrived.items():
            outcome.repeated += repeated(group, arrivals)
            if GROUPS[group] == FIFO:
                outcome.reordered += reordered(group, arrivals)
        return outcome


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
