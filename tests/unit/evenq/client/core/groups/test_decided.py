"""Decisions that reach a member over several brokers, in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evenq.client.core.calls import Assignment
from evenq.client.core.groups.decided import DecidedShares
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.model.session_events import AssignmentChanged

TRUST_MS = 1_000
NEWEST = 6


def queues(*numbers: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", "b", number) for number in numbers)


def of(number: int) -> tuple[MessageQueue, ...]:
    """The share of generation `number`: each decision is distinguished by its queue."""
    return queues(number)


def pushed(shares: DecidedShares, number: int, now_ms: int = 0) -> bool:
    return shares.push(AssignmentChanged("t", Generation(1, number), of(number)), now_ms)


def answered(number: int) -> Assignment:
    return Assignment(True, of(number), Generation(1, number))


def test_a_pushed_share_is_used_without_a_question_until_it_is_old_or_suspect() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    assert pushed(shares, 3, now_ms=10)
    assert shares.heard_since(10)
    assert not shares.heard_since(11)
    assert shares.generation("t") == NO_GENERATION, "nothing was taken over yet"
    assert shares.use("t", 10 + TRUST_MS - 1) == list(of(3))
    assert shares.generation("t") == Generation(1, 3)
    assert shares.use("t", 10 + TRUST_MS) is None
    assert shares.generation("t") == Generation(1, 3), "what is held stays fenced by it"
    assert not shares.complete(["t"])
    assert pushed(shares, 3, now_ms=2_000)
    shares.suspect("u")
    assert shares.queues("t") == list(of(3))
    shares.suspect("t")
    assert shares.use("t", 2_000) is None
    assert pushed(shares, 3, now_ms=2_000)
    shares.suspect()
    assert shares.queues("t") == []


def test_the_same_decision_told_again_is_not_newer() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    pushed(shares, 3)
    assert pushed(shares, 3, now_ms=TRUST_MS)
    assert not shares.heard_since(1)
    assert shares.use("t", TRUST_MS) is None, "the server is asked from time to time, whatever brokers repeat"


def test_a_push_without_a_share_must_be_asked_about() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    pushed(shares, 3)
    assert not shares.push(AssignmentChanged("t", Generation(1, 4)), 0)
    assert shares.use("t", 0) is None
    assert not shares.complete(["t"])


def test_all_topics_but_retry_topics_must_be_decided() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    pushed(shares, 3)
    assert shares.complete(["t", "%RETRY%g"])
    assert not shares.complete(["t", "u"])
    assert not shares.complete(["%RETRY%g"]), "nothing else to decide about: not the server's business"


def test_a_late_answer_changes_nothing_and_a_newer_push_wins() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    assert shares.answered("t", answered(4), 0) == list(of(4))
    assert shares.answered("t", answered(3), 0) == list(of(4)), "the newer share is known"
    shares.suspect()
    assert shares.answered("t", answered(3), 0) is None
    assert shares.generation("t") == Generation(1, 4)
    pushed(shares, 6)
    assert shares.answered("t", answered(5), 0) == list(of(6))
    assert shares.generation("t") == Generation(1, 6)
    assert shares.answered("t", Assignment(False, ()), 0) == list(of(6)), "the server knows nothing, its push counts"
    shares.suspect()
    assert shares.answered("t", Assignment(False, ()), 0) is None


def test_without_a_rebalancer_what_brokers_compute_counts_and_is_asked_for_each_time() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    shares.answered("t", answered(4), 0)
    shares.suspect()
    assert shares.answered("t", Assignment(True, queues(9, 8)), 0) == list(queues(8, 9))
    assert shares.generation("t") == Generation(1, 4), "brokers refuse commits of an older one"
    assert shares.use("t", 0) is None
    shares.forget("t")
    shares.push(AssignmentChanged("t", NO_GENERATION, of(1)), 0)
    shares.answered("t", Assignment(True, of(2)), 0)
    assert shares.use("t", 0) is None


def test_members_that_decide_themselves_have_no_generation() -> None:
    shares = DecidedShares(trust_ms=TRUST_MS)
    shares.answered("t", answered(4), 0)
    shares.forget("t")
    assert (shares.generation("t"), shares.queues("t")) == (NO_GENERATION, [])
    assert shares.answered("t", answered(1), 0) == list(of(1))


STEP = st.one_of(
    st.tuples(st.just("push"), st.integers(1, NEWEST)),
    st.tuples(st.just("answer"), st.integers(1, NEWEST)),
    st.tuples(st.just("use"), st.just(0)),
    st.tuples(st.just("suspect"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, TRUST_MS])),
)


@given(st.lists(STEP, max_size=30))
def test_in_any_order_no_generation_goes_back_and_each_share_is_of_its_generation(steps: list[tuple[str, int]]) -> None:
    shares, now_ms, newest = DecidedShares(trust_ms=TRUST_MS), 0, 0
    for what, number in steps:
        before, share = shares.generation("t"), None
        match what:
            case "push":
                pushed(shares, number, now_ms)
                newest = max(newest, number)
            case "answer":
                share = shares.answered("t", answered(number), now_ms)
                assert share is not None or before > Generation(1, number), "only a late answer changes nothing"
                newest = max(newest, number)
            case "use":
                share = shares.use("t", now_ms)
            case "suspect":
                shares.suspect()
            case _:
                now_ms += number
        assert shares.generation("t") >= before
        assert shares.generation("t").counter <= newest
        if share is not None:
            assert share == list(of(shares.generation("t").counter)), "commits are fenced by the share's own decision"
