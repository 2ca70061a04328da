"""Answers made of bytes are what protobuf would have written."""

import pytest
from evenq_broker.core.state.frames import field
from evenq_broker.rpc.answers import OK_STATUS, code_of, is_public, parsed, several, status_frame

from evenq.errors import (
    BadRequest,
    BodyEmpty,
    InternalError,
    InvalidReceiptHandle,
    StoreCorrupted,
    StoreFull,
    TopicNotFound,
)
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


def test_the_ok_status_is_the_first_field_of_every_response() -> None:
    for response in (service_pb2.SendMessageResponse, service_pb2.AckMessageResponse, service_pb2.HeartbeatResponse):
        assert response.FromString(OK_STATUS).status.code == definition_pb2.OK


def test_an_error_is_its_code_and_its_sentence_in_the_clients_language() -> None:
    answer = service_pb2.HeartbeatResponse.FromString(field(1, status_frame(TopicNotFound("no topic"))))
    assert (answer.status.code, answer.status.message) == (40402, "no topic")
    rust = definition_pb2.Status.FromString(status_frame(BodyEmpty("empty"), "RUST"))
    assert rust.code == 40000


def test_equal_codes_are_equal_bytes_whatever_the_sentence() -> None:
    first, second = status_frame(BodyEmpty("one")), status_frame(BodyEmpty("another"))
    assert code_of(first) == code_of(second)
    assert code_of(first) != code_of(status_frame(TopicNotFound("one")))
    assert code_of(several()) not in {code_of(first), b""}
    assert definition_pb2.Status.FromString(several()).code == definition_pb2.MULTIPLE_RESULTS


def test_bytes_that_are_no_message_are_told_with_their_number_and_the_message_meant() -> None:
    with pytest.raises(BadRequest, match="request of 3 bytes is not a valid AckMessageRequest"):
        parsed(service_pb2.AckMessageRequest, b"\xff\xff\xff")


def test_texts_that_name_files_are_not_for_callers() -> None:
    assert not is_public(StoreCorrupted("/data/log at byte 5"))
    assert all(map(is_public, (StoreFull("full"), InvalidReceiptHandle("bad"), InternalError("id"))))
