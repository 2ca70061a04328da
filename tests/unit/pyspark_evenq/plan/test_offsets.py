"""The offset in Spark's checkpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_evenq.plan.offsets import StreamOffset

from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue

QUEUES = st.builds(
    MessageQueue, st.sampled_from(["flights", "weather"]), st.sampled_from(["a", "b"]), st.integers(0, 12)
)
POSITIONS = st.dictionaries(QUEUES, st.integers(0, 1 << 50), min_size=1)


@given(POSITIONS, POSITIONS, st.randoms(use_true_random=False))
def test_equal_states_give_equal_text_in_whatever_order_they_were_made(ends, starts, random) -> None:  # type: ignore[no-untyped-def]  # hypothesis
    shuffled = list(ends.items())
    random.shuffle(shuffled)
    one, two = StreamOffset(ends=ends, starts=starts), StreamOffset(ends=dict(shuffled), starts=starts)
    text = json.dumps(one.to_json())
    assert text == json.dumps(two.to_json())
    assert StreamOffset.from_json(json.loads(text)) == one
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text


def test_the_text_is_as_documented() -> None:
    queue = MessageQueue("flights", "broker-a", 0)
    assert StreamOffset(ends={queue: 9}).to_json() == {"v": 1, "q": {"flights": {"broker-a": {"0": 9}}}}
    assert StreamOffset(ends={queue: 9}, starts={queue: 2}).to_json()["from"] == {"flights": {"broker-a": {"0": 2}}}


def test_uids_and_what_was_left_out_come_back_and_older_checkpoints_have_none() -> None:
    one, two = MessageQueue("flights", "broker-a", 0), MessageQueue("flights", "broker-b", 1)
    offset = StreamOffset(ends={one: 9}, uids={("flights", "broker-a"): "u-1"}, lost={one: 4}, away=frozenset({two}))
    document = json.loads(json.dumps(offset.to_json()))
    assert document["uid"] == {"flights": {"broker-a": "u-1"}}
    assert document["lost"] == {"flights": {"broker-a": {"0": 4}}}
    assert document["away"] == {"flights": {"broker-b": [1]}}
    assert StreamOffset.from_json(document) == offset
    old = StreamOffset.from_json({"v": 1, "q": {"flights": {"broker-a": {"0": 9}}}})
    assert (old.uids, old.lost, old.away) == ({}, {}, frozenset())


def test_an_offset_of_a_newer_version_is_refused() -> None:
    with pytest.raises(Unsupported, match="version 2"):
        StreamOffset.from_json({"v": 2, "q": {}})
