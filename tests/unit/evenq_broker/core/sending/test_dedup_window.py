"""Message ids seen lately: who stores, who gets the answer again, and what is forgotten."""

from collections import OrderedDict

from evenq_broker.core.sending.dedup_window import Key, RecentMessages, key_of, pack_place, topic_of, unpack_place
from hypothesis import given
from hypothesis import strategies as st


def key(number: int) -> Key:
    return key_of(b"id%d" % number, b"01234567", 1)


def test_a_key_tells_messages_bodies_and_topics_apart() -> None:
    keys = [key_of(name, digest, topic) for name in (b"a", b"b") for digest in (b"0" * 8, b"1" * 8) for topic in (1, 2)]
    assert len(set(keys)) == 8
    assert topic_of(key_of(b"a", b"0" * 8, 70_000)) == 70_000


def test_the_first_stores_the_next_waits_and_the_later_ones_get_its_answer() -> None:
    recent = RecentMessages(window_ms=1_000, count_max=10)
    first, second = object(), object()
    assert recent.claim(key(1), first) is first
    assert recent.claim(key(1), second) is first
    recent.kept(key(1), pack_place(3, 70))
    assert recent.claim(key(1), second) == pack_place(3, 70)
    assert unpack_place(pack_place(3, 70)) == (3, 70)


def test_a_message_whose_first_try_failed_is_the_next_ones_to_store() -> None:
    recent = RecentMessages(window_ms=1_000, count_max=10)
    first, second = object(), object()
    recent.claim(key(1), first)
    recent.failed(key(1))
    assert recent.claim(key(1), second) is second


def test_ids_leave_after_the_window_and_not_before() -> None:
    recent = RecentMessages(window_ms=1_000, count_max=10)
    recent.tick(0)
    recent.claim(key(1), object())
    recent.tick(100)
    recent.claim(key(2), object())
    recent.tick(1_050)
    assert list(recent.entries) == [key(1), key(2)]
    recent.tick(1_100)
    assert list(recent.entries) == [key(2)]
    recent.tick(2_050)
    assert not len(recent)


def test_too_many_ids_push_out_the_oldest() -> None:
    recent = RecentMessages(window_ms=1_000, count_max=3)
    for number in range(10):
        recent.claim(key(number), object())
    assert list(recent.entries) == [key(7), key(8), key(9)]


def test_the_window_slides_on_when_too_many_came_in_it() -> None:
    recent = RecentMessages(window_ms=100, count_max=4)
    recent.tick(0)
    for number in range(10):
        recent.claim(key(number), object())
    recent.tick(50)
    recent.claim(key(10), object())
    recent.tick(140)
    recent.tick(150)
    assert list(recent.entries) == [key(10)]


@given(st.lists(st.tuples(st.sampled_from(["claim", "kept", "failed", "tick"]), st.integers(0, 12)), max_size=200))
def test_it_does_what_a_slow_and_simple_window_does(steps: list[tuple[str, int]]) -> None:
    recent = RecentMessages(window_ms=3, count_max=6)
    model: OrderedDict[Key, tuple[object, int]] = OrderedDict()
    now_ms = 0
    recent.tick(now_ms)
    for what, number in steps:
        if what == "tick":
            now_ms += 1
            recent.tick(now_ms)
            for old in [k for k, (_, came) in model.items() if came <= now_ms - 3]:
                del model[old]
        elif what == "claim":
            mine = object()
            if len(model) >= 6:
                model.popitem(last=False)
            known = model.get(key(number))
            result = recent.claim(key(number), mine)
            assert result is (mine if known is None or known[0] is None else known[0])
            if known is None or known[0] is None:
                model[key(number)] = (mine, known[1] if known else now_ms + 1)
        elif key(number) in model:
            answer = pack_place(number, 5) if what == "kept" else None
            recent.entries[key(number)] = answer
            model[key(number)] = (answer, model[key(number)][1])
        assert list(recent.entries.items()) == [(k, value) for k, (value, _) in model.items()]
