"""Where to start and end."""

import pytest
from pyspark_evenq.options import OffsetSpec, Place
from pyspark_evenq.planner import Bounds, Trimmed
from pyspark_evenq.positions import QueueState, loss_of, resolve

from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue

QUEUE = MessageQueue("flights", "broker-a", 0)


def at(spec: OffsetSpec, *, committed: int = -1, by_timestamp: bool = False, at_timestamp: int = -1) -> int:
    state = QueueState(bounds=Bounds(low=10, high=20), committed=committed, at_timestamp=at_timestamp)
    return resolve(spec, {QUEUE: state}, without_commit=Place.LATEST, by_timestamp=by_timestamp)[QUEUE]


@pytest.mark.parametrize(
    ("place", "committed", "wanted"),
    [
        (Place.EARLIEST, -1, 10),
        (Place.LATEST, -1, 20),
        (Place.GROUP, -1, 20),
        (Place.GROUP, 15, 15),
        (Place.GROUP, 3, 3),
        (Place.GROUP, 30, 30),
    ],
)
def test_a_word_becomes_an_offset(place: Place, committed: int, wanted: int) -> None:
    assert at(OffsetSpec(place=place), committed=committed) == wanted


@pytest.mark.parametrize(("written", "wanted"), [(-2, 10), (-1, 20), (12, 12), (3, 3)])
def test_a_written_offset_is_taken_as_it_is(written: int, wanted: int) -> None:
    assert at(OffsetSpec(place=Place.GROUP, offsets={QUEUE: written})) == wanted


@pytest.mark.parametrize(("found", "wanted"), [(13, 13), (-1, 20)])
def test_a_time_without_later_messages_is_the_end(found: int, wanted: int) -> None:
    assert at(OffsetSpec(place=Place.EARLIEST), by_timestamp=True, at_timestamp=found) == wanted


def test_an_offset_of_an_unknown_queue_is_refused() -> None:
    with pytest.raises(SettingsError, match="flights@broker-z:9"):
        at(OffsetSpec(place=Place.GROUP, offsets={MessageQueue("flights", "broker-z", 9): 1}))


def test_a_loss_names_queue_wanted_and_available_range() -> None:
    lost = loss_of(Trimmed(queue=QUEUE, wanted=5, bounds=Bounds(low=10, high=20)))
    assert "flights@broker-a:0" in str(lost)
    assert "offset 5" in str(lost)
    assert "10 to 20" in str(lost)
    assert (lost.min_offset, lost.max_offset) == (10, 20)
