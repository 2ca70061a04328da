"""Who lives, and who was silent for too long."""

import pytest
from evenq_broker.core.clients.client_table import PRODUCER, ClientTable

from evenq.errors import TooManyRequests

PUSH = 2


def test_a_sign_of_life_keeps_what_was_told_before() -> None:
    table = ClientTable()
    table.seen("a", 1, client_type=PUSH, group="g")
    client = table.seen("a", 5)
    assert (client.last_ms, client.client_type, client.group) == (5, PUSH, "g")


def test_only_who_was_silent_for_the_whole_time_is_forgotten() -> None:
    table = ClientTable()
    table.seen("early", 0)
    table.seen("late", 50)
    table.seen("again", 10)
    table.seen("again", 60)
    assert table.expire(100, 101) == []
    assert table.expire(100, 100) == ["early"]
    assert table.expire(160, 100) == ["late", "again"]
    assert len(table) == 0


def test_a_full_table_refuses_strangers_and_knows_its_own() -> None:
    table = ClientTable(clients_max=1)
    table.seen("a", 1)
    with pytest.raises(TooManyRequests, match="1 clients, the limit is clients_max"):
        table.seen("b", 2)
    assert table.seen("a", 3).last_ms == 3
    assert table.forget("a") is not None
    assert table.forget("a") is None
    table.seen("b", 4)


def test_clients_are_counted_by_what_they_are() -> None:
    table = ClientTable()
    table.seen("producer", 1, client_type=PRODUCER)
    table.seen("push", 1, client_type=PUSH)
    table.seen("unknown", 1)
    assert table.counts() == (1, 1)


def test_the_lost_are_given_up_sooner_than_the_silent_unless_they_are_seen_again() -> None:
    table = ClientTable()
    for client_id in ("lost", "back", "silent"):
        table.seen(client_id, 0)
    for client_id in ("lost", "back", "stranger"):
        table.lose(client_id)
    table.seen("back", 5)
    assert table.give_up(9, 10) == []
    assert table.give_up(10, 10) == ["lost"]
    assert table.give_up(1_000, 10) == []
    assert [client_id for client_id, _ in table.all()] == ["silent", "back"]
    table.lose("back")
    assert table.expire(1_000, 10) == ["silent", "back"]
    assert table.give_up(1_000, 10) == []
