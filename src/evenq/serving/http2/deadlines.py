"""Calls by the moment at which their callers stop waiting, in steps of 64 ms: cheap to enter, and to leave before.

The server asks once a tick which are due. Only calls that wait are in it: a handler that answers at once never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["Deadlines", "Timed"]

STEP_BITS = 6


class Timed(Protocol):
    """A call that can be ended when its caller stops waiting."""

    deadline_ms: int | None
    """Monotonic ms of the server's clock; None: the caller waits for ever."""

    def end(self, code: int, message: str = "") -> None:
        """Answer with a status, if it is not answered yet."""

    def abandon(self) -> None:
        """Its caller is gone: stop the handler."""


class Deadlines:
    """Belongs to the server's loop."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[Timed, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def add(self, call: Timed) -> None:
        """Remember a call that has a deadline."""
        assert call.deadline_ms is not None
        step = call.deadline_ms >> STEP_BITS
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = {}
        calls[call] = None

    def discard(self, call: Timed) -> None:
        """Forget it. Idempotent."""
        assert call.deadline_ms is not None
        step = call.deadline_ms >> STEP_BITS
        calls = self._steps.get(step)
        if calls is not None and calls.pop(call, self) is None and not calls:
            del self._steps[step]

    def due(self, now_ms: int) -> Iterator[Timed]:
        """Calls whose time is over, up to one step late; they are forgotten."""
        last = (now_ms >> STEP_BITS) - 1
        for step in sorted(step for step in self._steps if step <= last):
            yield from self._steps.pop(step)
