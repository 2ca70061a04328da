"""What waits for one peer is bounded by number and by bytes, and the newest word of a follower stays."""

from __future__ import annotations

import pytest
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import (
    Body,
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Nomination,
    Records,
    Refusal,
)
from evenq_broker.loops.replication.outgoing_link import BYTES_MAX, MESSAGES_MAX, Outbox
from evenq_broker.loops.wire.replication import MalformedMessage


def envelope(body: Body) -> Envelope:
    return Envelope("c", 1, "a" * 32, 7, 2, body)


def records(size: int, number: int = 0) -> Envelope:
    return envelope(Records(number, number + 1, 1, (), 0, 0, bytes(size)))


def progress(end: int) -> Envelope:
    return envelope(FollowerProgress(end, end, wants=False))


def drained(box: Outbox) -> list[Envelope]:
    found = []
    while (one := box.in_hand) is not None:
        found.append(one)
        box.sent()
    assert box.bytes == 0
    assert len(box) == 0
    return found


def test_messages_leave_in_their_order() -> None:
    box = Outbox()
    sent = [progress(1), envelope(EpochsRequest(1)), records(10), envelope(Refusal()), progress(2)]
    assert all(box.put(one) for one in sent)
    assert len(box) == 5
    assert drained(box) == sent


def test_the_message_in_hand_may_be_large_and_counts_for_nothing_else() -> None:
    box = Outbox()
    assert box.put(records(BYTES_MAX * 2))
    assert box.bytes == 0
    assert box.put(records(BYTES_MAX - 1_000))
    assert BYTES_MAX - 1_000 <= box.bytes <= BYTES_MAX


def test_the_only_records_may_be_large_behind_a_small_message_and_no_second_ones() -> None:
    box = Outbox()
    first, second = records(BYTES_MAX * 2), records(BYTES_MAX * 2, 1)
    assert box.put(progress(0))
    assert box.put(first)
    assert not box.put(second)
    assert box.bytes == 0
    box.sent()
    assert box.in_hand == first
    assert not box.put(second), "one large message at a time"
    box.sent()
    assert box.put(second)


def test_records_over_the_bytes_are_dropped_and_make_way_for_nothing() -> None:
    box = Outbox()
    box.put(records(5))
    kept = [records(BYTES_MAX // 4, number) for number in range(3)]
    assert all(box.put(one) for one in kept)
    assert box.put(progress(1))
    for _ in range(1_000):
        assert not box.put(records(BYTES_MAX // 4))
        assert box.bytes <= BYTES_MAX
    assert box.dropped == 1_000
    assert drained(box) == [records(5), *kept, progress(1)]


def test_when_there_are_too_many_the_oldest_word_of_a_follower_makes_way_for_the_newest() -> None:
    box = Outbox()
    for number in range(10 * MESSAGES_MAX):
        assert box.put(progress(number))
    assert len(box) == MESSAGES_MAX + 1
    assert box.dropped == 9 * MESSAGES_MAX - 1
    assert drained(box) == [progress(0), *(progress(number) for number in range(9 * MESSAGES_MAX, 10 * MESSAGES_MAX))]


def test_a_request_for_epochs_makes_way_as_well_and_other_words_do_not() -> None:
    box = Outbox(messages_max=3)
    box.put(progress(0))
    first = [envelope(Nomination(1)), envelope(EpochsRequest(1)), envelope(EpochsRequest(2))]
    assert all(box.put(one) for one in first)
    assert not box.put(records(1)), "records never push anything out"
    assert box.put(envelope(Refusal()))
    assert box.put(envelope(Nomination(2)))
    assert not box.put(progress(9)), "nothing is there that may make way"
    assert drained(box) == [progress(0), first[0], envelope(Refusal()), envelope(Nomination(2))]


def test_a_word_that_would_not_fit_anyway_pushes_nothing_out() -> None:
    box = Outbox(bytes_max=2_000)
    box.put(records(5))
    assert box.put(records(1_200))
    assert box.put(progress(1))
    table = EpochTable(0, tuple(EpochStart(number + 1, number) for number in range(40)))
    assert not box.put(envelope(EpochsReply(1, 1, table, 50)))
    assert drained(box)[-1] == progress(1)


def test_at_the_end_of_a_link_records_go_and_small_messages_stay() -> None:
    box = Outbox()
    for one in (records(BYTES_MAX), progress(1), records(5_000), envelope(Nomination(3))):
        box.put(one)
    box.drop_records()
    assert box.bytes < 1_000
    assert box.dropped == 2
    assert drained(box) == [progress(1), envelope(Nomination(3))]
    box.drop_records()
    assert box.in_hand is None


def test_records_that_cannot_be_sent_are_an_error_at_once() -> None:
    with pytest.raises(MalformedMessage, match="tuple"):
        Outbox().put(envelope(Records(0, 1, 1, (), 0, 0, (1, 2))))
