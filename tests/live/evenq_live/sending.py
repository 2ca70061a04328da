"""A steady stream of numbered messages, in a thread; each send is in the history, and one without an answer is sent again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Self

import evenq
from evenq.client.options import ProducerOptions
from evenq.runtime.clock import SystemClock
from evenq.testing.history import Op, Recorder
from evenq_live.member import text_of

TICK_S = 0.01
PATIENCE_S = 60.0


class Stream:
    """`with Stream(...)`: sends `rate` messages a second until the block ends, and then until all are acknowledged."""

    def __init__(self, endpoint: str, topic: str, *, rate: int, history: Path) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.unclear = 0
        """Sends that ended without an answer; their messages were sent again."""
        self._endpoint, self._topic, self._rate, self._history = endpoint, topic, rate, history
        self._ending = threading.Event()
        self._again: list[int] = []
        self._lock = threading.Lock()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sending", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(PATIENCE_S)
        assert self._problem is None, self._problem
        assert self.acknowledged == self.sent, f"{self.sent - self.acknowledged} messages have no acknowledgement"

    def _run(self) -> None:
        clock = SystemClock()
        options = ProducerOptions(max_attempts=10, timeout_ms=5_000, pending_messages=20_000)
        try:
            with (
                Recorder(self._history, clock=clock) as recorder,
                evenq.Producer(endpoint=self._endpoint, options=options) as producer,
            ):
                begun_ms = clock.monotonic_ms()
                while not self._ending.wait(TICK_S):
                    due = (clock.monotonic_ms() - begun_ms) * self._rate // 1_000
                    while self.sent < due and not self._ending.is_set():
                        self._send(producer, recorder, self.sent)
                        self.sent += 1
                deadline_ms = clock.monotonic_ms() + int(PATIENCE_S * 1_000) // 2
                producer.flush()
                while self._take_again(lambda number: self._send(producer, recorder, number)):
                    assert clock.monotonic_ms() < deadline_ms, "brokers do not take messages any more"
                    producer.flush()
        except BaseException as problem:
            self._problem = problem
            raise

    def _send(self, producer: evenq.Producer, recorder: Recorder, number: int) -> None:
        operation = recorder.invoke(Op.SEND, process="sender", topic=self._topic, body=str(number))
        message = evenq.Message(topic=self._topic, body=b"%0128d" % number, properties={"number": str(number)})

        def answered(future: Future[evenq.SendResult]) -> None:
            if (error := future.exception()) is not None:
                recorder.info(operation, error=type(error).__name__)
                with self._lock:
                    self.unclear += 1
                    self._again.append(number)
                return
            result = future.result()
            recorder.ok(operation, queue=text_of(result.queue), offset=int(result.offset))
            with self._lock:
                self.acknowledged += 1

        producer.send_async(message).add_done_callback(answered)

    def _take_again(self, send: Callable[[int], None]) -> bool:
        with self._lock:
            again, self._again = self._again, []
        for number in again:
            send(number)
        return bool(again)
