"""Parked polls of a whole cluster: whose turn it is, and who is notified."""

from evenq_broker.core.polls.interest import PeerNotices, Waiters, Want

ORDERS = Want("g", "orders")


def test_peers_take_turns_and_each_notice_uses_one_poll_up() -> None:
    waiters = Waiters()
    assert not waiters
    waiters.tell("a", ORDERS, 2)
    waiters.tell("b", ORDERS, 1)
    assert [waiters.take(ORDERS) for _ in range(4)] == ["a", "b", "a", None]
    assert not waiters


def test_a_peer_that_has_none_any_more_or_is_gone_is_not_notified() -> None:
    waiters = Waiters()
    other = Want("g", "jobs", push=True)
    for peer in ("a", "b"):
        waiters.tell(peer, ORDERS, 5)
        waiters.tell(peer, other, 5)
    waiters.tell("a", ORDERS, 0)
    assert [waiters.take(ORDERS) for _ in range(2)] == ["b", "b"]
    waiters.drop("b")
    assert waiters.take(ORDERS) is None
    assert waiters.waits(other)
    assert list(waiters.wants("jobs")) == [other]
    waiters.drop("a")
    assert not waiters
    assert len(waiters) == 0


def test_a_peer_cannot_tell_without_bound() -> None:
    waiters = Waiters(wants_max=2)
    assert [waiters.tell("a", Want("g", str(number)), 1) for number in range(3)] == [True, True, False]
    assert waiters.tell("a", Want("g", "0"), 7)
    assert len(waiters) == 2


def test_only_news_is_told() -> None:
    result = PeerNotices()
    assert list(result.changes([ORDERS], {ORDERS: 3}, {}, 0)) == [(ORDERS, 3, 0)]
    assert list(result.changes([ORDERS], {ORDERS: 9}, {}, 0)) == []
    result.used(ORDERS)
    assert list(result.changes([ORDERS], {ORDERS: 2}, {}, 0)) == [], "the peer believes in two still"
    result.used(ORDERS)
    result.used(ORDERS)
    assert list(result.changes([ORDERS], {ORDERS: 1}, {}, 0)) == [(ORDERS, 1, 0)]


def test_a_want_that_ends_fades_so_that_a_consumer_between_two_polls_costs_nothing() -> None:
    result = PeerNotices(fade_ms=250)
    list(result.changes([ORDERS], {ORDERS: 1}, {}, 0))
    assert list(result.changes([ORDERS], {}, {ORDERS: 1_000}, 1_010)) == [(ORDERS, -1, 1_250)]
    assert list(result.changes([ORDERS], {ORDERS: 1}, {}, 1_020)) == []
    assert list(result.changes([ORDERS], {}, {ORDERS: 1_030}, 1_280)) == [(ORDERS, 0, 0)]
    assert not result.known(ORDERS)


def test_empty_fetches_one_after_another_pause_the_telling() -> None:
    result = PeerNotices()
    pauses = []
    now_ms = 0
    for _ in range(9):
        list(result.changes([ORDERS], {ORDERS: 1}, {}, now_ms))
        result.used(ORDERS)
        result.fetched(ORDERS, now_ms, found=False)
        [(_, count, look_ms)] = list(result.changes([ORDERS], {ORDERS: 1}, {}, now_ms))
        pauses.append(look_ms - now_ms if count < 0 else 0)
        now_ms = max(now_ms, look_ms)
    assert pauses == [0, 20, 40, 80, 160, 320, 640, 1_000, 1_000]
    result.fetched(ORDERS, now_ms, found=True)
    result.decline(ORDERS)
    assert list(result.changes([ORDERS], {ORDERS: 1}, {}, now_ms)) == [(ORDERS, 1, 0)]
