"""One log, one state: the part that refuses messages or stops the store says it there, and all who work on the log see it."""

from __future__ import annotations

import inspect

import pytest

from evenq.errors import Error, HaNotAvailable, PersistenceTimeout, StoreFull, StorePoisoned
from evenq.store.index.index_follower import IndexFollower
from evenq.store.log.appender import Appender
from evenq.store.log.log_state import LogState
from evenq.store.opening.cleaner import Cleaner
from evenq.store.opening.flusher import Flusher
from evenq.store.opening.snapshotter import Snapshotter


def state() -> LogState:
    return LogState(log_end=100, last_store_ms=7)


def test_it_begins_where_recovery_ended_and_takes_messages() -> None:
    one = state()
    one.check()
    assert (one.stats.log_end, one.stats.log_synced, one.synced_end, one.last_store_ms) == (100, 100, 100, 7)
    assert not one.blocked


def test_a_full_disk_refuses_messages_until_there_is_space_and_its_owner_hears_each_change_once() -> None:
    one, heard = state(), []
    one.on_full = lambda: heard.append(one.full)
    first, second = StoreFull("no space"), StoreFull("still none")
    for reason in (first, second, None, None):
        one.set_full(reason)
        one.check()
        assert one.blocked == (reason is not None)
    assert heard == [first, None]


def test_a_closed_store_stays_blocked_when_the_disk_has_space_again() -> None:
    one = state()
    one.close()
    one.set_full(StoreFull("no space"))
    one.set_full(None)
    one.check()
    assert one.blocked


def test_a_poisoned_store_fails_what_waits_before_its_owner_hears_and_only_once() -> None:
    one = state()
    heard: list[tuple[str, Error]] = []
    one.on_poison = lambda failure: heard.append(("waiting", failure))
    one.on_failure = lambda failure: heard.append(("owner", failure))
    one.poison("the disk is broken")
    one.poison("again")
    one.check()
    assert [who for who, _ in heard] == ["waiting", "owner"]
    assert isinstance(one.failure, StorePoisoned)
    assert str(one.failure).startswith("the disk is broken; the store stopped")
    assert one.blocked


def test_a_refusal_stops_state_too_and_ends_as_it_began() -> None:
    one = state()
    assert not one.stopped
    one.refuse(HaNotAvailable("one copy is in sync, two are needed"))
    one.check()
    assert (one.stopped, one.blocked) == (True, True)
    one.set_full(StoreFull("no space"))
    one.refuse(None)
    one.check()
    assert (one.stopped, one.blocked) == (False, True)


def test_an_abandoned_store_fails_what_waits_and_its_owner_hears_of_no_failure() -> None:
    one = state()
    heard: list[tuple[str, Error]] = []
    one.on_poison = lambda failure: heard.append(("waiting", failure))
    one.on_failure = lambda failure: heard.append(("owner", failure))
    deposed = PersistenceTimeout("another broker leads")
    one.abandon(deposed)
    one.abandon(PersistenceTimeout("again"))
    one.poison("the folder is gone")
    one.check()
    assert heard == [("waiting", deposed)]
    assert one.failure is deposed
    assert one.stopped


def test_the_owner_hears_what_the_disk_confirmed_once_for_each_step() -> None:
    one, heard = state(), []
    one.stats.log_end = one.stats.written_end = 300
    one.on_synced = heard.append
    for offset in (100, 200, 150, 200, 300):
        one.synced(offset)
    assert heard == [200, 300]


def test_a_log_with_copies_may_be_on_disk_beyond_what_is_committed_and_no_other_may() -> None:
    one = LogState(log_end=100, last_store_ms=7, replicated=True)
    assert not one.certain
    one.stats.written_end = 300
    one.synced(300)
    one.check()
    one.stats.log_end = 400
    with pytest.raises(AssertionError):
        one.check()
    other = state()
    assert other.certain
    other.stats.written_end = 300
    with pytest.raises(AssertionError):
        other.check()


def test_what_the_disk_confirmed_never_goes_back() -> None:
    one = state()
    one.stats.log_end = one.stats.written_end = 300
    for offset, expected in ((200, 200), (150, 200), (300, 300)):
        one.synced(offset)
        one.check()
        assert one.synced_end == one.stats.log_synced == expected


@pytest.mark.parametrize("part", [Flusher, Cleaner, Snapshotter, IndexFollower])
def test_what_works_beside_the_appender_needs_the_state_and_not_the_appender(part: type) -> None:
    annotations = [str(one.annotation) for one in inspect.signature(part.__init__).parameters.values()]
    assert "LogState" in annotations
    assert Appender.__name__ not in annotations


async def test_what_the_appender_and_the_flusher_do_is_seen_in_the_one_state(open_store, message) -> None:
    opened = await open_store(None)
    store, one = opened.store, opened.store._state
    await store.append([message()])
    assert one.unfiled == 1
    assert one.dirty
    one.set_full(StoreFull("the flusher says so"))
    with pytest.raises(StoreFull, match="the flusher says so"):
        store.append([message()])
    one.set_full(None)
    await store.checkpoint()
    assert (one.unfiled, len(one.dirty), one.synced_end) == (0, 0, one.stats.log_end)
    one.check()
    await store.close()
    assert one.blocked
