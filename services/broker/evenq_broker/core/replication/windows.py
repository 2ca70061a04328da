"""How far ahead of a follower's reports its leader sends, one `Window` for each follower.

A follower says how much it takes ahead of what it has written (`FollowerProgress.ahead`); the leader keeps where the
next records for it begin, and sends them before they are asked for while no more than that, and no more than
`MESSAGES_AHEAD` messages, are on their way. So the next records travel while the last ones are written and synced. A
window is a guess of what has arrived and decides nothing else: what counts is what a follower confirms (R5), and
records that were lost are asked for with `again`. Immutable. Belongs to `Leader`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq_broker.core.replication.messages import FollowerProgress

__all__ = ["MESSAGES_AHEAD", "Window"]

MESSAGES_AHEAD = 3
"""Messages with records that a follower has not written yet: one that it writes, one behind it, one on its way. With
more, small groups would leave one by one that leave together while they wait.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What one follower was sent. Offsets are ends, exclusive."""

    written: int
    """Where its log ends, as it said last."""
    sent: tuple[int, ...]
    """Ends of the messages that it has not written, as far as is known; ascending."""
    ahead: int
    """How much it takes behind `written`; 0: one message for each time that it asks."""
    committed: int = 0
    """What it last heard to be committed."""
    quiet: bool = False
    """No records were sent since the last tick."""

    @property
    def start(self) -> int:
        """Where the next records for it begin."""
        return self.sent[-1] if self.sent else self.written

    @property
    def is_open(self) -> bool:
        """Records may be sent now: one message, of any size, in any case to who has written all that was sent."""
        if not self.sent:
            return True
        return len(self.sent) < MESSAGES_AHEAD and self.start - self.written < self.ahead

    def with_sent(self, end: int, committed: int) -> Window:
        """Records up to `end` were sent, or none if that is `start`, and what is committed with them."""
        if end > self.start:
            return replace(self, sent=(*self.sent, end), committed=committed, quiet=False)
        return replace(self, committed=committed)


def reported(window: Window | None, progress: FollowerProgress) -> Window | None:
    """The window of a follower that said how far it is; None: it takes nothing yet."""
    end, received = progress.end, progress.end + progress.queued
    committed = 0 if window is None else window.committed
    if not progress.ahead:
        return Window(end, (), 0, committed) if progress.wants else window
    if window is None or progress.again or received > window.start:
        # What the follower says wins over what was sent: all that is on its way to it may be lost.
        return Window(end, (received,) if received > end else (), progress.ahead, committed)
    written = max(end, window.written)  # a report that comes late says less
    sent = tuple(sent for sent in window.sent if sent > written)
    return replace(window, written=written, sent=sent, ahead=progress.ahead)
