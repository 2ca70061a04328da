"""Arguments of subscribers and publishers that are refused, and what the others become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError
from faststream.security import SASLPlaintext
from faststream.specification import AsyncAPI
from pydantic import BaseModel

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


class Order(BaseModel):
    id: int


def document(broker: EvenqBroker) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(AsyncAPI(broker).to_specification().to_json())
    return made


def test_each_topic_is_a_channel_with_the_group_and_filter_of_its_reader() -> None:
    router = EvenqRouter(prefix="eu-")

    @router.subscriber("orders", "refunds", group="billing", tag="paid")
    @router.publisher("bills", schema=Order)
    async def bill(order: Order) -> Order:
        """Bills an order."""
        return order

    broker = EvenqBroker("10.0.0.1:8081;10.0.0.2:8081", routers=[router], description="the shop's cluster")
    made = document(broker)
    assert {name: one["host"] for name, one in made["servers"].items()} == {
        "Server1": "10.0.0.1:8081",
        "Server2": "10.0.0.2:8081",
    }
    assert made["servers"]["Server1"]["protocol"] == "rocketmq"
    addresses = {name: channel["address"] for name, channel in made["channels"].items()}
    assert addresses == {
        "eu-orders:Bill": "eu-orders",
        "eu-refunds:Bill": "eu-refunds",
        "eu-bills:Publisher": "eu-bills",
    }
    assert made["channels"]["eu-orders:Bill"]["description"] == (
        "Bills an order.\n\nConsumer group `billing`, filter `paid`."
    )
    assert {one["action"] for one in made["operations"].values()} == {"receive", "send"}


def test_security_and_titles_are_in_the_document_and_secrets_are_not() -> None:
    broker = EvenqBroker("10.0.0.1:8081", security=SASLPlaintext("alice", "top-secret"))

    @broker.subscriber("orders", group="billing", title="Orders", description="Reads.")
    async def bill(order: Order) -> None: ...

    @broker.subscriber("hidden", group="hidden", include_in_schema=False)
    async def hide(order: Order) -> None: ...

    made = document(broker)
    assert made["servers"]["development"]["security"] == [{"$ref": "#/components/securitySchemes/user-password"}]
    assert list(made["channels"]) == ["Orders"]
    assert made["channels"]["Orders"]["description"] == "Reads.\n\nConsumer group `billing`."
    assert "top-secret" not in json.dumps(made)


def test_a_reader_without_group_and_filter_has_its_own_description_or_none() -> None:
    broker = EvenqBroker("10.0.0.1:8081")

    @broker.subscriber("orders", title="Orders")
    async def bill(order: Order) -> None: ...

    @broker.subscriber("refunds", title="Refunds", description="Reads.", tag="paid")
    async def refund(order: Order) -> None: ...

    channels = document(broker)["channels"]
    assert channels["Orders"].get("description") is None
    assert channels["Refunds"]["description"] == "Reads.\n\nFilter `paid`."
