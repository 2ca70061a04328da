"""Since when a head is the same, and which groups went back by themselves."""

from __future__ import annotations

from evenq_broker.core.diagnosis.stuck_queues import BACK_KEPT_MS, StuckQueues

HERE = (1, 2, 0)


def seen(heads: StuckQueues, committed: int, now_ms: int, *, waits: bool = True) -> None:
    heads.look(HERE, committed, waits=waits, now_ms=now_ms)
    heads.end_of_round()


def test_a_head_that_waits_at_one_offset_grows_old_until_it_moves() -> None:
    heads = StuckQueues()
    seen(heads, 5, 1_000)
    seen(heads, 5, 61_000)
    assert heads.unmoved_ms(HERE, 5, now_ms=62_000) == 61_000
    assert heads.unmoved_ms(HERE, 6, now_ms=62_000) == 0, "it moved since the last look"
    assert heads.stuck(60_000, now_ms=62_000) == [(HERE, 5)]
    seen(heads, 6, 66_000)
    assert heads.unmoved_ms(HERE, 6, now_ms=67_000) == 1_000
    assert heads.stuck(60_000, now_ms=67_000) == []


def test_a_queue_without_messages_does_not_grow_old() -> None:
    heads = StuckQueues()
    seen(heads, 5, 0, waits=False)
    seen(heads, 5, 100_000, waits=False)
    assert heads.unmoved_ms(HERE, 5, now_ms=100_000) == 0


def test_a_group_that_goes_back_is_remembered_for_an_hour() -> None:
    heads = StuckQueues()
    seen(heads, 9, 0)
    seen(heads, 2, 5_000)
    seen(heads, 4, 10_000)
    back = heads.back(HERE, now_ms=10_000)
    assert back is not None
    assert (back.from_offset, back.to_offset, back.at_ms) == (9, 2, 5_000)
    assert heads.back(HERE, now_ms=5_001 + BACK_KEPT_MS) is None


def test_a_reset_by_an_operator_is_no_going_back() -> None:
    heads = StuckQueues()
    seen(heads, 9, 0)
    heads.meant(HERE, 2, now_ms=1_000)
    seen(heads, 2, 5_000)
    assert heads.back(HERE, now_ms=5_000) is None
    assert heads.unmoved_ms(HERE, 2, now_ms=5_000) == 4_000


def test_what_is_gone_is_forgotten_and_memory_is_bounded() -> None:
    heads = StuckQueues(back_max=2)
    places = [(1, 1, queue_id) for queue_id in range(3)]
    for committed in (9, 2):
        for place in places:
            heads.look(place, committed, waits=True, now_ms=0)
        heads.end_of_round()
    assert [heads.back(place, now_ms=0) is not None for place in places] == [False, True, True]
    heads.end_of_round()
    assert len(heads) == 0
