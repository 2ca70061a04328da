"""The AsyncAPI document of an application."""

from __future__ import annotations

import json
from typing import Any

from faststream.security import SASLPlaintext
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from evenq.faststream import EvenqBroker, EvenqRouter


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
