"""The books of `evenq verify`: each kind of mistake is planted and found, and nothing else is."""

from __future__ import annotations

from evenq.verify.outages import Outages
from evenq.verify.plan import Kind
from evenq.verify.tally import Arrival, Repeat, Tally


def made(kind: Kind = Kind.NORMAL) -> tuple[Tally, Outages]:
    outages = Outages()
    return Tally(kind, outages=outages, tolerance_ms=1_000), outages


def sent(tally: Tally, count: int = 1, **fields: object) -> list[int]:
    numbers = [tally.begin(**fields) for _ in range(count)]  # type: ignore[arg-type]  # passed on as they are
    for number in numbers:
        tally.tried(number)
        tally.stored(number)
    return numbers


def came(number: int, *, at: str = "a/0:0", now_ms: int = 0) -> Arrival:
    return Arrival(number=number, place=at, now_ms=now_ms, until_ms=now_ms + 10_000)


def test_all_that_was_sent_and_came_once_is_well():
    tally, _ = made()
    for number in sent(tally, 3):
        assert tally.pending
        arrival = came(number, at=f"a/0:{number}")
        tally.arrived(arrival)
        tally.acked(arrival)
    result = tally.result()
    assert (result.sent, result.expected, result.received, result.lost, result.repeated) == (3, 3, 3, 0, 0)
    assert (tally.pending, result.broken, result.problems) == (0, False, [])


def test_what_never_came_is_lost_but_not_what_nobody_confirmed():
    tally, _ = made()
    (number,) = sent(tally)
    tally.unsure(tally.begin())
    result = tally.result()
    assert (result.lost, result.unsure, result.broken) == (1, 1, True)
    assert result.problems == [f"{number} was sent and never came"]


def test_nothing_sent_proves_nothing():
    assert made()[0].result().broken


def test_a_message_may_come_before_its_send_is_answered():
    tally, _ = made()
    number = tally.begin()
    tally.arrived(came(number))
    tally.stored(number)
    assert tally.pending == 0
    assert not tally.result().broken


def test_each_repeat_has_its_reason():
    def repeat(
        *, ack: bool = False, away: bool = False, tries: int = 1, at: str = "a/0:0", after_ms: int = 100
    ) -> Tally:
        tally, outages = made()
        (number,) = sent(tally)
        for _ in range(tries - 1):
            tally.tried(number)
        first = came(number)
        tally.arrived(first)
        if ack:
            tally.acked(first)
        if away:
            outages.away("a", since_ms=50)
            outages.back("a", 60)
        tally.arrived(came(number, at=at, now_ms=after_ms))
        return tally

    def reasons(tally: Tally) -> tuple[dict[Repeat, int], bool]:
        return tally.result().repeats, tally.result().broken

    assert reasons(repeat(tries=2, at="b/0:7")) == ({Repeat.RESENT: 1}, False)
    assert reasons(repeat(away=True)) == ({Repeat.OUTAGE: 1}, False)
    assert reasons(repeat(after_ms=10_000)) == ({Repeat.TIMEOUT: 1}, False)
    assert reasons(repeat(ack=True, away=True, after_ms=10_000)) == ({Repeat.AFTER_ACK: 1}, True)
    assert reasons(repeat()) == ({Repeat.UNEXPLAINED: 1}, True)
    assert reasons(repeat(at="b/0:7")) == ({Repeat.UNEXPLAINED: 1}, True)


def test_of_two_stored_copies_neither_may_come_after_its_ack():
    tally, _ = made()
    (number,) = sent(tally)
    tally.tried(number)
    for place in ("a/0:0", "b/0:0"):
        tally.arrived(came(number, at=place))
        tally.acked(came(number, at=place))
    for place in ("a/0:0", "b/0:0"):
        tally.arrived(came(number, at=place, now_ms=20_000))
    assert tally.result().repeats == {Repeat.RESENT: 1, Repeat.AFTER_ACK: 2}
    assert tally.result().problems[0] == f"{number} was redelivered at a/0:0 (after_ack)"


def test_an_older_message_of_a_stream_after_a_younger_one_is_out_of_order_and_a_repeat_is_not():
    tally, outages = made(Kind.FIFO)
    a = sent(tally, 3, stream="a")
    b = sent(tally, 1, stream="b")
    for number in (a[0], a[2], b[0], a[1]):
        tally.arrived(came(number, at=f"a/0:{number}"))
    outages.away("a", since_ms=0)
    tally.arrived(came(a[0], at=f"a/0:{a[0]}", now_ms=9))
    result = tally.result()
    assert (result.reordered, result.repeats, result.broken) == (1, {Repeat.OUTAGE: 1}, True)
    assert result.problems == [f"{a[1]} of a came after {a[2]}"]


def test_a_delayed_message_is_early_in_time_late_or_excused():
    tally, outages = made(Kind.DELAY)
    numbers = sent(tally, 4, due_ms=100_000)
    outages.away("a", since_ms=300_000)
    outages.back("a", 301_000)
    for number, now_ms in zip(numbers, (99_000, 100_007, 102_000, 302_000), strict=True):
        tally.arrived(came(number, at=f"a/0:{number}", now_ms=now_ms))
    result = tally.result()
    assert (result.early, result.late, result.excused, result.late_p50_ms) == (1, 1, 1, 2_000)
    assert result.broken


def test_a_transaction_that_came_before_its_commit_or_after_its_rollback_is_wrong():
    tally, _ = made(Kind.TRANSACTION)
    early, back, good = sent(tally, 3, expected=None)
    tally.arrived(came(early, at="a/0:0"))
    for number, expected in ((early, True), (back, False), (good, True)):
        tally.decided(number, expected=expected)
    assert tally.pending == 1
    tally.arrived(came(back, at="a/0:1"))
    tally.arrived(came(good, at="a/0:2"))
    result = tally.result()
    assert (result.sent, result.expected, result.lost, result.leaked) == (3, 2, 0, 2)
    assert [tally.decision(number) for number in (early, back, 99)] == [True, False, None]


def test_a_message_that_nobody_sent_is_told():
    tally, _ = made()
    sent(tally)
    tally.arrived(came(-1))
    assert tally.result().problems[0] == "-1 at a/0:0 was never sent"
    assert tally.result().leaked == 1


def test_absences_cover_their_time_and_a_shadow_behind():
    outages = Outages()
    outages.away("a", since_ms=1_000)
    outages.away("a", since_ms=1_200)
    assert outages.touched(0, 1_000)
    assert not outages.touched(0, 999)
    assert outages.touched(900_000, 900_001), "it is still away"
    outages.back("a", 2_000)
    outages.back("b", 2_500)
    assert outages.touched(11_999, 12_500)
    assert not outages.touched(12_001, 12_500)
    assert (outages.count, outages.longest_ms(9_000), outages.any) == (1, 1_000, True)


def test_a_lite_topic_out_of_order_is_wrong_unless_a_broker_was_away_between_sending_and_coming():
    """While its broker is away it is elsewhere, and what was stored is delivered later (contract 5.6)."""
    tally, outages = made(Kind.LITE)
    first, second = (tally.begin(stream="s", begun_ms=at_ms) for at_ms in (1_000, 2_000))
    outages.away("b", since_ms=100_000)
    outages.back("b", 101_000)
    late, last = (tally.begin(stream="s", begun_ms=at_ms) for at_ms in (100_500, 100_600))
    for number in (first, second, late, last):
        tally.tried(number)
        tally.stored(number)
    for number, now_ms in ((second, 2_100), (first, 2_200), (last, 101_500), (late, 102_000)):
        tally.arrived(came(number, at=f"s/{number}", now_ms=now_ms))
    result = tally.result()
    assert (result.reordered, result.excused, result.broken) == (1, 1, True)
    assert result.problems == [f"{first} of s came after {second}"]
