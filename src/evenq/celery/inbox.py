"""Deliveries on their way from the loop thread to the thread that consumes a kombu connection.

The consuming thread waits in `wait`, or watches `fileno` in an event loop, and takes one delivery after another.
Bounded by its writers: held messages by the prefetch limit, broadcasts by `Broadcasts`, which pauses.
Always true: while a delivery or a failure is in it, `fileno` is readable.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from evenq.errors import Error


@dataclass(frozen=True, slots=True)
class KombuDelivery:
    """One message of kombu for a queue. `tag` settles it; empty: nothing is to be settled."""

    queue: str
    payload: dict[str, Any]
    tag: str
    source: object | None = None
    """The QueueDeliveries of the channel that received it; None: the queue is transient."""


class Inbox:
    """Thread-safe queue of deliveries that can be watched like a socket."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._changed = threading.Condition()
        self._deliveries: deque[KombuDelivery] = deque()
        self._counts: Counter[str] = Counter()
        self._failure: Error | None = None
        self._signalled = False
        self._closed = False

    def fileno(self) -> int:
        """Returns the descriptor that is readable while something is to be taken."""
        return self._read

    def count(self, queue: str) -> int:
        """Returns the number of deliveries of a queue that were not taken."""
        return self._counts[queue]

    def put(self, delivery: KombuDelivery) -> None:
        """Adds a delivery; in a closed inbox it is dropped, because the channel that owned it has returned it."""
        with self._changed:
            if self._closed:
                return
            self._deliveries.append(delivery)
            self._counts[delivery.queue] += 1
            self._signal()

    def fail(self, failure: Error) -> None:
        """Makes the next `take` raise."""
        with self._changed:
            if not self._closed:
                self._failure = failure
                self._signal()

    def wait(self, timeout: float | None) -> bool:
        """Waits for something to take, at most `timeout` seconds; None: without limit."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._deliveries) or self._failure is not None, timeout)

    def take(self) -> KombuDelivery | None:
        """Returns the oldest delivery; None: there is none. Raises the failure of a receiver, once."""
        with self._changed:
            failure, self._failure = self._failure, None
            delivery = None
            if failure is None and self._deliveries:
                delivery = self._deliveries.popleft()
                self._counts[delivery.queue] -= 1
                if not self._counts[delivery.queue]:
                    del self._counts[delivery.queue]
            if self._signalled and not self._deliveries:
                self._signalled = False
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 64)
        if failure is not None:
            raise failure
        return delivery

    def drop(self, queue: str, source: object | None = None) -> list[KombuDelivery]:
        """Removes and returns the deliveries of a queue and source, which have no consumer any more."""
        dropped: list[KombuDelivery] = []
        kept: deque[KombuDelivery] = deque()
        with self._changed:
            for delivery in self._deliveries:
                gone = delivery.queue == queue and delivery.source is source
                (dropped if gone else kept).append(delivery)
            self._deliveries = kept
            self._counts[queue] -= len(dropped)
            if not self._counts[queue]:
                del self._counts[queue]
        return dropped

    def close(self) -> None:
        """Closes the descriptors. A second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed, self._signalled = True, False
            self._deliveries.clear()
            self._counts.clear()
        os.close(self._read)
        os.close(self._write)

    def _signal(self) -> None:
        if not self._signalled:
            self._signalled = True
            os.write(self._write, b"x")
        self._changed.notify_all()
