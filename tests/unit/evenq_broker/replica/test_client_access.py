"""Clients at one copy: when it is ready for them, where it forwards them, and for how long after it was stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.replication.record import NO_LEADER
from evenq_broker.replica.client_access import LEADERLESS_MS, LEAVE_MS, LOOK_MS, ClientForwarding, Readiness
from evenq_broker.settings import BrokerSettings, ReplicationSettings, StoreSettings

from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn
from evenq.serving.front.connection_forwarder import HERE

ADDRESSES = {0: "db0:8083", 1: "[::1]:8083", 2: "db2:8083"}


class Copy:
    """Copy 1 of three, in sync, with a leader that it reaches."""

    def __init__(self, *, grows: bool = False, forwards: bool = True) -> None:
        self.clock, self.term = FakeClock(), SimpleNamespace(app=None, opened=None)
        self.record = SimpleNamespace(leader=0, min_isr=1)
        self.peers = SimpleNamespace(connected={0, 2})
        self.driver = SimpleNamespace(
            awaits_leader=False, leads=False, is_member=True, in_sync=True, peers=self.peers,
            replica=SimpleNamespace(group=SimpleNamespace(leader_id=lambda: self.record.leader, followed=self.record)),
        )  # fmt: skip
        self.disk = SimpleNamespace(problem="")
        settings = BrokerSettings(
            store=StoreSettings(path=Path("/d")),
            replication=ReplicationSettings(
                members=",".join(f"{number}={address}" for number, address in ADDRESSES.items()), broker_id=1,
                record="file:/r", from_one_copy=grows, forward_clients=forwards,
            ),
        )  # fmt: skip
        runtime: Any = SimpleNamespace(settings=settings, clock=self.clock)
        self.forwarding = ClientForwarding(
            runtime, self.any.driver, self.any.identity, ADDRESSES, lambda: self.term.opened is not None
        )
        self.readiness = Readiness(self.any.driver, self.any.term, self.forwarding, self.any.disk)

    identity = SimpleNamespace(epoch=3)

    @property
    def any(self) -> Any:
        """Itself, with stand-ins for parts."""
        return self

    @property
    def target(self) -> str:
        """The host to which connections of clients are forwarded."""
        self.forwarding.look()
        forwarder = self.forwarding._forwarder
        assert forwarder is not None
        return forwarder.host

    def open_term(self) -> None:
        """It leads, and its broker serves."""
        self.record.leader = 1
        self.term.app = self.term.opened = SimpleNamespace(why_not_ready=lambda: "")


def test_a_copy_says_why_it_is_not_ready() -> None:
    copy = Copy()
    assert copy.readiness.why_not() == ""
    copy.driver.in_sync = False
    assert copy.readiness.why_not() == "it is not in sync with its group"
    copy.disk.problem = "its disk is full"
    assert copy.readiness.why_not() == "it copies nothing from its leader: its disk is full"
    copy.driver.is_member = False
    assert copy.readiness.why_not() == "it is not a copy of its group: it was removed, or not added yet"
    copy.driver.leads = True
    assert copy.readiness.why_not() == "it begins to lead"
    copy.term.app = SimpleNamespace(why_not_ready=lambda: "it starts or stops")
    assert copy.readiness.why_not() == "it starts or stops"
    copy.readiness.stopping = True
    assert copy.readiness.why_not() == "it stops"


@pytest.mark.parametrize("forwards", [True, False])
def test_a_copy_that_holds_clients_is_ready_while_no_leader_is_reached(forwards: bool) -> None:
    copy = Copy(forwards=forwards)
    copy.driver.in_sync, copy.driver.awaits_leader = False, True
    assert (copy.readiness.why_not() == "") is forwards
    copy.open_term()
    copy.term.app.why_not_ready = lambda: "it refuses messages"
    assert copy.readiness.why_not() == "it refuses messages", "its own broker counts, once it is open"


def test_clients_are_forwarded_to_the_leader_or_held_while_none_is_known() -> None:
    copy = Copy()
    assert copy.target == "db0"
    copy.record.leader = NO_LEADER
    assert copy.target == ""
    copy.record.leader = 1
    assert copy.target == "", "its broker is not open yet"
    copy.open_term()
    assert copy.target == HERE


def test_a_copy_of_a_group_that_grows_forwards_clients_to_the_founder_before_a_leader_is_known() -> None:
    copy = Copy(grows=True)
    copy.record.leader, copy.driver.in_sync = NO_LEADER, False
    assert (copy.target, copy.readiness.why_not()) == ("db0", "")
    copy.record.min_isr = 2  # it is whole
    assert (copy.target, copy.readiness.why_not()) == ("", "it is not in sync with its group")


@pytest.mark.parametrize(
    ("leads_elsewhere", "connected", "takes_ms"),
    [(True, {0}, LEAVE_MS), (True, {2}, LEADERLESS_MS), (False, {0}, 0)],
)
async def test_a_copy_that_stops_forwards_clients_for_a_while_if_it_reaches_a_leader(
    leads_elsewhere: bool, connected: set[int], takes_ms: int
) -> None:
    copy = Copy()
    copy.peers.connected = connected
    draining = spawn(copy.forwarding.drain(leads_elsewhere=leads_elsewhere), name="drain")
    await asyncio.sleep(0)
    for _ in range(takes_ms // LOOK_MS):
        assert not draining.done()
        await copy.clock.advance(LOOK_MS)
    await asyncio.sleep(0)
    assert draining.done()
    await copy.forwarding.open()
    assert copy.forwarding._forwarder is not None
    assert not copy.forwarding._forwarder._listening, "it ends, and its ports are for others"
