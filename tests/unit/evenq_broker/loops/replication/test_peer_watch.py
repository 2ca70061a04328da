"""Who answers, and since when one does not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "core" / "replication"))

from evenq_broker.core.replication.messages import Envelope, Refusal
from evenq_broker.loops.replication.peer_watch import PeerWatch
from group import confirm, fetching, ready


def test_a_copy_is_away_from_when_it_was_missed_first_until_it_is_back() -> None:
    watch = PeerWatch([1, 2])
    watch.look({1}, 100)
    watch.look({1}, 200)
    seen = watch.seen()
    assert (seen.connected, seen.away_since_ms) == ({1}, {2: 100})
    watch.look({1, 2}, 300)
    assert watch.seen().away_since_ms == {}
    watch.look({2}, 400)
    assert watch.seen().away_since_ms == {1: 400}


def test_the_store_that_a_copy_named_last_counts_and_strangers_do_not() -> None:
    watch = PeerWatch([1, 2])
    for sender, store_id in ((1, "a" * 32), (1, "b" * 32), (7, "c" * 32)):
        watch.heard(Envelope("c", sender, store_id, 1, 1, Refusal()))
    assert watch.seen().stores == {1: "b" * 32}


def test_what_was_seen_does_not_change_behind_the_reader() -> None:
    watch = PeerWatch([1])
    watch.look(set(), 100)
    seen = watch.seen()
    watch.look({1}, 200)
    assert seen.away_since_ms == {1: 100}


def test_a_copy_had_everything_when_it_last_reached_an_end_that_the_log_had() -> None:
    one, watch = ready(), PeerWatch([1, 2])
    watch.measure(one, 100)
    one.appended(1, 40)
    watch.measure(one, 200)
    assert watch.seen().complete_ms == {1: 200, 2: 200}, "both had the 10 from before"
    confirm(one, 1, 40)
    confirm(one, 2, 30)
    for now_ms in (300, 400):
        watch.measure(one, now_ms)
    assert watch.seen().complete_ms == {1: 400, 2: 200}
    confirm(one, 2, 40)
    watch.measure(one, 500)
    assert watch.seen().complete_ms == {1: 500, 2: 500}


def test_a_copy_that_is_a_little_behind_under_load_is_not_late() -> None:
    one, watch = ready(), PeerWatch([1, 2])
    for step in range(1, 20):
        one.appended(1, 10 + step * 10)
        confirm(one, 1, step * 10)
        watch.measure(one, step * 50)
    assert watch.seen().complete_ms[1] >= 19 * 50 - 50


def test_only_a_leader_measures() -> None:
    watch = PeerWatch([0, 2])
    watch.measure(ready(), 100)
    watch.measure(fetching(1), 200)
    assert watch.seen().complete_ms == {}


def test_what_was_known_of_a_copy_that_was_removed_is_forgotten() -> None:
    watch = PeerWatch([1, 2])
    watch.look({1}, 100)
    watch.heard(Envelope("c", 2, "c" * 32, 1, 1, Refusal()))
    watch.set_others([1, 3])
    watch.look({1}, 200)
    seen = watch.seen()
    assert (seen.away_since_ms, seen.stores) == ({3: 200}, {})
