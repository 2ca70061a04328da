"""The lifetime of a consumer: it is started once and closed once. A closed consumer never runs again.

Both faces check it before each call, so that a call to a consumer that does not run fails immediately.
"""

from __future__ import annotations

from evenq.errors import Unsupported


class Lifetime:
    """The lifetime of one consumer of a group."""

    __slots__ = ("_closed", "_group", "started")

    def __init__(self, group: str) -> None:
        self._group = group
        self._closed = False
        self.started = False
        """True also after the consumer was closed."""

    @property
    def running(self) -> bool:
        """True if it was started and is not closed."""
        return self.started and not self._closed

    def check_new(self) -> None:
        """Raises Unsupported if it was started or closed before."""
        if self.started or self._closed:
            raise Unsupported(f"this consumer of {self._group} was started before; make a new one")

    def check_running(self) -> None:
        """Raises Unsupported if it is not running."""
        if not self.running:
            raise Unsupported(f"this consumer of {self._group} is not running; call start()")

    def check_open(self) -> None:
        """Raises Unsupported if it is closed; for a consumer that is usable without a start."""
        if self._closed:
            raise Unsupported(f"this consumer of {self._group} is closed; make a new one")

    def end(self) -> bool:
        """Marks it as closed. True if it was running, and so must be stopped."""
        running = self.running
        self._closed = True
        return running
