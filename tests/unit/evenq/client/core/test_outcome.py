"""What a listener may say (CC-4)."""

from __future__ import annotations

import pytest

from evenq.client.core.outcome import Retry, failures
from evenq.errors import BadRequest
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


def message(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t",
        body=b"x",
        message_id=f"m{offset}",
        tag=None,
        keys=(),
        properties={},
        message_group=None,
        queue=MessageQueue("t", "b", 0),
        queue_offset=QueueOffset(offset),
        born_ms=0,
        store_ms=0,
    )


CHUNK = [message(offset) for offset in range(3)]


@pytest.mark.parametrize("told", [None, True, "ok", 0])
def test_cc_4_anything_but_false_and_retry_means_done(told: object) -> None:
    assert failures(told, CHUNK) == ([], 0)


def test_cc_4_false_means_that_none_is_done() -> None:
    assert failures(False, CHUNK) == (CHUNK, 0)


def test_cc_4_rd_7_a_retry_names_messages_and_a_level() -> None:
    assert failures(Retry(), CHUNK) == (CHUNK, 0)
    assert failures(Retry([CHUNK[1]], delay_level=5), CHUNK) == ([CHUNK[1]], 5)


def test_a_level_that_no_broker_can_have_is_refused_at_once() -> None:
    with pytest.raises(BadRequest, match="-2"):
        Retry(delay_level=-2)
