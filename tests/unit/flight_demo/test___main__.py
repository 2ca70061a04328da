"""`publish --rate`: a stream for tests that want one to last."""

from flight_demo.__main__ import steady

from evenq.runtime.clock import SystemClock


def took_ms(rate: int, sends: int) -> int:
    clock = SystemClock()
    begin_ms = clock.monotonic_ms()
    wait = steady(rate)
    for number in range(sends):
        wait(number)
    return clock.monotonic_ms() - begin_ms


def test_a_rate_spreads_the_sends_evenly_and_without_one_nothing_waits() -> None:
    assert 150 <= took_ms(rate=10, sends=3) < 60_000  # the last of 3 is due at 200 ms
    assert took_ms(rate=0, sends=100_000) < 60_000
