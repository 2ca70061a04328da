"""The table of changes that brokers have not confirmed."""

from __future__ import annotations

import pytest
from evenq_broker.core.cluster import unconfirmed_changes
from evenq_broker.core.cluster.unconfirmed_changes import ChangeId, UnconfirmedChanges
from evenq_broker.core.state.records import ChangeKind, ChangePut, decode, encode

GONE, MADE, GROUP = ChangeKind.TOPIC_DELETED, ChangeKind.TOPIC_MADE, ChangeKind.GROUP_DELETED


def put(kind: ChangeKind, name: str, *waiting: str, uid: str = "", at_ms: int = 1) -> ChangePut:
    return ChangePut(kind, name, uid, at_ms, waiting)


def replayed(ops: list[ChangePut]) -> UnconfirmedChanges:
    """As after a start: what the journal's bytes say."""
    table = UnconfirmedChanges()
    for op in decode(encode(ops)):
        assert isinstance(op, ChangePut)
        table.apply(op)
    return table


def test_a_change_stays_until_all_have_confirmed_it() -> None:
    table = UnconfirmedChanges()
    gone = put(GONE, "t", "b", "c", uid="1")
    journal = table.add(gone)
    assert table.waiting() == {"b": 1, "c": 1}
    assert "1" in table
    journal += table.confirmed([ChangeId.of(gone)], "b")
    assert table.confirmed([ChangeId.of(gone)], "b") == []
    assert (
        table.all() == replayed(journal).all() == replayed(list(table.dump())).all() == [put(GONE, "t", "c", uid="1")]
    )
    journal += table.confirmed([ChangeId.of(gone)], "c")
    assert table.all() == replayed(journal).all() == []
    assert "1" not in table
    assert "1" not in replayed(journal)


def test_a_change_that_no_broker_waits_for_is_not_kept() -> None:
    table = UnconfirmedChanges()
    assert table.add(put(GROUP, "g")) == []
    assert len(table) == 0


def test_a_topic_is_deleted_once_and_one_made_again_is_another() -> None:
    table = UnconfirmedChanges()
    table.add(put(GONE, "t", "c", uid="1"))
    assert table.add(put(GONE, "t", "d", uid="1", at_ms=9)) == [], "each broker waits for those that it missed itself"
    table.add(put(MADE, "t", "c", uid="2", at_ms=2))
    assert [one.uid for one in table.all()] == ["1", "2"]
    journal = [*table.dump(), *table.add(put(GONE, "t", "c", uid="2", at_ms=3))]
    assert [one.kind for one in table.all()] == [GONE, GONE]
    assert replayed(journal).all() == table.all()


def test_what_is_asked_for_again_is_later_whatever_the_clocks_say_and_waits_for_all() -> None:
    table = UnconfirmedChanges()
    first = put(GROUP, "g", "c", at_ms=100)
    journal = [*table.add(first), *table.add(put(MADE, "t", "c", uid="1"))]
    journal += table.asked(put(GROUP, "g", "b", at_ms=50))
    again = put(GROUP, "g", "b", "c", at_ms=101)
    assert table.all() == [put(MADE, "t", "c", uid="1"), again]
    assert replayed(journal).all() == table.all()
    assert table.confirmed([ChangeId.of(first)], "c") == [], "it confirmed the one before"
    assert table.add(put(GROUP, "g", "d", at_ms=100)) == []


def test_a_forgotten_broker_is_not_waited_for() -> None:
    table = UnconfirmedChanges()
    journal = [*table.add(put(GROUP, "g", "b")), *table.add(put(GROUP, "h", "b", "c"))]
    journal += table.broker_forgotten("b")
    assert table.all() == replayed(journal).all() == [put(GROUP, "h", "c")]


def test_number_and_age_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed_changes, "CHANGES_MAX", 2)
    table = UnconfirmedChanges()
    for at_ms, name in enumerate("xyz"):
        table.add(put(GROUP, name, "b", at_ms=at_ms))
    assert [one.name for one in table.overflow()] == ["x"]
    journal = [*table.dump(), *table.end(table.overflow())]
    assert [one.name for one in table.all()] == ["y", "z"]
    assert replayed(journal).all() == table.all()
    assert table.overflow() == []
    assert table.expired(1 + unconfirmed_changes.KEPT_MS) == []
    assert [one.name for one in table.expired(2 + unconfirmed_changes.KEPT_MS)] == ["y"]
