"""Arguments of subscribers and publishers that are refused, and what the others become."""

from __future__ import annotations

from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError

import evenq
from evenq.faststream import EvenqBroker, EvenqRouter


@pytest.fixture
def broker() -> EvenqBroker:
    return EvenqBroker("127.0.0.1:1", logger=None, group="all")


@pytest.mark.parametrize(
    ("topics", "arguments", "problem"),
    [
        ((), {}, "the subscriber has no topic"),
        (("a b",), {}, "topic 'a b': "),
        ((7,), {}, "topic 7: it is not a text"),
        (("orders",), {"group": "a b"}, "group 'a b': "),
        (("orders",), {"tag": "paid", "sql": "a = 1"}, r"tag='paid' and sql='a = 1'; give one of them"),
        (("orders",), {"model": "ONE"}, "model is 'ONE', it must be CLUSTERING or BROADCASTING"),
        (("orders",), {"max_workers": 0}, "max_workers is 0, the range is 1 to 1,000"),
        (("orders",), {"max_records": 1_025}, "max_records is 1025, the range is 1 to 1,024"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(
    broker: EvenqBroker, topics: tuple[Any, ...], arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SetupError, match=problem):
        broker.subscriber(*topics, **arguments)


def test_a_publisher_needs_the_name_of_a_topic(broker: EvenqBroker) -> None:
    with pytest.raises(SetupError, match="topic '': "):
        broker.publisher("")


def test_the_group_is_that_of_the_subscriber_or_of_the_broker(broker: EvenqBroker) -> None:
    router = EvenqRouter()
    nested = router.subscriber("orders")
    broker.include_router(router)
    assert (broker.subscriber("orders").group, nested.group, broker.subscriber("o", group="own").group) == (
        "all",
        "all",
        "own",
    )


def test_the_ack_policy_is_that_of_the_subscriber_the_broker_or_nack_on_error(broker: EvenqBroker) -> None:
    manual = EvenqBroker("127.0.0.1:1", logger=None, ack_policy=AckPolicy.MANUAL)
    assert broker.subscriber("orders").ack_policy is AckPolicy.NACK_ON_ERROR
    assert manual.subscriber("orders").ack_policy is AckPolicy.MANUAL
    assert manual.subscriber("orders", ack_policy=AckPolicy.ACK).ack_policy is AckPolicy.ACK


def test_one_message_is_a_call_and_a_batch_is_max_records(broker: EvenqBroker) -> None:
    assert broker.subscriber("orders")._options() == evenq.PushOptions(consume_batch=1, drain_ms=15_000)
    assert broker.subscriber("orders", batch=True, max_records=7)._options().consume_batch == 7
    options = evenq.PushOptions(max_attempts=3, consume_batch=9)
    given = broker.subscriber("orders", options=options)._options()
    assert (given.max_attempts, given.consume_batch, given.drain_ms) == (3, 1, options.drain_ms)


async def test_a_subscriber_with_handlers_is_not_read_by_hand(broker: EvenqBroker) -> None:
    subscriber = broker.subscriber("orders")

    @subscriber
    async def handle(body: str) -> None: ...

    with pytest.raises(AssertionError, match="cannot be read with get_one"):
        await subscriber.get_one()
