"""Operators' view and control of a broker group: hand-over, changes of copies, and unclean election as a last resort.

The `runtime.GroupControl` of a copy, for the calls of `rpc`. Everything goes through the core. A hand-over is the drain
of R13 with one nominee; if it does not take over, the leader continues. A change of the copies is one write of the
group record (R15 to R18). A copy that may lack committed records leads only by an operator's order, when all that may
lead are gone (R20); the copy that the order names checks it again here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from evenq.errors import HaNotAvailable, NotFound, PreconditionFailed
from evenq.runtime.clock import Clock
from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView, group_view
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, is_done
from evenq_broker.core.replication.record import NO_LEADER, UncleanElection
from evenq_broker.core.replication.rules import Role
from evenq_broker.core.replication.unclean import UncleanOrder, UncleanPlan, cleaned_reason, in_words, unclean_plan
from evenq_broker.loops.replication.replica_driver import ReplicaDriver

log = logging.getLogger(__name__)

HAND_OVER_MS = 2_000
"""Longest time of a nominee. Shorter than the wait of a broker that forwards the call."""

CHANGE_MS, LOOK_MS = 2_500, 20
"""Longest wait of a change of the copies for the group record, and the pause between two checks of it."""


class ReplicaControl:
    """Control of one copy. Belongs to one loop."""

    def __init__(
        self,
        driver: ReplicaDriver,
        *,
        broker_name: str,
        addresses: Mapping[int, str],
        serves: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """`addresses`: of the present copies; `serves`: whether clients are answered here."""
        self._driver, self._clock = driver, clock
        self._name, self._addresses, self._serves = broker_name, addresses, serves
        self._moving = False

    def view(self) -> ReplicaGroupView:
        """Returns the group as this copy knows it."""
        return group_view(
            self._driver.replica,
            self._driver.watch.seen(),
            broker_name=self._name,
            addresses=self._addresses,
            serves=self._serves(),
            now_ms=self._clock.monotonic_ms(),
        )

    async def hand_over(self, to: int | None) -> HandedOver:
        """Hands over to the copy `to`, or with None to the best of those in sync; returns the leader and the epoch. A
        copy that leads already is not an error. Raises NotFound, PreconditionFailed; then this copy continues to lead.
        """
        view, replica = self.view(), self._driver.replica
        own = view.told_by
        if to is not None and view.copy(to) is None:
            raise NotFound(f"broker group {self._name} has no copy {to}; it has {_numbers(view.copies)}")
        if to == own and replica.leads:
            return HandedOver(own, view.epoch)
        if self._moving or replica.role is not Role.READY:
            raise PreconditionFailed(
                f"copy {own} of broker group {self._name} {'hands over already' if self._moving else 'does not lead'}; "
                "check with `evenq cluster show`, then try again"
            )
        target = self._target(view, to)
        self._moving = True
        try:
            log.info(
                "replica %s: copy %d hands over to copy %d",
                self._name,
                own,
                target,
                extra={"broker": self._name, "epoch": view.epoch, "to": target},
            )
            handed = await self._driver.hand_over(target, within_ms=HAND_OVER_MS)
        finally:
            self._moving = False
        if handed.leader in {NO_LEADER, own}:
            why = (
                "Its log says why; try another copy with --to"
                if self._driver.reaches_record
                else "No copy can: the place of the group record does not answer; try again when it does"
            )
            raise PreconditionFailed(
                f"copy {target} of broker group {self._name} did not take over within {HAND_OVER_MS} ms, so copy {own} "
                f"continues to lead; nothing is lost. {why}"
            )
        return handed

    async def change(self, change: CopyChange) -> ReplicaGroupView:
        """Changes the copies of the group; returns the new view. A change that is already in effect is not an error,
        except removing a copy that does not exist. Raises NotFound, PreconditionFailed (nothing was changed),
        HaNotAvailable (the group record was not written in time, and may be later).
        """
        replica, view = self._driver.replica, self.view()
        match change:
            case RemoveCopy(number) if view.copy(number) is None:
                raise NotFound(f"broker group {self._name} has no copy {number}; it has {_numbers(view.copies)}")
            case AddCopy(number, address) if (known := view.copy(number)) is not None and replica.leads:
                if known.address == address:
                    return view
                raise PreconditionFailed(
                    f"broker group {self._name} has a copy {number} already, at "
                    f"{known.address or 'an unknown address'}. Use another number, or remove that one first"
                )
        deadline_ms = self._clock.monotonic_ms() + CHANGE_MS
        while (record := replica.record) is None or not replica.leads or not is_done(record, change):
            reason = replica.copies.why_not_changed(change)
            if reason:
                raise PreconditionFailed(f"the copies of broker group {self._name} stay as they are: {reason}")
            if self._clock.monotonic_ms() >= deadline_ms:
                raise HaNotAvailable(
                    f"the group record of {self._name} was not written within {CHANGE_MS} ms, and may be later; check "
                    "with `evenq cluster show`, then try again"
                )
            # Each time, because nothing is proposed or kept for later while another write of the record runs.
            self._driver.change_copies(change)
            await self._clock.sleep_ms(LOOK_MS)
        log.info(
            "replica %s: on request, %s", self._name, change, extra={"broker": self._name, "epoch": replica.max_epoch}
        )
        return self.view()

    def unclean_plan(self, view: ReplicaGroupView, order: UncleanOrder | None) -> UncleanPlan:
        """Returns the loss if a copy that is not in sync led, or why it may not. `view`: of all that answer."""
        replica = self._driver.replica
        unchanged_ms, quiet_ms = replica.group.unchanged_ms(), replica.config.timing.suspect_ms
        return unclean_plan(view, replica.record, order, unchanged_ms=unchanged_ms, quiet_ms=quiet_ms)

    async def elect_unclean(self, view: ReplicaGroupView, order: UncleanOrder) -> UncleanElection:
        """Makes this copy lead although it may lack committed records; returns its entry in the group record. Raises
        PreconditionFailed (nothing was changed), HaNotAvailable (the record was not written in time, and may be later).
        """
        replica = self._driver.replica
        plan = self.unclean_plan(view, order)
        refusal = plan.refusal or replica.election.why_not_unclean()
        if refusal:
            raise PreconditionFailed(f"no unclean election of copy {order.copy}: {refusal}. Nothing was changed")
        reason, deadline_ms = cleaned_reason(order.reason), self._clock.monotonic_ms() + CHANGE_MS
        log.warning(
            "replica %s: an operator makes copy %d lead, which may lack acknowledged messages",
            self._name,
            order.copy,
            extra={"broker": self._name, "epoch": view.epoch, "end": replica.log.end, "reason": reason},
        )
        while (done := self._own_election(view.epoch)) is None:
            if self._clock.monotonic_ms() >= deadline_ms:
                raise HaNotAvailable(
                    f"the group record of {self._name} was not written within {CHANGE_MS} ms, and may be later; check "
                    "with `evenq cluster show` at the address of this copy, then try again"
                )
            self._driver.stand_unclean(reason=reason)
            await self._clock.sleep_ms(LOOK_MS)
        log.warning("replica %s: %s", self._name, in_words(done), extra={"broker": self._name, "epoch": done.epoch})
        return done

    def _own_election(self, after: int) -> UncleanElection | None:
        record, own = self._driver.replica.record, self._driver.replica.own.pair
        newest = record.unclean[-1] if record is not None and record.unclean else None
        is_own = newest is not None and (newest.broker_id, newest.store_id) == own and newest.epoch > after
        return newest if is_own else None

    def _target(self, view: ReplicaGroupView, to: int | None) -> int:
        """Returns the copy that is to lead. Raises PreconditionFailed."""
        able = [one for one in view.copies if one.state is CopyState.IN_SYNC and one.may_lead]
        good = ", ".join(str(one.copy) for one in able) or "none but the leader"
        if to is not None:
            copy = view.copy(to)
            assert copy is not None
            if copy not in able:
                raise PreconditionFailed(
                    f"copy {to} of broker group {self._name} is not in sync: {_why_not(copy)}. Nothing was changed; in "
                    f"sync are: {good}"
                )
            return to
        if not able:
            raise PreconditionFailed(
                f"no other copy of broker group {self._name} is in sync, so none can take over: "
                + "; ".join(f"copy {one.copy} {_why_not(one)}" for one in view.copies if one.copy != view.told_by)
            )
        return min(able, key=lambda one: (one.lag_bytes, one.copy)).copy


def _numbers(copies: tuple[CopyView, ...]) -> str:
    return ", ".join(str(one.copy) for one in copies)


def _why_not(copy: CopyView) -> str:
    if copy.state is CopyState.AWAY:
        since = datetime.fromtimestamp(copy.away_since_ms / 1000, UTC)
        return f"does not answer since {since:%Y-%m-%d %H:%M:%S} UTC"
    behind = f", {copy.lag_bytes:,} bytes behind" if copy.lag_bytes >= 0 else ""
    return f"is catching up{behind}"
