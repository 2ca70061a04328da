"""What follows from a division's inputs at a glance."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.inputs import ALL_BROKERS, BROADCASTING, Inputs
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import MemberFact

from evenq.model import MessageModel, MessageQueue


def inputs(*members: MemberFact, strategy="AVG", topic="T", mode=None) -> Inputs:
    queues = tuple(MessageQueue(topic, "b", index) for index in range(8))
    return Inputs(strategy=strategy, mode=mode, queues=queues, members=members, topic=topic)


def member(own: str, *topics: str, model=MessageModel.CLUSTERING) -> MemberFact:
    return MemberFact(client_id=own, topics=topics, model=model)


def test_rg_8_who_reads_other_topics_only_does_not_share_this_one() -> None:
    result = inputs(member("a", "T"), member("b", "U"), member("c"))
    assert (result.strangers, result.readers) == (["b"], ["a", "c"])


def test_who_tells_nothing_reads_everything_and_if_nobody_reads_it_all_share_it() -> None:
    assert inputs(member("a"), member("b")).readers == ["a", "b"]
    assert inputs(member("a", "U"), member("b", "U")).readers == ["a", "b"]
    assert inputs(member("a"), member("b", "U")).readers == ["a"]


def test_a_retry_topic_is_shared_by_all_and_pulled() -> None:
    result = inputs(member("a", "T"), member("b", "U"), topic="%RETRY%g", strategy="")
    assert result.readers == ["a", "b"]
    assert (result.dividing, result.request_mode) == ("AVG", RequestMode.PULL)


@pytest.mark.parametrize(
    ("number", "dividing", "shared"), [(0, ALL_BROKERS, 0), (1, "AVG", 1), (2, "AVG", 2), (3, ALL_BROKERS, 0)]
)
def test_pop_share_numbers_as_the_reference(number, dividing, shared) -> None:
    mode = RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=number)
    reported = inputs(*(member(own) for own in "abcd"), mode=mode)
    assert (reported.dividing, reported.shared, reported.one_owner) == (dividing, shared, False)
    assert reported.request_mode is RequestMode.POP


def test_only_one_owner_a_queue_can_be_held() -> None:
    assert inputs(member("a")).one_owner
    assert not inputs(member("a"), strategy="").one_owner
    everybody = inputs(member("a", model=MessageModel.BROADCASTING))
    assert (everybody.dividing, everybody.one_owner) == (BROADCASTING, False)
