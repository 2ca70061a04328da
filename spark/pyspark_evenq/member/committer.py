"""Copies the query's progress to the brokers, for lag and retention.

Runs in the runner (the process on the driver that serves one query). Spark's checkpoint is the truth; offered offsets
are already in its commit log. One thread sends the newest offset per queue, at most once per interval. A failure is
logged, counted and retried. It never reaches Spark, where an exception from `commit` would end the query. The main
thread calls `offer`, also inside a signal handler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from evenq.errors import Error
from evenq.model.queue import MessageQueue
from pyspark_evenq.plan.offsets import Positions

log = logging.getLogger(__name__)


class Committer:
    """Background sender of offsets. `send` stores them at the brokers or raises an error of `evenq.errors`."""

    def __init__(self, send: Callable[[Positions], None], *, interval_ms: int) -> None:
        self._send = send
        self._interval = interval_ms / 1000
        # Reentrant: a signal handler may run while the main thread holds it.
        self._changed = threading.Condition(threading.RLock())
        self._pending: dict[MessageQueue, int] = {}
        self._sent: dict[MessageQueue, int] = {}
        self._forgotten: set[MessageQueue] = set()
        """Queues forgotten since the last attempt began."""
        self._urgent = False
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self.failures = 0

    def offer(self, positions: Positions) -> None:
        """Queues progress and returns immediately. Offsets that were sent before are not sent again."""
        with self._changed:
            for queue, offset in positions.items():
                if offset > max(self._sent.get(queue, -1), self._pending.get(queue, -1)):
                    self._pending[queue] = offset
            if not self._pending or self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="evenq-committer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Drops earlier offers for queues whose reading position was moved."""
        with self._changed:
            for queue in queues:
                self._sent.pop(queue, None)
                self._pending.pop(queue, None)
                self._forgotten.add(queue)

    def flush(self, *, timeout_ms: int) -> bool:
        give_up = time.monotonic() + timeout_ms / 1000
        with self._changed:
            if self._thread is None:
                return not self._pending
            self._urgent = True
            self._changed.notify_all()
            while self._pending or self._busy:
                left = give_up - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._urgent = False
            return not (self._pending or self._busy)

    def close(self, *, timeout_ms: int) -> bool:
        done = self.flush(timeout_ms=timeout_ms)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        last = time.monotonic() - self._interval
        failed = False
        while True:
            with self._changed:
                while not self._closed and (not self._pending or self._early(last, failed=failed)):
                    self._changed.wait(self._pause(last, failed=failed) if self._pending else None)
                if self._closed:
                    return
                positions, self._pending, self._busy = self._pending, {}, True
                self._forgotten.clear()
            failed = not self._try(positions)
            last = time.monotonic()
            with self._changed:
                self._busy = False
                if failed:
                    again = {queue: at for queue, at in positions.items() if queue not in self._forgotten}
                    self._pending = again | self._pending  # newer offers win
                else:
                    self._sent.update((queue, at) for queue, at in positions.items() if queue not in self._forgotten)
                self._changed.notify_all()

    def _early(self, last: float, *, failed: bool) -> bool:
        return self._pause(last, failed=failed) > 0

    def _pause(self, last: float, *, failed: bool) -> float:
        interval = self._interval
        if self._urgent:
            interval = 0.1 if failed else 0.0
        return last + interval - time.monotonic()

    def _try(self, positions: Positions) -> bool:
        try:
            self._send(positions)
        except Error as failure:
            self.failures += 1
            log.warning("progress of %d queues not stored at the broker, trying again: %s", len(positions), failure)
            return False
        except Exception:
            self.failures += 1
            log.exception("progress of %d queues not stored at the broker, trying again", len(positions))
            return False
        return True
