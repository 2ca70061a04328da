"""What a listener may say (CC-4)."""

from __future__ import annotations

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.reading.outcome import Retry, failures
from evenq.errors import BadRequest
from evenq.model import ReceivedMessage


def message(offset: int) -> ReceivedMessage:
    return received_message(offset)


CHUNK = [message(offset) for offset in range(3)]


@pytest.mark.parametrize("result", [None, True, "ok", 0])
def test_cc_4_anything_but_false_and_retry_means_done(result: object) -> None:
    assert failures(result, CHUNK) == ([], 0)


def test_cc_4_false_means_that_none_is_done() -> None:
    assert failures(False, CHUNK) == (CHUNK, 0)


def test_cc_4_rd_7_a_retry_names_messages_and_a_level() -> None:
    assert failures(Retry(), CHUNK) == (CHUNK, 0)
    assert failures(Retry([CHUNK[1]], delay_level=5), CHUNK) == ([CHUNK[1]], 5)


def test_a_level_that_no_broker_can_have_is_refused_at_once() -> None:
    with pytest.raises(BadRequest, match="-2"):
        Retry(delay_level=-2)


@pytest.mark.parametrize(
    "named", [[None], ["m1"], [message(99)], 7, [CHUNK[0], object()], [[]]], ids=lambda named: repr(named)[:20]
)
def test_a_retry_that_names_what_was_not_given_means_that_none_is_done(named: object) -> None:
    assert failures(Retry(named, delay_level=2), CHUNK) == (CHUNK, 2)  # type: ignore[arg-type]  # nonsense on purpose


def test_a_retry_may_name_one_message_without_a_list_and_none_at_all() -> None:
    assert failures(Retry(CHUNK[2]), CHUNK) == ([CHUNK[2]], 0)  # type: ignore[arg-type]  # a slip, but a clear one
    assert failures(Retry([]), CHUNK) == ([], 0)
