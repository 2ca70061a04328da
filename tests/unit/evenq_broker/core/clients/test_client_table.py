"""Who lives, and who was silent for too long."""

import pytest
from evenq_broker.core.clients.client_table import (
    GOODBYE_MS,
    GOODBYES_MAX,
    PRODUCER,
    RUST,
    RUST_MS,
    ClientTable,
)

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


def test_the_silent_are_doubtful_and_those_reported_before_unless_they_call() -> None:
    table = ClientTable()
    for client_id in ("silent", "reported", "back"):
        table.seen(client_id, 0)
    for client_id in ("reported", "back", "stranger"):
        table.suspect(client_id, 5)
        table.lose(client_id)
    assert table.doubtful(4, 10) == []
    table.seen("back", 5)
    assert table.doubtful(5, 10) == ["reported"]
    assert table.doubtful(10, 10) == ["reported", "silent"]
    assert [table.is_lost(one) for one in ("reported", "back", "stranger")] == [True, False, False]
    table.forget("reported")
    assert not table.is_suspect("reported")


def test_one_that_another_broker_vouches_for_is_not_silent_but_was_not_heard_here() -> None:
    table = ClientTable()
    table.seen("a", 0)
    table.vouched("a", 8)
    table.vouched("stranger", 8)
    assert table.expire(10, 10) == []
    assert table.doubtful(17, 10) == []
    assert not table.heard("a", 10, 10)
    assert table.heard("a", 9, 10)


def test_one_that_only_called_another_broker_is_doubtful_again_when_that_call_is_old() -> None:
    table = ClientTable()
    table.seen("a", 0)
    table.vouched("a", 10, doubt_ms=13)
    assert [table.doubtful(now_ms, 10) for now_ms in (12, 13)] == [[], ["a"]]
    table.vouched("a", 14)
    assert table.doubtful(20, 10) == []


def test_one_that_held_something_before_a_start_has_to_show_that_it_lives() -> None:
    table = ClientTable(clients_max=1)
    table.expect("a", 0, doubt_ms=3)
    table.expect("too many", 0, doubt_ms=3)
    assert not table.heard("a", 1, 10)
    assert table.doubtful(3, 10) == ["a"]
    table.seen("a", 4)
    assert table.heard("a", 5, 10)
    assert table.doubtful(5, 10) == []


def test_rust_is_doubtful_later_than_others() -> None:
    table = ClientTable()
    table.seen("a", 0, language=RUST)
    assert table.doubtful(RUST_MS + 9, 10) == []
    assert table.heard("a", RUST_MS + 9, 10)
    assert table.doubtful(RUST_MS + 10, 10) == ["a"]
    ids = ("host@12#3", "host@12@3@kx1", "host@12#3_1700000000000")
    for client_id in ids:
        table.expect(client_id, 0, doubt_ms=0)
    languages = [client.language for client_id, client in table.all() if client_id in ids]
    assert languages == [RUST, "", ""], "a client that has not come back is known by its id"


def test_what_is_left_of_a_client_that_said_goodbye_is_known_until_it_calls_again() -> None:
    table = ClientTable()
    table.seen("a", 1, client_type=PUSH, group="g")
    assert not table.after_goodbye("a", 1)
    table.goodbye("a", 2)
    assert table.get("a") is None
    assert [table.after_goodbye(one, 3) for one in ("a", "a", "b")] == [True, True, False]
    assert [table.said_goodbye(one, 3) for one in ("a", "b")] == [True, False]
    assert not table.said_goodbye("a", 4 + GOODBYE_MS)
    table.seen("a", 4)
    assert not table.after_goodbye("a", 5)
    assert not table.said_goodbye("a", 5)


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
