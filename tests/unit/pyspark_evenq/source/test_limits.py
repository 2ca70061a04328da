"""How much one micro-batch takes."""

from pyspark_evenq.options.source import Limits
from pyspark_evenq.source.stream import Limiter

from evenq.model.queue import MessageQueue

A, B = (MessageQueue("flights", "broker-a", number) for number in (0, 1))


def test_a_batch_waits_for_its_minimum_but_not_longer_than_the_delay_and_never_the_first() -> None:
    now = [100.0]
    limiter = Limiter(Limits(offsets_min=10, delay_ms=2_000), now=lambda: now[0])
    assert limiter.is_due(1, first=False), "after a start nothing waits"
    limiter.triggered()
    assert not limiter.is_due(9, first=False)
    assert limiter.is_due(9, first=True)
    assert limiter.is_due(10, first=False)
    now[0] += 2.0
    assert limiter.is_due(9, first=False)


def test_bytes_become_messages_by_the_size_of_the_next_ones() -> None:
    sizes = {A: 100.0, B: 300.0}
    limiter = Limiter(Limits(bytes_max=2_000))
    assert limiter.rows(1 << 62, {A: 50, B: 50}, sizes.get) == 10
    assert limiter.rows(7, {A: 50, B: 50}, sizes.get) == 7
    assert limiter.rows(1 << 62, {A: 50, B: 0}, sizes.get) == 20
    assert limiter.rows(5, {A: 50}, lambda _: None) == 5
    assert Limiter(Limits(bytes_max=1)).rows(5, {A: 50}, sizes.get) == 1, "a large message goes alone"
