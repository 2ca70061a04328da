"""The state of a member's locks at one broker: whether they still hold after a silence or a broken session.

A broker removes a member that was silent for its lease and gives the member's queues to others; a member that was
suspended learns of it late. So locks are `HELD` only if they were requested again since the last event that may have
cost them. Each such event has a number, and an answer counts only for the number under which it was requested.
docs/internals/consumers.md shows the states. Times are monotonic ms. Invariant: after a silence of a lease, or the
begin of a session, no lock is sure until `confirm`.
"""

from __future__ import annotations

from enum import Enum

NEVER_MS = -(1 << 60)


class LockState(Enum):
    AWAY = "no session; the locks of the last one hold for a while"
    AWAY_SUSPECT = "no session; the locks may belong to others"
    SUSPECT = "a session; the locks must be requested again"
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
    def __init__(self) -> None:
        self.state = LockState.AWAY
        self.suspicions = 0
        """Number of times that the locks became suspect; `confirm` compares it."""
        self._spoke_ms = NEVER_MS
        self._ended_ms = NEVER_MS
        """End of the last session that did not end in a silence or while suspect."""
        self._lease_ms = 0

    # ------------------------------------------------------------------------------------------------------- events

    def welcome(self, now_ms: int, *, lease_ms: int) -> None:
        """Notes a new session; older locks are suspect. The broker ends it after a silence of `lease_ms`; 0: never."""
        self._spoke_ms, self._lease_ms = now_ms, lease_ms
        self._suspect(LockState.SUSPECT)

    def speak(self, now_ms: int) -> bool:
        """Notes a sent message. True: it came after a silence of a lease, and the locks are suspect now."""
        silent = self._silent(now_ms)
        if silent:
            self._suspect(LockState.SUSPECT)
        self._spoke_ms = now_ms
        return silent

    def end(self, now_ms: int) -> None:
        """Notes the end of the session, if there was one."""
        if not self.state.joined:
            return
        if self._silent(now_ms):
            self._suspect(LockState.AWAY_SUSPECT)
        elif self.state is LockState.SUSPECT:
            self.state = LockState.AWAY_SUSPECT
        else:
            self.state, self._ended_ms = LockState.AWAY, now_ms

    def confirm(self, now_ms: int, *, suspicions: int) -> bool:
        """Notes that the locks were requested again and lost queues released. `suspicions`: as it was at the request.

        False: the locks became suspect again meanwhile; they must be requested once more.
        """
        if not self.state.joined or suspicions != self.suspicions or self._silent(now_ms):
            return False
        self.state = LockState.HELD
        return True

    # ------------------------------------------------------------------------------------------------------ queries

    def sure(self, now_ms: int) -> bool:
        """False: other members may have the locks, and they were not requested since."""
        return not (self.state.suspect or self._silent(now_ms))

    def trusted(self, now_ms: int, *, trust_ms: int) -> bool:
        """True: sure, and the session is open or ended at most `trust_ms` ago."""
        return self.sure(now_ms) and (self.state.joined or now_ms - self._ended_ms <= trust_ms)

    # -------------------------------------------------------------------------------------------------------- inside

    def _silent(self, now_ms: int) -> bool:
        return self.state.joined and 0 < self._lease_ms <= now_ms - self._spoke_ms

    def _suspect(self, state: LockState) -> None:
        self.state = state
        self.suspicions += 1
