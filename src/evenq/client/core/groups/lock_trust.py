"""Whether a member's locks at one broker still hold: what may be read, and acknowledged, after a silence or a break.

A broker drops a member that it did not hear for its lease, and gives the member's queues to others; a member that slept
learns of it late. So locks are `HELD` only if they were asked for since the last event that may have cost them; every
such event has a number, and an answer counts only for the number that it was asked under. The states are drawn in
docs/internals/consumers.md. Times are milliseconds of one monotonic clock.
Always true: after a silence of a lease, or a session that begins, nothing is sure until `confirm`.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["LockState", "LockTrust"]

NEVER_MS = -(1 << 60)


class LockState(Enum):
    """What a member knows of its locks at one broker."""

    AWAY = "no session; the locks of the last one hold for a while"
    AWAY_SUSPECT = "no session; the locks may belong to others"
    SUSPECT = "a session; the locks must be asked for again"
    HELD = "a session; the locks were confirmed"

    @property
    def joined(self) -> bool:
        """True: there is a session."""
        return self in {LockState.SUSPECT, LockState.HELD}

    @property
    def suspect(self) -> bool:
        """True: the locks may belong to others."""
        return self in {LockState.SUSPECT, LockState.AWAY_SUSPECT}


class LockTrust:
    """The state of one member's locks at one broker."""

    def __init__(self) -> None:
        self.state = LockState.AWAY
        self.suspicions = 0
        """How often the locks became suspect so far: what an answer is compared with (`confirm`)."""
        self._spoke_ms = NEVER_MS
        self._ended_ms = NEVER_MS
        """When the last session ended that did not end in a silence."""
        self._lease_ms = 0

    # ------------------------------------------------------------------------------------------------------- events

    def welcome(self, now_ms: int, *, lease_ms: int) -> None:
        """The broker took us in. It drops us after a silence of `lease_ms`; 0: never. Older locks must be asked for."""
        self._spoke_ms, self._lease_ms = now_ms, lease_ms
        self._suspect(LockState.SUSPECT)

    def speak(self, now_ms: int) -> bool:
        """We say something. True: we were silent for a lease, so that our locks are suspect from now on."""
        silent = self._silent(now_ms)
        if silent:
            self._suspect(LockState.SUSPECT)
        self._spoke_ms = now_ms
        return silent

    def end(self, now_ms: int) -> None:
        """The session is over, if there was one."""
        if not self.state.joined:
            return
        if self._silent(now_ms):
            self._suspect(LockState.AWAY_SUSPECT)
        elif self.state is LockState.SUSPECT:
            self.state = LockState.AWAY_SUSPECT
        else:
            self.state, self._ended_ms = LockState.AWAY, now_ms

    def confirm(self, now_ms: int, *, suspicions: int) -> bool:
        """The locks were asked for, and what was lost was let go; `suspicions` as it was when they were asked for.

        False: they have become suspect again meanwhile, ask once more.
        """
        if not self.state.joined or suspicions != self.suspicions or self._silent(now_ms):
            return False
        self.state = LockState.HELD
        return True

    # ---------------------------------------------------------------------------------------------------- questions

    def sure(self, now_ms: int) -> bool:
        """False: our locks may have gone to others, and they have not been requested since."""
        return not (self.state.suspect or self._silent(now_ms))

    def trusted(self, now_ms: int, *, trust_ms: int) -> bool:
        """True: sure, and the session stands or ended at most `trust_ms` ago."""
        return self.sure(now_ms) and (self.state.joined or now_ms - self._ended_ms <= trust_ms)

    # -------------------------------------------------------------------------------------------------------- inside

    def _silent(self, now_ms: int) -> bool:
        return self.state.joined and 0 < self._lease_ms <= now_ms - self._spoke_ms

    def _suspect(self, state: LockState) -> None:
        self.state = state
        self.suspicions += 1
