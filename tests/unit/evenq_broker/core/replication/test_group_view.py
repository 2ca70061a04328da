"""What an operator sees: by a leader, by a follower, and of a group that no copy leads."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from evenq_broker.core.replication.actions import CompareAndSet
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.group_view import (
    CopyState,
    PeersSeen,
    ReplicaGroupView,
    combined,
    confirmed_end,
    group_view,
    one_copy,
)
from evenq_broker.core.replication.record import NO_LEADER, Seen
from evenq_broker.core.replication.replica import Replica
from group import PAIRS, STORES, confirm, fetching, only, ready, replica, starting

ADDRESSES = {0: "a:1", 1: "b:1", 2: "c:1"}
ALL = PeersSeen(connected={1, 2})


def view_of(one: Replica, peers: PeersSeen = ALL, *, serves: bool = True, now_ms: int = 0) -> ReplicaGroupView:
    return group_view(one, peers, broker_name="g", addresses=ADDRESSES, serves=serves, now_ms=now_ms)


def states(view: ReplicaGroupView) -> list[CopyState]:
    return [one.state for one in view.copies]


LEADER, STARTING, IN_SYNC, CATCHING_UP, AWAY = CopyState


def test_a_leader_tells_of_all_copies() -> None:
    view = view_of(ready())
    assert (view.leader, view.epoch, view.mode, view.in_sync_min, view.told_by) == (0, 1, "sync", 2, 0)
    assert states(view) == [LEADER, IN_SYNC, IN_SYNC]
    assert [(one.copy, one.address, one.lag_bytes, one.lag_ms) for one in view.copies] == [
        (0, "a:1", 0, 0),
        (1, "b:1", 0, 0),
        (2, "c:1", 0, 0),
    ]
    assert view.in_sync == 3
    assert view_of(ready(mode=Mode.REPL_MEMORY)).mode == "memory"


def test_a_lag_is_told_in_bytes_and_in_the_time_since_a_copy_had_everything() -> None:
    one = ready()
    one.appended(1, 40)
    one.synced(40)
    confirm(one, 1, 40, now_ms=1_100)
    confirm(one, 2, 30, now_ms=1_100)
    view = view_of(one, replace(ALL, complete_ms={1: 900, 2: 1_000}), now_ms=1_250)
    assert [(copy.lag_bytes, copy.log_end) for copy in view.copies] == [(0, 40), (0, 40), (10, 30)]
    assert [copy.lag_ms for copy in view.copies] == [0, 0, 250], (
        "who has everything is not late, whenever it was looked at"
    )
    assert view_of(one).copies[2].lag_ms == -1, "it was not looked at yet"


def test_what_a_copy_confirmed_is_known_to_its_leader_alone() -> None:
    one = ready()
    assert confirmed_end(one, 2, {}) == 10
    assert confirmed_end(one, 2, {2: "d" * 32}) is None, "its new disk reported nothing yet"
    assert confirmed_end(fetching(1), 2, {}) is None


def test_a_copy_that_does_not_answer_is_away_and_it_says_since_when() -> None:
    one = ready()
    (call,) = only(one.lost(2, 100), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "3"), 100)
    one.appended(1, 25)
    view = view_of(one, PeersSeen(connected={1}, away_since_ms={2: 77}), now_ms=200)
    gone = view.copies[2]
    assert (gone.state, gone.away_since_ms, gone.may_lead, gone.lag_bytes) == (AWAY, 77, False, 15)
    assert view.in_sync == 2


def test_at_the_minimum_a_dead_copy_is_not_in_sync_although_the_record_names_it() -> None:
    one = ready()
    (call,) = only(one.lost(2, 100), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "3"), 100)
    one.lost(1, 200)
    view = view_of(one, PeersSeen(connected=set(), away_since_ms={1: 6, 2: 5}), now_ms=300)
    assert states(view) == [LEADER, AWAY, AWAY]
    assert [copy.may_lead for copy in view.copies] == [True, True, False], "copy 1 has all that was committed"
    assert view.in_sync == 1


def test_a_silent_copy_that_answers_is_catching_up() -> None:
    one = ready()
    one.appended(1, 40)
    one.synced(40)
    for now_ms in range(100, 4_000, 300):
        confirm(one, 1, 40, now_ms=now_ms)
        confirm(one, 2, 30, now_ms=now_ms)
        for call in only(one.tick(now_ms), CompareAndSet):
            if call.proposed.isr == PAIRS:  # a sign of life; that copy 2 is out is still on its way
                one.cas_done(call.number, Seen(call.proposed, str(now_ms)), now_ms)
    assert states(view_of(one, now_ms=4_000)) == [LEADER, IN_SYNC, CATCHING_UP]


def test_a_replaced_disk_is_told_by_what_the_copy_named_last() -> None:
    one = ready()
    new = "d" * 32
    confirm(one, 2, 4, store_id=new)
    view = view_of(one, replace(ALL, stores={1: STORES[1], 2: new}))
    copy = view.copies[2]
    assert (copy.state, copy.may_lead, copy.lag_bytes) == (CATCHING_UP, False, 6)


def test_a_new_leader_does_not_know_yet_how_far_the_others_are() -> None:
    view = view_of(starting(), serves=False)
    assert states(view) == [STARTING, IN_SYNC, IN_SYNC]
    assert [copy.lag_bytes for copy in view.copies] == [0, -1, -1]


def test_a_leader_that_reads_its_log_does_not_serve_yet() -> None:
    assert states(view_of(ready(), serves=False))[0] is STARTING


def test_a_follower_tells_of_itself_and_who_answers() -> None:
    one = fetching(1)
    view = view_of(one, PeersSeen(connected={0}, away_since_ms={2: 9}))
    assert (view.leader, states(view)) == (0, [LEADER, IN_SYNC, AWAY])
    assert (view.copies[1].log_end, view.copies[1].lag_bytes) == (10, -1)
    view = view_of(one, PeersSeen(connected={2}, away_since_ms={0: 8}))
    assert (view.leader, states(view)) == (NO_LEADER, [AWAY, IN_SYNC, IN_SYNC])
    assert view.copies[0].away_since_ms == 8


def test_a_copy_that_saw_no_record_yet_names_the_members() -> None:
    one = replica(0)
    one.recovered(EpochTable(), 0, 0)
    view = view_of(one, PeersSeen(connected=set()))
    assert (view.leader, len(view.copies), view.in_sync, view.copies[0].may_lead) == (NO_LEADER, 3, 0, False)


def test_of_several_views_the_newest_leader_counts() -> None:
    leader, follower = view_of(ready()), view_of(fetching(1), PeersSeen(connected={0, 2}))
    assert combined([follower, leader]) is leader
    old = replace(leader, epoch=0)
    assert combined([old, follower]).told_by == 1


def test_without_a_leader_each_copy_tells_of_itself_and_the_longest_log_is_the_measure() -> None:
    gone = PeersSeen(connected={2}, away_since_ms={0: 8})
    one = view_of(fetching(1), gone)
    two = view_of(fetching(2), PeersSeen(connected={1}, away_since_ms={0: 5}))
    behind = replace(two, copies=(*two.copies[:2], replace(two.copies[2], log_end=4)))
    view = combined([one, behind])
    assert view.leader == NO_LEADER
    assert states(view) == [AWAY, IN_SYNC, IN_SYNC]
    assert [copy.lag_bytes for copy in view.copies] == [-1, 0, 6]
    assert [copy.may_lead for copy in view.copies] == [True, True, True]
    assert view.copies[0].copy == PAIRS[0].broker_id


def test_without_a_leader_and_any_copy_that_may_lead_nobody_knows_what_is_missing() -> None:
    two = view_of(fetching(2), PeersSeen(connected=set(), away_since_ms={0: 5, 1: 5}))
    out = replace(two, copies=(*two.copies[:2], replace(two.copies[2], may_lead=False, state=CATCHING_UP)))
    assert [copy.lag_bytes for copy in combined([out]).copies] == [-1, -1, -1]


def test_one_copy_is_a_group_of_one() -> None:
    view = one_copy("g", broker_id=0, epoch=1, address="h:1")
    assert (view.mode, view.leader, view.in_sync, view.in_sync_min) == ("", 0, 1, 1)
    assert view.copy(0) is view.copies[0]
    assert view.copy(3) is None
