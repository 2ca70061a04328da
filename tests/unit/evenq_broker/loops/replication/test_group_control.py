"""What operators may do to a group, and every refusal: the driver's part is played."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "core" / "replication"))

import pytest
from evenq_broker.core.replication.actions import CompareAndSet, HandedOver
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_broker.core.replication.record import NO_LEADER, Seen, UncleanElection
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import NEVER
from evenq_broker.core.replication.unclean import UncleanOrder
from evenq_broker.loops.replication.group_control import CHANGE_MS, HAND_OVER_MS, ReplicaControl
from evenq_broker.loops.replication.peer_watch import PeerWatch
from group import PAIRS, confirm, fetching, ready, seen, watch

from evenq.errors import Error, HaNotAvailable, NotFound, PreconditionFailed
from evenq.runtime.clock import FakeClock


class Driver:
    """Hands over to whom it was asked for, or to no member."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.watch = PeerWatch([1, 2])
        self.watch.look({1, 2}, 0)
        self.asked: list[tuple[int, int]] = []
        self.result: HandedOver | None = None
        self.writes = self.reaches_record = True
        self.hold = asyncio.Event()
        self.hold.set()

    async def hand_over(self, to: int, *, within_ms: int) -> HandedOver:
        self.asked.append((to, within_ms))
        await self.hold.wait()
        return self.result or HandedOver(to, 2)

    def stand_unclean(self, *, reason: str) -> None:
        for call in self.replica.stand_unclean(reason=reason, time_ms=5):
            if self.writes and isinstance(call, CompareAndSet):
                self.replica.cas_done(call.number, Seen(call.proposed, str(call.proposed.version)), 0)

    def change_copies(self, change: CopyChange) -> None:
        for call in self.replica.leader.change_copies(change):
            if self.writes and isinstance(call, CompareAndSet):
                self.replica.cas_done(call.number, Seen(call.proposed, str(call.proposed.version)), 0)


def control(driver: Any) -> ReplicaControl:
    return ReplicaControl(
        driver, broker_name="g", addresses={0: "a:1", 1: "b:1", 2: "c:1"}, serves=lambda: True, clock=FakeClock()
    )


def refused(driver: Any, to: int | None, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        asyncio.run(control(driver).hand_over(to))
    return str(caught.value)


def test_the_named_copy_is_asked_within_the_time() -> None:
    driver = Driver(ready())
    assert asyncio.run(control(driver).hand_over(2)) == HandedOver(2, 2)
    assert driver.asked == [(2, HAND_OVER_MS)]


def test_without_a_name_the_best_copy_in_sync_is_asked() -> None:
    one = ready()
    one.appended(1, 40)
    one.synced(40)
    confirm(one, 2, 40)
    driver = Driver(one)
    asyncio.run(control(driver).hand_over(None))
    assert driver.asked[0][0] == 2


def test_a_copy_that_leads_already_is_no_error() -> None:
    driver = Driver(ready())
    assert asyncio.run(control(driver).hand_over(0)) == HandedOver(0, 1)
    assert driver.asked == []


def test_a_copy_that_is_none_of_the_group_is_refused_with_those_that_are() -> None:
    assert "has no copy 7; it has 0, 1, 2" in refused(Driver(ready()), 7, NotFound)


def test_a_copy_that_is_away_is_refused_and_it_says_since_when() -> None:
    driver = Driver(ready())
    driver.watch.look({1}, 86_400_000)
    text = refused(driver, 2, PreconditionFailed)
    assert "copy 2 of broker group g is not in sync: does not answer since 1970-01-02 00:00:00 UTC" in text
    assert "in sync are: 1" in text
    assert driver.asked == []


def test_a_copy_that_is_behind_is_refused_with_what_it_lacks() -> None:
    one = ready()
    confirm(one, 2, 4, store_id="d" * 32)
    driver = Driver(one)
    driver.watch._stores[2] = "d" * 32
    assert "is catching up, 6 bytes behind" in refused(driver, 2, PreconditionFailed)


def test_without_any_other_copy_in_sync_it_is_refused_and_each_is_named() -> None:
    driver = Driver(ready())
    driver.watch.look(set(), 1_000)
    text = refused(driver, None, PreconditionFailed)
    assert "no other copy of broker group g is in sync" in text
    assert text.count("does not answer since") == 2


def test_a_copy_that_does_not_lead_cannot_hand_over() -> None:
    assert "copy 1 of broker group g does not lead" in refused(Driver(fetching(1)), 2, PreconditionFailed)


def test_a_nominee_that_does_not_take_over_is_told_and_the_leader_leads_on() -> None:
    driver = Driver(ready())
    driver.result = HandedOver(NO_LEADER, 1)
    text = refused(driver, 2, PreconditionFailed)
    assert f"copy 2 of broker group g did not take over within {HAND_OVER_MS} ms, so copy 0 continues to lead" in text
    assert "try another copy with --to" in text
    driver.reaches_record = False
    assert "No copy can: the place of the group record does not answer" in refused(driver, 2, PreconditionFailed)


async def test_one_hand_over_at_a_time() -> None:
    driver = Driver(ready())
    one = control(driver)
    driver.hold.clear()
    first = asyncio.ensure_future(one.hand_over(1))
    await asyncio.sleep(0)
    with pytest.raises(PreconditionFailed, match="hands over already"):
        await one.hand_over(2)
    driver.hold.set()
    assert (await first).leader == 1
    assert (await one.hand_over(2)).leader == 2


def changed(driver: Any, change: CopyChange) -> Any:
    async def main() -> Any:
        clock = FakeClock()
        one = ReplicaControl(
            driver, broker_name="g", addresses={0: "a:1", 1: "b:1", 2: "c:1"}, serves=lambda: True, clock=clock
        )
        task = asyncio.ensure_future(one.change(change))
        await clock.until(task.done)
        return await task

    return asyncio.run(main())


def test_a_change_of_the_copies_waits_until_it_stands_in_the_record() -> None:
    driver = Driver(ready())
    assert [one.copy for one in changed(driver, AddCopy(3, "d:1")).copies] == [0, 1, 2, 3]
    assert [one.copy for one in changed(driver, RemoveCopy(3)).copies] == [0, 1, 2]
    assert changed(driver, SetMinimum(3)).in_sync_min == 3
    assert changed(driver, SetMinimum(3)).in_sync_min == 3, "what is so already is no error"


def test_a_copy_that_is_there_is_added_again_at_its_own_address_only() -> None:
    driver = Driver(ready())
    assert len(changed(driver, AddCopy(2, "c:1")).copies) == 3
    with pytest.raises(PreconditionFailed, match="has a copy 2 already, at c:1"):
        changed(driver, AddCopy(2, "d:1"))


@pytest.mark.parametrize(
    ("replica", "change", "kind", "said"),
    [
        (ready(), RemoveCopy(7), NotFound, "has no copy 7; it has 0, 1, 2"),
        (ready(), RemoveCopy(0), PreconditionFailed, "stay as they are: copy 0 leads"),
        (fetching(1), RemoveCopy(2), PreconditionFailed, "copy 1 does not lead"),
        (ready(), AddCopy(3, "d"), PreconditionFailed, "must be host:port"),
    ],
)
def test_a_change_that_may_not_be_says_why(replica: Replica, change: CopyChange, kind: type[Error], said: str) -> None:
    with pytest.raises(kind, match=said):
        changed(Driver(replica), change)


def test_a_record_that_cannot_be_written_ends_the_waiting() -> None:
    driver = Driver(ready())
    driver.writes = False
    with pytest.raises(HaNotAvailable, match=f"not written within {CHANGE_MS} ms, and may be later"):
        changed(driver, RemoveCopy(2))


# Unclean elections.


def left_behind() -> Driver:
    """Copy 1 is not in sync; those that are do not answer."""
    one = fetching(1)
    one.observed(seen(3, epoch=1, leader=0, isr=(PAIRS[0], PAIRS[2])), -10_000)
    watch(one, -10_000, 0, step_ms=500)
    driver = Driver(one)
    driver.watch = PeerWatch([0, 2])
    driver.watch.look(set(), 5)
    return driver


def elected(driver: Driver, order: UncleanOrder) -> UncleanElection:
    async def main() -> UncleanElection:
        clock = FakeClock()
        one = ReplicaControl(driver, broker_name="g", addresses={}, serves=lambda: False, clock=clock)  # type: ignore[arg-type]
        task = asyncio.ensure_future(one.elect_unclean(one.view(), order))
        await clock.until(task.done)
        return await task

    return asyncio.run(main())


def test_a_copy_that_is_not_in_sync_leads_on_request_once_the_record_has_been_quiet() -> None:
    driver = left_behind()
    one = control(driver)
    order = UncleanOrder(copy=1, reason=" its  disks\nburnt ")
    plan = one.unclean_plan(one.view(), order)
    assert (plan.suggested, plan.refusal, [pair.broker_id for pair in plan.lost]) == (1, "", [0, 2])
    done = elected(driver, order)
    assert (done.epoch, done.broker_id, done.log_end, done.reason) == (2, 1, 10, "its disks burnt")
    assert one.view().unclean == (done,)
    assert one._own_election(done.epoch) is None, "an earlier one does not answer the next order"


def test_what_hinders_an_unclean_election_is_said_and_nothing_is_written() -> None:
    driver = left_behind()
    driver.replica.group.again_ms = -1_000  # before that the record was away
    one = control(driver)
    why = r"read the group record for 1\.0 s without a change, so a leader may live.*Nothing was changed"
    with pytest.raises(PreconditionFailed, match=why):
        asyncio.run(one.elect_unclean(one.view(), UncleanOrder(copy=1)))
    driver.replica.group.again_ms, driver.replica.log.durable = NEVER, 5
    with pytest.raises(PreconditionFailed, match="still writes what it copied last"):
        asyncio.run(one.elect_unclean(one.view(), UncleanOrder(copy=1)))
    assert driver.replica.group.cas is None


def test_an_unclean_election_whose_record_cannot_be_written_says_that_it_may_be_later() -> None:
    driver = left_behind()
    driver.writes = False
    with pytest.raises(HaNotAvailable, match="may be later"):
        elected(driver, UncleanOrder(copy=1))
