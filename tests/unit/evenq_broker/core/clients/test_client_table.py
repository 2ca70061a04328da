"""Who lives, and who was silent for too long."""

import pytest
from evenq_broker.core.clients.client_table import GOODBYE_MS, GOODBYES_MAX, PRODUCER, ClientTable

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


def test_what_is_left_of_a_client_that_said_goodbye_is_known_until_it_calls_again() -> None:
    table = ClientTable()
    table.seen("a", 1, client_type=PUSH, group="g")
    assert not table.after_goodbye("a", 1)
    table.goodbye("a", 2)
    assert table.get("a") is None
    assert [table.after_goodbye(one, 3) for one in ("a", "a", "b")] == [True, True, False]
    table.seen("a", 4)
    assert not table.after_goodbye("a", 5)


def test_a_goodbye_is_known_for_a_while_and_anew_after_each_stream_behind_it() -> None:
    table = ClientTable()
    table.goodbye("a", 0)
    assert table.after_goodbye("a", GOODBYE_MS)
    assert table.after_goodbye("a", 2 * GOODBYE_MS)
    assert not table.after_goodbye("a", 3 * GOODBYE_MS + 1)


def test_goodbyes_are_bounded_and_the_newest_are_known() -> None:
    table = ClientTable()
    for number in range(GOODBYES_MAX + 2):
        table.goodbye(f"c{number}", number)
    assert [table.after_goodbye(f"c{number}", GOODBYES_MAX) for number in (1, 2)] == [False, True]
