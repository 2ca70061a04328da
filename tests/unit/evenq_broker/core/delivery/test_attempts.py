"""What was given out is remembered for a few seconds, within bounds."""

from evenq_broker.core.delivery.attempts import Attempt, Attempts


def attempt(since_ms: int, group_id: int = 1, topic_id: int = 1) -> Attempt:
    return Attempt(group_id, topic_id, since_ms, ())


def test_the_same_client_and_attempt_find_their_batch_for_a_while() -> None:
    attempts = Attempts(keep_ms=1_000, attempts_max=10)
    attempts.remember("c", "one", attempt(100))
    assert attempts.recall("c", "one", 1, 1, 1_100) is not None
    assert attempts.recall("c", "one", 1, 1, 1_101) is None
    assert attempts.recall("c", "two", 1, 1, 100) is None
    assert attempts.recall("d", "one", 1, 1, 100) is None
    assert attempts.recall("c", "one", 2, 1, 100) is None
    assert attempts.recall("c", "one", 1, 2, 100) is None


def test_what_is_given_again_keeps_its_first_time() -> None:
    attempts = Attempts(keep_ms=1_000, attempts_max=10)
    attempts.remember("c", "one", attempt(100))
    attempts.remember("c", "one", attempt(900))
    assert attempts.recall("c", "one", 1, 1, 1_101) is None


def test_the_oldest_make_room() -> None:
    attempts = Attempts(keep_ms=1_000, attempts_max=3)
    for number in range(5):
        attempts.remember("c", str(number), attempt(number))
    assert len(attempts) == 3
    assert attempts.recall("c", "1", 1, 1, 5) is None
    attempts.remember("c", "late", attempt(9_000))
    assert len(attempts) == 1
