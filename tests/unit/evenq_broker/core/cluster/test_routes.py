"""Merging what several nameservers tell."""

from dataclasses import replace

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker, RouteTable

from evenq.model import BrokerAddress, Listener, MessageQueue, MessageType, Permission, QueueCounts

DEFAULT = BrokerAddress("default", "10.0.0.1", 8081)
OUTSIDE = BrokerAddress("external", "localhost", 30081)


def counts(broker: str, read: int = 2, permission: Permission = Permission.READ_WRITE) -> QueueCounts:
    return QueueCounts(
        broker_name=broker, read_queues=read, write_queues=read, permission=permission, message_type=MessageType.NORMAL
    )


def view(name: str, *, topics: tuple[str, ...] = ("t",), **rest: object) -> RegisteredBroker:
    reported = {topic: counts(name) for topic in topics}
    return RegisteredBroker(name=name, addresses=(DEFAULT,), topics=reported, **rest)  # type: ignore[arg-type]  # test shorthand


def names(table: RouteTable) -> list[str]:
    return [broker.name for broker in table.brokers()]


def test_without_any_nameserver_the_broker_knows_itself() -> None:
    table = RouteTable()
    table.set_own(view("a"), 0)
    assert table.readable("t") == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)]


def test_two_nameservers_are_merged_and_the_highest_epoch_wins() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a", epoch=1, start_ms=9), view("b")], 0)
    table.snapshot("n2", "y", [view("a", epoch=2, start_ms=1, topics=("u",)), view("c")], 0)
    assert names(table) == ["a", "b", "c"]
    assert [at.broker.name for at in table.route("u")] == ["a"]


def test_of_one_epoch_the_newest_incarnation_wins() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a", start_ms=2, incarnation="new", topics=("u",))], 0)
    table.snapshot("n2", "y", [view("a", start_ms=1, incarnation="old")], 0)
    assert table.topics() == ["u"]


def test_a_nameserver_that_is_away_removes_nobody() -> None:
    table = RouteTable(stale_ms=100)
    table.snapshot("n1", "x", [view("a")], 0)
    version = table.version
    table.away("n1", 5)
    table.tick(1_000_000)
    assert names(table) == ["a"]
    assert table.version == version


def test_what_an_absent_nameserver_told_fades_while_another_answers() -> None:
    table = RouteTable(stale_ms=100)
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n2", "y", [view("b")], 0)
    table.away("n1", 5)
    table.tick(104)
    assert names(table) == ["a", "b"]
    table.tick(105)
    assert names(table) == ["b"]


def test_a_removal_told_by_one_counts_against_an_absent_one() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n2", "y", [view("a"), view("b")], 0)
    table.away("n1", 1)
    table.changed("n2", [], ["a"], 2)
    assert names(table) == ["b"]


def test_a_removal_told_by_one_does_not_outvote_a_connected_one() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a")], 0)
    table.snapshot("n2", "y", [view("a")], 0)
    table.changed("n2", [], ["a"], 2)
    assert names(table) == ["a"]


def test_a_restarted_nameserver_with_an_empty_table_removes_nobody_at_once() -> None:
    table = RouteTable(stale_ms=100)
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.away("n1", 5)
    table.snapshot("n1", "after restart", [], 10)
    assert names(table) == ["a", "b"]
    table.changed("n1", [view("a")], [], 20)
    table.tick(111)
    assert names(table) == ["a"]


def test_a_nameserver_that_restarts_twice_removes_nobody_either() -> None:
    table = RouteTable(stale_ms=100)
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n1", "second", [], 10, settling=True)
    table.changed("n1", [view("a")], [], 20)
    table.snapshot("n1", "third", [], 30, settling=True)
    assert names(table) == ["a", "b"]


def test_a_watch_that_breaks_while_its_nameserver_settles_removes_nobody() -> None:
    table = RouteTable(stale_ms=1_000)
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n1", "y", [], 10, settling=True)
    table.away("n1", 15)
    table.snapshot("n1", "y", [view("b")], 20, settling=True)
    assert names(table) == ["a", "b"]


def test_what_a_nameserver_tells_once_it_has_settled_is_the_whole_truth() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n1", "y", [], 10, settling=True)
    table.changed("n1", [view("b")], [], 20)
    assert names(table) == ["a", "b"]
    table.snapshot("n1", "y", [view("b")], 30)
    assert names(table) == ["b"]


def test_routes_are_sure_once_a_nameserver_that_settled_tells_them() -> None:
    table = RouteTable()
    assert not table.sure
    table.snapshot("n1", "y", [], 10, settling=True)
    assert not table.sure
    table.snapshot("n2", "z", [view("b")], 20)
    assert table.sure
    table.away("n2", 30)
    assert not table.sure


def test_a_goodbye_told_by_a_settling_nameserver_counts_at_once() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n1", "y", [], 10, settling=True)
    table.changed("n1", [], ["a"], 20)
    assert names(table) == ["b"]


def test_a_new_snapshot_of_the_same_nameserver_is_the_whole_truth() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.snapshot("n1", "x", [view("b")], 1)
    assert names(table) == ["b"]


def test_the_version_grows_only_when_the_answer_changes() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a")], 0)
    version = table.version
    table.snapshot("n2", "y", [view("a")], 0)
    table.snapshot("n1", "x", [view("a")], 1)
    table.set_own(view("a"), 2)
    assert table.version == version


def test_own_state_wins_over_what_others_tell_of_it() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a", start_ms=99)], 0)
    table.set_own(view("a", topics=("fresh",)), 0)
    assert table.topics() == ["fresh"]


def test_queues_without_read_permission_are_not_readable() -> None:
    table = RouteTable()
    closed = RegisteredBroker(name="a", addresses=(DEFAULT,), topics={"t": counts("a", permission=Permission.WRITE)})
    table.snapshot("n1", "x", [closed], 0)
    assert table.readable("t") == []


def test_replicas_are_left_out_of_routes() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a", broker_id=1)], 0)
    assert table.route("t") == []


SECURE = BrokerAddress("tls", "localhost", 8443, tls=True)
INSIDE = BrokerAddress("internal", "10.0.0.1", 8443, tls=True)


@pytest.mark.parametrize(
    ("listener", "address"),
    [
        (Listener("default"), DEFAULT),
        (Listener("external"), OUTSIDE),
        (Listener("tls", tls=True), SECURE),
        (Listener("never heard of"), DEFAULT),
        (Listener("never heard of", tls=True), SECURE),
        (Listener("external", tls=True), SECURE),  # of this broker it is plain: no use to a client that speaks TLS
        (Listener("internal", tls=True), INSIDE),
    ],
)
def test_a_client_is_told_the_address_of_a_door_like_the_one_it_came_through(
    listener: Listener, address: BrokerAddress
) -> None:
    own = RegisteredBroker(name="a", addresses=(DEFAULT, INSIDE, SECURE, OUTSIDE))
    assert own.address(listener) is address


def test_the_address_of_any_copy_is_for_those_who_would_be_told_the_default_and_ask_for_it() -> None:
    group, other = BrokerAddress("any-copy", "group", 8081), BrokerAddress("internal", "pod", 8081)
    copies = RegisteredBroker(name="a", addresses=(DEFAULT, OUTSIDE, group, other), topics={})
    plain, outside, tls = Listener("default"), Listener("external"), Listener("tls", tls=True)
    assert copies.address(plain, any_copy=True) is group
    assert copies.address(plain) is DEFAULT
    assert copies.address(outside, any_copy=True) is OUTSIDE
    assert copies.is_replaced, "sends wait for the next process at that address"
    assert replace(copies, addresses=(DEFAULT,), copies=3).is_replaced
    assert not replace(copies, addresses=(DEFAULT, OUTSIDE, other)).is_replaced
    assert copies.address(tls, any_copy=True) is DEFAULT, "it speaks no TLS"
    assert copies.address(Listener("far"), any_copy=True) is group, "the default would be told"
    assert copies.peer_address(tls=False) is other
    assert RegisteredBroker(name="a", addresses=(DEFAULT,), topics={}).address(plain, any_copy=True) is DEFAULT


def test_a_broker_without_a_door_that_fits_is_told_by_its_default_so_that_it_is_not_missed() -> None:
    assert RegisteredBroker(name="a", addresses=(DEFAULT, OUTSIDE)).address(Listener("tls", tls=True)) is DEFAULT


def test_servers_call_the_internal_address_or_the_one_with_tls_if_they_are_to() -> None:
    plain_inside = BrokerAddress("internal", "10.0.0.1", 8081)
    assert RegisteredBroker(name="a", addresses=(DEFAULT, SECURE)).peer_address(tls=False) is DEFAULT
    assert RegisteredBroker(name="a", addresses=(DEFAULT, SECURE)).peer_address(tls=True) is SECURE
    assert RegisteredBroker(name="a", addresses=(DEFAULT, SECURE, INSIDE)).peer_address(tls=False) is INSIDE
    assert RegisteredBroker(name="a", addresses=(DEFAULT, SECURE, plain_inside)).peer_address(tls=True) is SECURE
    assert RegisteredBroker(name="a", addresses=(DEFAULT,)).peer_address(tls=True) is DEFAULT
    assert RegisteredBroker(name="a", addresses=(SECURE,)).peer_address(tls=False) is SECURE


def test_a_broker_that_left_is_reachable_for_a_minute_and_until_it_is_back() -> None:
    table = RouteTable()
    table.snapshot("n1", "x", [view("a"), view("b")], 0)
    table.changed("n1", [], ["b"], 1_000)
    assert table.broker("b") is None
    assert table.reachable("b", 1_000) == view("b")
    assert table.reachable("b", 61_000) is None
    assert table.reachable("never", 1_000) is None
    table.changed("n1", [view("b", epoch=2)], [], 2_000)
    assert table.reachable("b", 1_000_000) == view("b", epoch=2)


def test_a_broker_that_left_before_this_one_joined_is_known_from_the_nameserver() -> None:
    table = RouteTable()
    table.set_own(view("a"), 100_000)
    left = [(view("b"), 5_000), (view("c", topics=("u",)), 0), (view("d"), 600_000), (view("a"), 0)]
    table.snapshot("n1", "x", [], 100_000, left=left)
    assert [one.name for one in table.brokers()] == ["a"]
    assert [one.name for one in table.left("t", 100_000)] == ["b"]
    assert table.reachable("b", 154_999) == view("b")
    assert table.reachable("b", 155_000) is None, "a minute after it left, not after it was reported"
    assert table.left("t", 694_999) == [view("b")]
    assert table.left("t", 695_000) == []
    table.changed("n1", [view("b", epoch=2)], [], 200_000)
    assert table.left("t", 200_000) == []
    table.changed("n1", [], ["b"], 300_000)
    table.snapshot("n1", "x", [], 310_000, left=[(view("b"), 300_000)])
    assert table.left("t", 899_999) == [view("b", epoch=2)], "as this broker saw it itself"


def test_an_address_that_two_brokers_tell_is_shared_for_those_who_come_through_its_door() -> None:
    def at(name: str, host: str) -> RegisteredBroker:
        return RegisteredBroker(name=name, addresses=(BrokerAddress("default", host, 8081), OUTSIDE))

    table = RouteTable()
    table.snapshot("n1", "x", [at("a", "10.0.0.1")], 0)
    assert not table.shared(Listener("external"))
    table.snapshot("n1", "x", [at("a", "10.0.0.1"), at("b", "10.0.0.2")], 0)
    assert table.shared(Listener("external"))
    assert not table.shared(Listener("default"))
