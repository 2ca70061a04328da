"""Handlers, publishers and requests of `EvenqBroker`, on the test broker; the real cluster is in
tests/integration/test_faststream.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from evenq_proofs.waiting import until_async
from faststream import AckPolicy, Context
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from pydantic import BaseModel

import evenq
from evenq.errors import Error, Forbidden, IllegalPropertyKey, Unauthorized
from evenq.faststream import EvenqBroker, EvenqResponse, EvenqRoute, EvenqRoutePublisher, EvenqRouter, TestEvenqBroker
from evenq.faststream.annotations import (
    Attempt,
    EvenqMessage,
    Group,
    Keys,
    MessageGroup,
    MessageId,
    Queue,
    QueueOffset,
    Tag,
    Topic,
)


class Order(BaseModel):
    id: int


@pytest.fixture
def broker() -> EvenqBroker:
    return EvenqBroker("127.0.0.1:1", logger=None)


async def test_a_handler_gets_its_model_and_the_values_of_the_message(broker: EvenqBroker) -> None:
    seen: dict[str, Any] = {}

    @broker.subscriber("orders", group="billing")
    async def bill(
        order: Order,
        message: EvenqMessage,
        message_id: MessageId,
        topic: Topic,
        tag: Tag,
        keys: Keys,
        message_group: MessageGroup,
        group: Group,
        attempt: Attempt,
        queue: Queue,
        queue_offset: QueueOffset,
        shop: str = Context("message.headers.shop"),
    ) -> None:
        seen.update({name: value for name, value in locals().items() if name not in {"seen", "message", "queue"}})
        seen["raw"] = message.raw_message
        seen["queue"] = queue.topic

    async with TestEvenqBroker(broker) as test:
        sent = await test.publish(
            {"id": 7}, "orders", tag="paid", keys=["k1", "k2"], message_group="eu", headers={"shop": "s"}
        )
    raw = seen.pop("raw")
    assert isinstance(raw, evenq.ReceivedMessage)
    assert raw.body == b'{"id":7}'
    assert seen == {
        "order": Order(id=7),
        "message_id": sent.message_id,
        "topic": "orders",
        "tag": "paid",
        "keys": ("k1", "k2"),
        "message_group": "eu",
        "group": "billing",
        "attempt": 1,
        "queue": "orders",
        "queue_offset": 0,
        "shop": "s",
    }


async def test_tags_and_sql_filters_choose_the_subscribers(broker: EvenqBroker) -> None:
    @broker.subscriber("orders", group="paid", tag="paid || settled")
    async def paid(order: dict[str, int]) -> None: ...

    @broker.subscriber("orders", group="large", sql="amount > 10 AND TAGS = 'open'")
    async def large(order: dict[str, int]) -> None: ...

    async with TestEvenqBroker(broker) as test:
        await test.publish({"n": 1}, "orders", tag="settled", headers={"amount": "99"})
        await test.publish({"n": 2}, "orders", tag="open", headers={"amount": "11"})
        await test.publish({"n": 3}, "orders", tag="open", headers={"amount": "9"})
        paid.mock.assert_called_once_with({"n": 1})
        large.mock.assert_called_once_with({"n": 2})


async def test_one_subscriber_of_a_group_gets_a_message_and_all_of_a_broadcasting_one(broker: EvenqBroker) -> None:
    calls = []
    for name in ("a", "b"):

        @broker.subscriber("orders", group="shared")
        async def shared(body: str, name: str = name) -> None:
            calls.append("shared")

        @broker.subscriber("orders", group="all", model="BROADCASTING")
        async def every(body: str, name: str = name) -> None:
            calls.append("all")

    async with TestEvenqBroker(broker) as test:
        await test.publish("x", "orders")
    assert sorted(calls) == ["all", "all", "shared"]


async def test_a_result_goes_to_the_publishers_with_the_fields_of_a_response(broker: EvenqBroker) -> None:
    seen = []

    @broker.subscriber("orders", group="billing")
    @broker.publisher("bills", tag="new", headers={"source": "billing", "shop": "none"})
    async def bill(order: Order) -> Any:
        return EvenqResponse({"bill": order.id}, keys=["b-7"], headers={"shop": "s"}, message_group="eu")

    @broker.subscriber("bills", group="mailer")
    async def mail(body: dict[str, int], message: EvenqMessage) -> None:
        seen.append((body, message.tag, message.keys, message.message_group, message.headers))

    async with TestEvenqBroker(broker) as test:
        await test.publish({"id": 7}, "orders", correlation_id="c-1")
    ((body, tag, keys, message_group, headers),) = seen
    assert (body, tag, keys, message_group) == ({"bill": 7}, "new", ("b-7",), "eu")
    assert headers == {
        "content-type": "application/json",
        "correlation_id": "c-1",
        "source": "billing",
        "shop": "s",
    }


async def test_a_request_returns_the_result_of_the_handler(broker: EvenqBroker) -> None:
    @broker.subscriber("add", group="adder")
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.subscriber("nothing", group="nothing")
    async def nothing(body: str) -> None: ...

    publisher = broker.publisher("add")
    async with TestEvenqBroker(broker) as test:
        assert await (await test.request({"a": 1, "b": 2}, "add")).decode() == 3
        assert await (await publisher.request([3, 4])).decode() == 7
        reply = await test.request("x", "nothing")
        assert (reply.body, await reply.decode()) == (b"null", None)


async def test_a_request_without_an_answer_raises_after_its_timeout(broker: EvenqBroker) -> None:
    @broker.subscriber("slow", group="slow")
    async def slow(body: str) -> None:
        await asyncio.Event().wait()

    async with TestEvenqBroker(broker) as test:
        with pytest.raises(evenq.errors.RequestTimeout, match=r"no reply within 0\.01 s"):
            await test.request("x", "slow", timeout=0.01)


async def test_an_unanswered_request_is_a_timeout_for_code_of_any_broker(broker: EvenqBroker) -> None:
    @broker.subscriber("ask", group="answers")
    async def hang(body: str) -> None:
        await asyncio.Event().wait()

    async with TestEvenqBroker(broker) as test:
        with pytest.raises(TimeoutError):
            await test.request("x", "ask", timeout=0.01)


async def test_a_publisher_sends_to_another_topic_if_one_is_given(broker: EvenqBroker) -> None:
    publisher = broker.publisher("bills", tag="open")

    @broker.subscriber("others", group="others")
    async def other(body: str, tag: Tag) -> str:
        return f"{tag} {body}"

    @broker.subscriber("bills", group="bills")
    async def bills(body: str) -> None: ...

    async with TestEvenqBroker(broker):
        await publisher.publish("a", "others")
        other.mock.assert_called_once_with("a")
        assert await (await publisher.request("b", "others")).decode() == "open b"
        bills.mock.assert_not_called()
        await publisher.publish("c")
        bills.mock.assert_called_once_with("c")


async def test_a_codec_with_encode_batch_encodes_a_batch_in_one_call(broker: EvenqBroker) -> None:
    class UpperCase(DefaultCodec):
        async def encode_batch(self, msgs: Sequence[Any], serializer: Any = None) -> list[tuple[bytes, str | None]]:
            batches.append(list(msgs))
            return [(str(one).upper().encode(), "text/plain") for one in msgs]

        async def decode_batch(self, msg: Any) -> list[Any]:
            return [body.decode() for body in msg.body]

    batches: list[list[Any]] = []
    broker = EvenqBroker("127.0.0.1:1", logger=None, codec=UpperCase())

    @broker.subscriber("letters", group="letters", batch=True)
    async def letters(bodies: list[str]) -> None: ...

    async with TestEvenqBroker(broker) as test:
        await test.publish_batch("a", EvenqResponse("b", tag="t"), topic="letters")
        letters.mock.assert_called_once_with(["A", "B"])
    assert batches == [["a", "b"]]


async def test_a_result_goes_to_the_topic_that_the_message_names(broker: EvenqBroker) -> None:
    @broker.subscriber("questions", group="answers")
    async def answer(body: str) -> str:
        return body.upper()

    @broker.subscriber("replies", group="replies")
    async def replies(body: str) -> None: ...

    async with TestEvenqBroker(broker) as test:
        await test.publish("why", "questions", reply_to="replies")
        replies.mock.assert_called_once_with("WHY")


async def test_a_batch_subscriber_gets_lists_of_at_most_max_records(broker: EvenqBroker) -> None:
    batches = []

    @broker.subscriber("orders", group="billing", batch=True, max_records=2)
    async def bill(orders: list[Order]) -> None:
        batches.append([order.id for order in orders])

    async with TestEvenqBroker(broker) as test:
        results = await test.publish_batch({"id": 1}, {"id": 2}, {"id": 3}, topic="orders")
        assert await test.publish_batch(topic="orders") == []
    assert batches == [[1, 2], [3]]
    assert len({result.message_id for result in results}) == 3


async def test_a_batch_publisher_sends_each_item_of_a_list(broker: EvenqBroker) -> None:
    seen = []

    @broker.subscriber("orders", group="splitter")
    @broker.publisher("lines", batch=True)
    async def split(order: list[int]) -> list[Any]:
        return [EvenqResponse(line, tag=f"t{line}") if line > 1 else line for line in order]

    @broker.subscriber("lines", group="lines")
    async def line(body: int, tag: Tag) -> None:
        seen.append((body, tag))

    async with TestEvenqBroker(broker) as test:
        await test.publish([1, 2], "orders")
    assert seen == [(1, None), (2, "t2")]


@pytest.mark.parametrize("body", [None, "", 0, False, [], {}, "text", 1.5, {"a": None}])
async def test_every_body_arrives_as_it_was_sent(broker: EvenqBroker, body: object) -> None:
    seen = []

    @broker.subscriber("bodies", group="bodies")
    async def take(message: EvenqMessage) -> None:
        assert message.body
        seen.append(await message.decode())

    async with TestEvenqBroker(broker) as test:
        await test.publish(body, "bodies")
    assert seen == [body]


async def test_a_header_that_is_not_a_text_is_refused(broker: EvenqBroker) -> None:
    async with TestEvenqBroker(broker) as test:
        with pytest.raises(IllegalPropertyKey, match=r"header 'n' is 1 \(int\).*give a text, as in \{'n': '1'\}"):
            await test.publish("x", "orders", headers={"n": 1})


async def test_handlers_of_one_subscriber_choose_by_filter(broker: EvenqBroker) -> None:
    subscriber = broker.subscriber("orders", "refunds", group="billing")

    @subscriber(filter=lambda message: message.topic == "orders")
    async def order(body: str) -> None: ...

    @subscriber
    async def other(body: str) -> None: ...

    async with TestEvenqBroker(broker) as test:
        await test.publish("o", "orders")
        await test.publish("r", "refunds")
        order.mock.assert_called_once_with("o")
        other.mock.assert_called_once_with("r")


async def test_a_router_puts_its_prefix_before_topics() -> None:
    async def copy(body: str) -> str:
        return body

    inner = EvenqRouter(
        prefix="b-", handlers=[EvenqRoute(copy, "in", group="copy", publishers=[EvenqRoutePublisher("out")])]
    )
    outer = EvenqRouter(prefix="a-", routers=[inner], ack_policy=AckPolicy.MANUAL)
    broker = EvenqBroker("127.0.0.1:1", routers=[outer], logger=None)
    seen = []

    @broker.subscriber("a-b-out", group="seen")
    async def out(body: str) -> None:
        seen.append(body)

    async with TestEvenqBroker(broker) as test:
        await test.publish("x", "a-b-in")
    assert seen == ["x"]
    with pytest.raises(SetupError, match="EvenqRouter"):
        broker.include_router(object())  # type: ignore[arg-type]


async def test_two_subscribers_of_a_group_with_different_topics_are_refused_at_the_start(broker: EvenqBroker) -> None:
    for topic in ("orders", "refunds"):

        @broker.subscriber(topic, group="billing")
        async def bill(body: str) -> None: ...

    with pytest.raises(SetupError, match=r"group billing read orders \(\*\) and refunds \(\*\)"):
        await broker.start()


async def test_a_subscriber_without_a_group_is_refused_at_its_start(broker: EvenqBroker) -> None:
    @broker.subscriber("orders")
    async def bill(body: str) -> None: ...

    try:
        with pytest.raises(SetupError, match="the subscriber of orders has no consumer group"):
            await broker.start()
    finally:
        await broker.stop()


@pytest.mark.parametrize("arguments", [{"ordered": True}, {"model": "BROADCASTING"}])
async def test_ack_first_is_refused_where_it_cannot_be_kept(broker: EvenqBroker, arguments: dict[str, Any]) -> None:
    subscriber = broker.subscriber("orders", group="billing", ack_policy=AckPolicy.ACK_FIRST, **arguments)
    with pytest.raises(SetupError, match=r"orders has AckPolicy\.ACK_FIRST, which is neither for ordered=True"):
        await subscriber.start()


class Receiver:
    """A simple consumer that receives what a test puts into `waiting`."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[str] = asyncio.Queue()
        self.acked: list[str] = []
        self.returned: list[tuple[str, int, bool]] = []

    async def receive(self, *_: Any, **__: Any) -> list[evenq.ReceivedMessage]:
        name = await self.waiting.get()
        return [
            evenq.ReceivedMessage(
                topic="orders", body=name.encode(), message_id=name, tag=None, keys=(), properties={},
                message_group=None, queue=evenq.MessageQueue("orders", "broker-a", 0),
                queue_offset=evenq.QueueOffset(0), born_ms=0, store_ms=0, delivery_attempt=1, receipt_handle="0",
            )
        ]  # fmt: skip

    async def ack(self, *messages: evenq.ReceivedMessage) -> None:
        self.acked += [message.message_id for message in messages]

    async def change_invisible(
        self, message: evenq.ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> evenq.ReceivedMessage:
        self.returned.append((message.message_id, invisible_ms, suspend))
        return message

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_message_that_arrives_while_handlers_end_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, receiver = EvenqBroker("127.0.0.1:1", logger=None, graceful_timeout=60), Receiver()
    subscriber = broker.subscriber("orders", group="billing", ack_policy=AckPolicy.ACK_FIRST, max_workers=2)
    began, ends, bodies = asyncio.Event(), asyncio.Event(), []

    async def opened() -> Any:
        subscriber._receiver = receiver  # type: ignore[assignment]
        return receiver

    @subscriber
    async def handle(body: str) -> None:
        began.set()
        await ends.wait()
        bodies.append(body)

    monkeypatch.setattr(subscriber, "_opened", opened)
    await broker.connect()
    await subscriber.start()
    receiver.waiting.put_nowait("first")
    await asyncio.wait_for(began.wait(), 60)
    stopping = asyncio.ensure_future(subscriber.stop())
    for name in ("second", "third"):
        receiver.waiting.put_nowait(name)
    await until_async(lambda: receiver.waiting.qsize() < 2)
    ends.set()
    await asyncio.wait_for(stopping, 60)
    assert (bodies, receiver.acked) == (["first"], ["first"])
    assert (receiver.returned, receiver.waiting.qsize()) == ([("second", 0, True)], 1)
    await broker.stop()


async def test_publishing_before_the_connection_names_the_step(broker: EvenqBroker) -> None:
    with pytest.raises(Exception, match="the broker is not connected"):
        await broker.publish("x", "orders")


def test_security_gives_the_keys_and_asks_for_tls() -> None:
    broker = EvenqBroker("127.0.0.1:1", security=SASLPlaintext("alice", "secret", use_ssl=True))
    access = broker.config.access
    assert access.credentials == evenq.Credentials(access_key="alice", secret_key="secret")
    assert access.tls is True
    with pytest.raises(SetupError, match="SASLScram256 is not supported"):
        EvenqBroker("127.0.0.1:1", security=SASLScram256("alice", "secret"))
    with pytest.raises(SetupError, match="both have keys"):
        EvenqBroker("127.0.0.1:1", security=SASLPlaintext("a", "b"), credentials=access.credentials)
    assert EvenqBroker("127.0.0.1:1", security=BaseSecurity()).config.access.tls is None


async def test_a_broker_that_nobody_answers_does_not_ping(broker: EvenqBroker) -> None:
    assert not await broker.ping(0.05)


@pytest.mark.parametrize(("error", "answers"), [(Forbidden("no grant"), True), (Unauthorized("unknown key"), False)])
async def test_ping_needs_valid_keys_and_no_grant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Error, answers: bool
) -> None:
    """Readiness of an application that may only publish and read; a failure is logged when it begins."""

    async def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr("evenq.aio.Admin.list_brokers", refuse)
    broker = EvenqBroker("127.0.0.1:1", logger=logging.getLogger("pings"))
    await broker.connect()
    assert [await broker.ping(60) for _ in range(2)] == [answers] * 2
    assert caplog.text.count(f"ping fails: {error}") == (not answers)
    await broker.stop()
