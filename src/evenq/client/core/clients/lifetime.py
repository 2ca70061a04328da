"""Whether a consumer was started and whether it was closed: once each.

Both faces ask it before each call, so that a call to a consumer that does not run is refused where it is made. Always
true: what was closed never runs again.
"""

from __future__ import annotations

from evenq.errors import Unsupported

__all__ = ["Lifetime"]


class Lifetime:
    """Of one consumer of a group."""

    __slots__ = ("_closed", "_group", "started")

    def __init__(self, group: str) -> None:
        self._group = group
        self._closed = False
        self.started = False
        """It was started, and may be closed since."""

    @property
    def running(self) -> bool:
        """It was started and is not closed."""
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
        """The same for a consumer that is usable without a start."""
        if self._closed:
            raise Unsupported(f"this consumer of {self._group} is closed; make a new one")

    def end(self) -> bool:
        """It is closed from now on. True if it was running: then there is something to end."""
        running = self.running
        self._closed = True
        return running
