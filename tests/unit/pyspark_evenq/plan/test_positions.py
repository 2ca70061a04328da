"""Where to start and end."""

import pytest
from pyspark_evenq.options.offsets import OffsetSpec, Place
from pyspark_evenq.plan.planner import Bounds, Trimmed
from pyspark_evenq.plan.positions import QueueState, loss_of, resolve

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue

QUEUE = MessageQueue("flights", "broker-a", 0)


def at(spec: OffsetSpec, *, committed: int = -1, times: dict[int, int] | None = None) -> int:
    state = QueueState(bounds=Bounds(low=10, high=20), committed=committed, times=times or {})
    return resolve(spec, {QUEUE: state}, without_commit=Place.LATEST)[QUEUE]


@pytest.mark.parametrize(
    ("place", "committed", "expected"),
    [
        (Place.EARLIEST, -1, 10),
        (Place.LATEST, -1, 20),
        (Place.GROUP, -1, 20),
        (Place.GROUP, 15, 15),
        (Place.GROUP, 3, 3),
        (Place.GROUP, 30, 30),
    ],
)
def test_a_word_becomes_an_offset(place: Place, committed: int, expected: int) -> None:
    assert at(OffsetSpec(place=place), committed=committed) == expected


@pytest.mark.parametrize(("written", "expected"), [(-2, 10), (-1, 20), (12, 12), (3, 3)])
def test_a_written_offset_is_taken_as_it_is(written: int, expected: int) -> None:
    assert at(OffsetSpec(place=Place.GROUP, offsets={QUEUE: written})) == expected


@pytest.mark.parametrize(("found", "expected"), [(13, 13), (20, 20)])
def test_a_time_without_later_messages_is_the_end(found: int, expected: int) -> None:
    assert at(OffsetSpec(place=Place.EARLIEST, time_ms=7), times={7: found}) == expected
    assert at(OffsetSpec(place=Place.EARLIEST, times={QUEUE: 7}), times={7: found, 8: 11}) == expected


def test_a_time_without_later_messages_is_an_error_where_one_must_be() -> None:
    assert at(OffsetSpec(place=Place.EARLIEST, time_ms=7, must_match=True), times={7: 13}) == 13
    with pytest.raises(SettingsError, match="no message of flights@broker-a:0 was stored at 7 ms or later"):
        at(OffsetSpec(place=Place.EARLIEST, time_ms=7, must_match=True), times={7: 20})


def test_a_queue_without_a_time_begins_where_the_others_do() -> None:
    other = MessageQueue("flights", "broker-a", 1)
    states = {
        queue: QueueState(bounds=Bounds(low=10, high=20), committed=-1, times={7: 15}) for queue in (QUEUE, other)
    }
    spec = OffsetSpec(place=Place.EARLIEST, times={QUEUE: 7})
    assert resolve(spec, states, without_commit=Place.LATEST) == {QUEUE: 15, other: 10}


def test_a_word_of_a_topic_is_for_its_queues_that_have_no_offset() -> None:
    other = MessageQueue("flights", "broker-a", 1)
    states = {queue: QueueState(bounds=Bounds(low=10, high=20), committed=-1) for queue in (QUEUE, other)}
    spec = OffsetSpec(place=Place.EARLIEST, offsets={QUEUE: 12}, topics={"flights": -1})
    assert resolve(spec, states, without_commit=Place.LATEST) == {QUEUE: 12, other: 20}
    with pytest.raises(SettingsError, match="is given for trains, which is not"):
        at(OffsetSpec(place=Place.GROUP, topics={"trains": -2}))


def test_an_offset_of_an_unknown_queue_is_refused() -> None:
    with pytest.raises(SettingsError, match="flights@broker-z:9"):
        at(OffsetSpec(place=Place.GROUP, offsets={MessageQueue("flights", "broker-z", 9): 1}))


def test_a_loss_names_queue_wanted_and_available_range() -> None:
    lost = loss_of(Trimmed(queue=QUEUE, position=5, bounds=Bounds(low=10, high=20)))
    assert "flights@broker-a:0" in str(lost)
    assert "offset 5" in str(lost)
    assert "10 to 20" in str(lost)
    assert (lost.min_offset, lost.max_offset) == (10, 20)
