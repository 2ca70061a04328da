"""Windows: how far ahead of a follower's reports its leader sends, one `Window` for each follower.

A follower reports how much it takes ahead of what it has written (`FollowerProgress.ahead`). The leader keeps where the
next records for it begin. It sends them without a request while no more than that, in at most `MESSAGES_AHEAD`
messages, is on its way. So the next records travel while the last ones are written and synced. A window is a guess of
what has arrived and decides nothing else: what a follower confirms counts (R5), and lost records are requested with
`again`. Immutable. Belongs to `Leader`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq_broker.core.replication.messages import FollowerProgress

MESSAGES_AHEAD = 3
"""Messages with records that a follower has not written yet: one that it writes, one behind it, one on its way. With
more, small groups would be sent one by one instead of together.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """Records that one follower was sent. Offsets are ends, exclusive."""

    written: int  # end of its log in its last report
    sent: tuple[int, ...]  # ends of the messages that it has not written, as far as is known; ascending
    ahead: int  # how much it takes behind `written`; 0: one message for each request
    committed: int = 0  # committed end that it was last sent
    quiet: bool = False  # no records were sent since the last tick

    @property
    def start(self) -> int:
        """Start of the next records for it."""
        return self.sent[-1] if self.sent else self.written

    @property
    def is_open(self) -> bool:
        """True if records may be sent now: one message, of any size, always if it has written all that was sent."""
        if not self.sent:
            return True
        return len(self.sent) < MESSAGES_AHEAD and self.start - self.written < self.ahead

    def with_sent(self, end: int, committed: int) -> Window:
        """Returns the window after records up to `end` (none if that is `start`), and what is committed, were sent."""
        if end > self.start:
            return replace(self, sent=(*self.sent, end), committed=committed, quiet=False)
        return replace(self, committed=committed)


def reported(window: Window | None, progress: FollowerProgress) -> Window | None:
    """Returns the window after a follower's report; None: it takes nothing yet."""
    end, received = progress.end, progress.end + progress.queued
    committed = 0 if window is None else window.committed
    if not progress.ahead:
        return Window(end, (), 0, committed) if progress.wants else window
    if window is None or progress.again or received > window.start:
        # The follower's report wins over what was sent: all that is on its way to it may be lost.
        return Window(end, (received,) if received > end else (), progress.ahead, committed)
    written = max(end, window.written)  # a late report is lower
    sent = tuple(sent for sent in window.sent if sent > written)
    return replace(window, written=written, sent=sent, ahead=progress.ahead)
