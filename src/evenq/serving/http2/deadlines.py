"""Calls by the time at which their callers stop waiting, in steps of 64 ms: adding and early removal are cheap.

The server takes the due ones at each tick. Only waiting calls are here: a handler that answers immediately never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

STEP_BITS = 6


class Timed(Protocol):
    """A call that can be ended when its caller stops waiting."""

    deadline_ms: int | None
    """Monotonic ms of the server's clock; None: the caller waits without a limit."""

    def end(self, code: int, message: str = "") -> None:
        """Answers with a status, if no answer was sent."""

    def abandon(self) -> None:
        """Stops the handler of a caller that does not wait."""


class Deadlines:
    """Table of the server's loop."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[Timed, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def add(self, call: Timed) -> None:
        assert call.deadline_ms is not None
        step = call.deadline_ms >> STEP_BITS
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = {}
        calls[call] = None

    def discard(self, call: Timed) -> None:
        """Removes a call. Idempotent."""
        assert call.deadline_ms is not None
        step = call.deadline_ms >> STEP_BITS
        calls = self._steps.get(step)
        if calls is not None and calls.pop(call, self) is None and not calls:
            del self._steps[step]

    def due(self, now_ms: int) -> Iterator[Timed]:
        """Removes and returns the calls whose time has passed, up to one step late."""
        last = (now_ms >> STEP_BITS) - 1
        for step in sorted(step for step in self._steps if step <= last):
            yield from self._steps.pop(step)
