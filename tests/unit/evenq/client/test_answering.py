"""Request and reply from both ends, in memory: what is answered, what comes again, what is skipped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

import evenq
import evenq.aio
from evenq.client.core.reading.outcome import Retry
from evenq.client.core.sending.requests import stamped
from evenq.errors import BadRequest
from evenq.in_memory import MemoryCluster
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster() as made:
        yield made


def requested(offset: int, body: bytes, *, request: bool = True) -> ReceivedMessage:
    message = evenq.Message(topic="questions", body=body)
    if request:
        message = stamped(message, topic="replies", tag="me", correlation=str(offset))
    return ReceivedMessage(
        topic="questions",
        body=body,
        message_id=f"id-{offset}",
        tag=None,
        keys=(),
        properties=message.properties,
        message_group=None,
        queue=MessageQueue("questions", "a", 0),
        queue_offset=QueueOffset(offset),
        born_ms=0,
        store_ms=0,
    )


def test_a_request_gets_the_functions_result(cluster: MemoryCluster) -> None:
    with evenq.Producer(endpoint=cluster.endpoint, encoder=evenq.JsonCodec()) as producer:
        listener = producer.answer_with(lambda request: {"text": request.body.decode().upper()})
        with evenq.PushConsumer(
            group="g",
            endpoint=cluster.endpoint,
            listener=listener,
            subscriptions={"questions": "*"},
            start_from="FIRST",
        ):
            reply = producer.request("questions", b"anybody there?", timeout_ms=60_000)
    assert reply.body == b'{"text":"ANYBODY THERE?"}'


def test_asyncio_answers_with_a_coroutine_function(cluster: MemoryCluster) -> None:
    async def work() -> bytes:
        async def shout(request: ReceivedMessage) -> bytes:
            await asyncio.sleep(0)
            return request.body.upper()

        async with (
            evenq.aio.Producer(endpoint=cluster.endpoint) as producer,
            evenq.aio.PushConsumer(
                group="g",
                endpoint=cluster.endpoint,
                listener=producer.answer_with(shout),
                subscriptions={"questions": "*"},
                start_from="FIRST",
            ),
        ):
            return (await producer.request("questions", b"who?", timeout_ms=60_000)).body

    assert asyncio.run(work()) == b"WHO?"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_the_requests_that_failed_come_again_and_other_messages_are_skipped(
    cluster: MemoryCluster, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chunk = [
        requested(1, b"a"),
        requested(2, b"raise"),
        requested(3, b"none"),
        requested(4, b"x", request=False),
        requested(5, b"b"),
    ]

    def answer(request: ReceivedMessage) -> bytes | None:
        if request.body == b"raise":
            raise KeyError("the user's mistake")
        return None if request.body == b"none" else request.body

    async def later(request: ReceivedMessage) -> bytes | None:
        return answer(request)

    async def listen() -> object:
        async with evenq.aio.Producer(endpoint=cluster.endpoint) as producer:
            return await producer.answer_with(later)(chunk)

    with caplog.at_level(logging.WARNING):
        if asynchronous:
            result = asyncio.run(listen())
        else:
            with evenq.Producer(endpoint=cluster.endpoint) as producer:
                result = producer.answer_with(answer)(chunk)
    assert result == Retry([chunk[1], chunk[2]])
    assert sorted(message.body for message in cluster.messages("replies")) == [b"a", b"b"]
    for text in ("message id-4", "expects no reply", "request id-2", "was not answered", "the user's mistake"):
        assert text in caplog.text


def test_a_reply_that_is_not_stored_leaves_its_request_for_redelivery(cluster: MemoryCluster) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send("replies", b"0")
        cluster.faults.fail_sends(1)
        chunk = [requested(1, b"a"), requested(2, b"b")]
        result = producer.answer_with(lambda request: request.body)(chunk)
    assert isinstance(result, Retry)
    assert result.messages is not None
    assert 1 <= len(result.messages) <= 2, "batched replies fail together"


async def coroutine(request: ReceivedMessage) -> bytes:
    return request.body


@pytest.mark.parametrize("wrong", [coroutine, None, lambda: b"x"])
def test_a_function_that_cannot_be_called_is_refused(wrong: Any) -> None:
    with evenq.Producer() as producer, pytest.raises(BadRequest, match=r"def function\(request\)"):
        producer.answer_with(wrong)
