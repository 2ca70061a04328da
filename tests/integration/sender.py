"""A producer in a thread of its own."""

from __future__ import annotations

import threading
import time

from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error


class Sender(threading.Thread):
    """Sends numbered messages one after the other until it is stopped; keeps what was acknowledged."""

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__(name="sender", daemon=True)
        self._endpoint, self._topic, self._ended = endpoint, topic, threading.Event()
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        """Of each acknowledgement."""
        self.refused = 0

    def run(self) -> None:
        with evenq.Producer(endpoint=self._endpoint) as producer:
            number = 0
            while not self._ended.is_set():
                number += 1
                body = f"message {number}"
                try:
                    producer.send(evenq.Message(topic=self._topic, body=body.encode()))
                except Error:
                    self.refused += 1
                    time.sleep(0.02)
                else:
                    self.acknowledged.append(body)
                    self.times.append(time.monotonic())

    def wait_for(self, count: int, *, within_s: float = 60.0) -> None:
        """Until this number of more are acknowledged."""
        goal = len(self.acknowledged) + count
        until(
            lambda: len(self.acknowledged) >= goal,
            lambda: f"{len(self.acknowledged)} of {goal} acknowledged",
            seconds=within_s,
        )

    def stop(self) -> list[str]:
        self._ended.set()
        self.join(60)
        assert not self.is_alive()
        return self.acknowledged

    def longest_gap_s(self) -> float:
        return max((after - before for before, after in zip(self.times, self.times[1:], strict=False)), default=0.0)
