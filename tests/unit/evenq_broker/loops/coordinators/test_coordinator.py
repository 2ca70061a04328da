"""A group record is read from text that an operator may have edited: refusals name the place."""

from __future__ import annotations

import json

import pytest
from evenq_broker.core.replication.record import Pair, RecordRefused, first_record, record_fields
from evenq_broker.loops.coordinators.coordinator import BYTES_MAX, CoordinatorUnknown, RecordWentBack, parsed_record

PLACE = "/groups/broker-a"
RECORD = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)


@pytest.mark.parametrize("encoded", [False, True])
def test_a_record_comes_back_with_all_fields_that_stand_beside_it(encoded: bool) -> None:
    stored = json.dumps({**record_fields(RECORD), "renewed": "a while ago"})
    record, fields = parsed_record(stored.encode() if encoded else stored, PLACE)
    assert record == RECORD
    assert fields["renewed"] == "a while ago"


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        ("[]", "a group record is an object"),
        ('{"isr": {}, "members": []}', "version"),
        (" " * (BYTES_MAX + 1), f"is over {BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_record_is_refused(stored: str | bytes, words: str) -> None:
    with pytest.raises(RecordRefused, match=words) as refused:
        parsed_record(stored, PLACE)
    if "is not valid JSON" in words or "bytes" in words:
        assert str(refused.value).startswith(PLACE)


def test_a_record_of_the_largest_size_is_read() -> None:
    stored = json.dumps(record_fields(RECORD))
    assert parsed_record(stored.ljust(BYTES_MAX), PLACE)[0] == RECORD


def test_an_unknown_outcome_may_be_tried_again_and_a_record_that_went_back_may_not() -> None:
    assert CoordinatorUnknown("the connection broke").retryable
    assert not RecordWentBack("epoch 3 after 7").retryable
